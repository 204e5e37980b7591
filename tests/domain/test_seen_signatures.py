"""Signatures that were seen already: replays are refused, those that come late are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns.tsig import LATE_S, MAC_MIN, SEEN_MAX, SeenSignatures

START_S = 1_000
TIMES = st.integers(START_S - 5, START_S + 60)


@given(st.lists(st.tuples(TIMES, st.binary(min_size=1, max_size=1)), max_size=60))
def test_no_octets_are_taken_twice(messages: list[tuple[int, bytes]]) -> None:
    seen = SeenSignatures(START_S)
    taken: set[tuple[int, bytes]] = set()
    for time_s, mac in messages:
        if seen.take(time_s, mac):
            assert (time_s, mac) not in taken
            assert time_s >= START_S
            taken.add((time_s, mac))


@given(st.permutations(range(12)))
def test_messages_that_were_signed_together_come_in_any_order(order: list[int]) -> None:
    seen = SeenSignatures(START_S)
    for i in order:
        assert seen.take(START_S + 100 + i % (LATE_S + 1), bytes([i]))


def test_what_is_too_late_to_know_is_refused() -> None:
    seen = SeenSignatures(START_S)
    assert seen.take(START_S + 50, b"a")
    assert seen.take(START_S + 50 - LATE_S, b"b")
    assert not seen.take(START_S + 50 - LATE_S - 1, b"c")


@pytest.mark.parametrize("first", [MAC_MIN, 16, 32])
def test_a_mac_that_is_cut_short_is_the_same_one(first: int) -> None:
    """Whoever recorded an update could send it once for each length, where those are let pass."""
    mac = bytes(range(32))
    seen = SeenSignatures(START_S)
    assert seen.take(START_S, mac[:first])
    assert not any(seen.take(START_S, mac[:size]) for size in range(MAC_MIN, 33))
    seen.forget(mac)
    assert seen.take(START_S, mac)


def test_what_was_forgotten_may_come_again() -> None:
    seen = SeenSignatures(START_S)
    assert seen.take(START_S, b"a")
    seen.forget(b"a")
    assert seen.take(START_S, b"a")


def test_what_another_node_carried_out_is_not_carried_out_here() -> None:
    seen = SeenSignatures(START_S)
    assert seen.take(START_S + 20, b"ours")
    seen.heard(START_S + 20)  # our own
    assert seen.take(START_S + 19, b"late")
    seen.heard(START_S + 30)
    assert not seen.take(START_S + 29, b"replayed")


def test_a_flood_of_one_key_makes_nothing_grow() -> None:
    seen = SeenSignatures(START_S)
    for i in range(SEEN_MAX + 50):
        seen.take(START_S + i // SEEN_MAX, i.to_bytes(4, "big"))
    # The oldest second went; nothing of it is taken again.
    assert not seen.take(START_S, (0).to_bytes(4, "big"))
    assert seen.take(START_S + 1, b"new")
