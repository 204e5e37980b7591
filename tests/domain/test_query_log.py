import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.filtering.clients import packed_address
from kudurru.domain.query_log import EVERY, Filter, Privacy, Sampler, question_key

KEY = bytes(range(32))


def client_of(privacy: Privacy, client: str, key: bytes = KEY) -> str:
    return Filter(privacy, key).client(packed_address(client))


@pytest.mark.parametrize(
    ("level", "client", "kept"),
    [
        (0, "192.0.2.77", "192.0.2.77"),
        (0, "2001:db8:1:2:3::4", "2001:db8:1:2:3::4"),
        (1, "192.0.2.77", "192.0.2.0/24"),
        (1, "2001:db8:1:2:3::4", "2001:db8:1::/56"),
    ],
)
def test_a_level_takes_away_what_it_says(level: int, client: str, kept: str) -> None:
    assert client_of(Privacy(level=level), client) == kept


def test_a_name_is_stored_in_small_letters_without_its_last_dot() -> None:
    assert Filter(Privacy(), KEY).name(names.from_text("Www.Example")) == "www.example"


@pytest.mark.parametrize("bits", [0, 8, 23, 32])
def test_as_many_bits_as_wanted_are_kept(bits: int) -> None:
    found = client_of(Privacy(level=1, ipv4_bits=bits), "255.255.255.255")
    assert found.endswith(f"/{bits}")
    octets = packed_address(found.partition("/")[0])
    assert bin(int.from_bytes(octets, "big")).count("1") == bits


def test_a_pseudonym_tells_clients_apart_and_ends_with_its_key() -> None:
    level = Privacy(level=2)
    one, other = client_of(level, "192.0.2.1"), client_of(level, "192.0.2.2")
    later = client_of(level, "192.0.2.1", bytes(32))
    assert client_of(level, "192.0.2.1") == one
    assert len({one, other, later}) == 3
    assert "192" not in one.removeprefix("client-")[:3]


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("lan", False),
        ("nas.LAN", False),
        ("wlan", True),
        ("lan.example", True),
        ("secret.example", False),
        ("x.secret.example", False),
    ],
)
def test_ignored_domains_leave_nothing(name: str, is_kept: bool) -> None:
    found = Filter(Privacy(ignore=("lan", "*.Secret.example.", "a..b")), KEY)
    assert found.keeps(names.from_text(name)) == is_kept


def test_the_key_of_a_question_is_that_of_its_fact() -> None:
    wire = names.from_text("Www.Example")
    query = bytes(10) + wire + b"\0\1\0\1" + b"OPT"
    assert question_key(query) == wire.lower() + b"\0\1\0\1"
    assert question_key(b"\1" * 12) is None


@pytest.mark.parametrize(
    "text", ["www.example", "a\\000b.Example", "\\000.x", "\\003www\\000.x", "."]
)
def test_a_repeat_has_the_key_of_the_question_that_was_noted(text: str) -> None:
    name = names.from_text(text)
    question = name + b"\0\x1c\0\1"
    assert question_key(bytes(10) + question + b"more") == name.lower() + question[-4:]


@pytest.mark.parametrize("query", [b"", bytes(10), bytes(10) + b"\5abc", bytes(10) + b"\xc0\x0c"])
def test_what_has_no_question_has_no_key(query: bytes) -> None:
    assert question_key(query) is None


@given(one_in=st.integers(1, 50), seed=st.integers(0, 1000))
def test_of_each_stretch_exactly_one_query_is_picked_and_stands_for_all(
    one_in: int, seed: int
) -> None:
    sampler = Sampler(one_in, random.Random(seed).randrange)
    for _ in range(20):
        weights = [sampler.weigh() for _ in range(one_in)]
        assert sorted(weights) == [0] * (one_in - 1) + [one_in]


def test_a_query_that_comes_in_the_rhythm_of_the_sample_is_seen_like_all_others() -> None:
    """Ten names in turn, of which one in ten is picked: a plain counter would see one of them."""
    sampler = Sampler(10, random.Random(1).randrange)
    seen = Counter(i % 10 for i in range(10_000) if sampler.weigh())
    assert set(seen) == set(range(10))
    assert max(seen.values()) < 3 * min(seen.values())


def test_without_a_sample_every_query_stands_for_itself() -> None:
    assert [EVERY.weigh() for _ in range(3)] == [1, 1, 1]
