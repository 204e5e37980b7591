"""Reading answers of other servers; `just fuzz` goes on where the octets here end."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.dns.queries import build_query, mixed
from kudurru.domain.dns.responses import Malformed, is_answer_to, read_response, strings_of
from tests.fuzz.upstreams import QUESTIONS, check, take_response, take_text
from tests.packets import query

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"
RESPONSES = {
    path.name: path.read_bytes()
    for path in sorted((CORPUS / "response").iterdir())
    if not path.name.startswith("refused-")
}
REFUSED = {path.name: path.read_bytes() for path in (CORPUS / "response").glob("refused-*")}
TEXTS = {path.name: path.read_bytes() for path in sorted((CORPUS / "upstream").iterdir())}
QUESTION = query("www.example")[12:]


@pytest.mark.parametrize("name", RESPONSES)
def test_responses_of_the_corpus_are_kept_as_they_must(name: str) -> None:
    octets = RESPONSES[name]
    question = QUESTIONS[octets[0] % len(QUESTIONS)]
    assert is_answer_to(question, octets[1:])
    check(question, octets[1:])
    read_response(question, octets[1:])


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_responses_that_would_say_something_else_in_our_answer_are_refused(name: str) -> None:
    question = QUESTIONS[REFUSED[name][0] % len(QUESTIONS)]
    with pytest.raises(Malformed):
        read_response(question, REFUSED[name][1:])


@given(st.sampled_from(QUESTIONS), st.binary(max_size=120), st.binary(min_size=8, max_size=8))
def test_any_octets_behind_a_question_are_read_or_refused(
    question: bytes, rest: bytes, counts: bytes
) -> None:
    small = bytes(octet & 3 if i % 2 else 0 for i, octet in enumerate(counts[2:]))
    check(question, b"\0\0\x81\x80\0\1" + small + question + rest)


@given(
    seed=st.sampled_from(sorted(RESPONSES)),
    edits=st.lists(st.tuples(st.integers(1, 200), st.binary(max_size=3)), min_size=1, max_size=4),
    cut=st.integers(0, 30),
)
def test_responses_with_octets_exchanged_are_read_or_refused(
    seed: str, edits: list[tuple[int, bytes]], cut: int
) -> None:
    packet = bytearray(RESPONSES[seed])
    for at, octets in edits:
        at %= len(packet) + 1
        packet[at : at + len(octets)] = octets
    take_response(bytes(packet[: len(packet) - cut]))


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_the_corpus_name_upstreams(name: str) -> None:
    take_text(TEXTS[name])


@given(st.integers(min_value=0, max_value=(1 << 400) - 1))
def test_only_letters_are_mixed(chance: int) -> None:
    name = names.key(names.from_text("a-long_name.with.9-LETTERS.and\\000zero.example."))
    made = mixed(name, chance % (1 << 8 * len(name)))
    assert made.lower() == name
    assert len(made) == len(name)


def test_queries_over_encrypted_transports_are_padded() -> None:
    for size in range(1, 60):
        name = names.from_text("a" * size + ".example.")
        packet = build_query(name + b"\0\1\0\1", 0x0100, udp_size=1232, block=128)
        assert len(packet) % 128 == 0


def test_a_bare_error_is_an_answer_and_a_bare_success_none() -> None:
    head = b"\0\0\x81"
    assert is_answer_to(QUESTION, head + b"\x81" + bytes(8))
    assert not is_answer_to(QUESTION, head + b"\x80" + bytes(8))
    assert not is_answer_to(QUESTION, head + b"\x83" + bytes(8))  # of no name, there is none
    assert not is_answer_to(QUESTION, b"\0\0\x01\x81" + bytes(8))


def test_strings_of_txt_records_are_joined() -> None:
    octets = RESPONSES["txt"]
    message = read_response(QUESTIONS[octets[0]], octets[1:])
    assert strings_of(message) == [b"textmore"]


def test_a_response_of_too_many_records_is_refused() -> None:
    record = b"\xc0\x0c\0\x63\0\1\0\0\0\0\0\0"
    packet = b"\0\0\x81\x80\0\1\x13\x88\0\0\0\0" + QUESTION + record * 5000
    with pytest.raises(Malformed, match="more than"):
        read_response(QUESTION, packet)
