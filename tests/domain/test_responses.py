"""Reading answers of other servers; `just fuzz` goes on where the octets here end."""

from pathlib import Path

import dns.message
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.dns.queries import build_query, mixed
from kudurru.domain.dns.resolved import Resolved, compose_resolved
from kudurru.domain.dns.responses import (
    Malformed,
    Message,
    is_answer_to,
    read_response,
    strings_of,
)
from tests.fuzz.upstreams import QUESTIONS, asked, check, take_response, take_text
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


COPYING = [
    (b"\xc0\x0c", 1, b"\xc0\0\2\1"),  # owner, type, data; {q} is the question's name as it came
    (b"{q}", 1, b"\xc0\0\2\1"),
    (b"\xc0\x0c", 2, b"\2ns\xc0\x10"),
    (b"\xc0\x0c", 2, b"\2ns{parent}"),
    (b"{parent}", 39, b"\3new\4Test\0"),
    (b"\xc0\x0c", 5, b"{label}\3new\4Test\0"),
    (b"\xc0\x0c", 15, b"\0\1\4Mail{parent}"),
    (b"\xc0\x0c", 33, b"\0\1\0\2\0\3\4Mail\xc0\x10"),
    (b"\4else{parent}", 1, b"\xc0\0\2\2"),  # it does not belong to the question
]


@given(
    st.lists(st.sampled_from(COPYING), min_size=1, max_size=4),
    st.integers(0, (1 << 96) - 1),
    st.sampled_from([2, 5, 15, 33, 255]),
)
def test_what_is_kept_of_a_response_has_no_letters_of_chance(
    rows: list[tuple[bytes, int, bytes]], chance: int, qtype: int
) -> None:
    """Whatever the server copied from the question, or points at in it."""
    lower = query("abc.example", qtype)[12:]

    def kept(name: bytes) -> list[tuple[int, bytes, int, bytes]] | None:
        packet = b"\0\0\x81\x80\0\1\0" + bytes((len(rows), 0, 0, 0, 0)) + name + lower[-4:]
        parts = {b"{q}": name, b"{parent}": name[4:], b"{label}": name[:4]}
        for owner, rtype, data in rows:
            for mark, octets in parts.items():
                owner, data = owner.replace(mark, octets), data.replace(mark, octets)
            fixed = rtype.to_bytes(2, "big") + b"\0\1\0\0\0\x3c" + len(data).to_bytes(2, "big")
            packet += owner + fixed + data
        try:
            message = read_response(name + lower[-4:], packet)
        except Malformed:  # its aliases go in a circle
            return None
        return written(lower, message)

    assert kept(mixed(lower[:-4], chance % (1 << 8 * (len(lower) - 4)))) == kept(lower[:-4])


def written(question: bytes, message: Message) -> list[tuple[int, bytes, int, bytes]]:
    """Section, owner, type and data of the records as a client reads them, in their letters."""
    wire = compose_resolved(asked(question), Resolved(message, "forward"), 65_535)
    found = dns.message.from_wire(wire, one_rr_per_rrset=True)
    return [
        (section, rrset.name.to_wire() or b"", rrset.rdtype, rdata.to_wire() or b"")
        for section, rrsets in enumerate(found.sections[1:])
        for rrset in rrsets
        for rdata in rrset
    ]


def test_letters_that_the_server_has_by_itself_stay() -> None:
    question = b"\3wWw\7eXamplE\0\0\5\0\1"
    packet = b"\0\0\x81\x80\0\1\0\2\0\0\0\0" + question
    alias = b"\5Alias\7eXamplE\4Test\0"
    packet += b"\xc0\x0c\0\5\0\1\0\0\0\x3c\0" + bytes((len(alias),)) + alias
    signed = b"\3wWw\7eXamplE\0\0\1\x40"  # of NSEC, whose next name DNSSEC signs as written
    packet += b"\xc0\x0c\0\x2f\0\1\0\0\0\x3c\0" + bytes((len(signed),)) + signed
    (cname,) = [row for row in written(question, read_response(question, packet)) if row[2] == 5]
    assert cname[3] == b"\5Alias\7example\4Test\0"
    everything = question[:-4] + b"\0\xff\0\1"
    body = read_response(everything, packet.replace(question, everything)).body
    assert body.endswith(signed)
