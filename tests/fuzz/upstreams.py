"""Fuzz targets of what comes from upstreams: their answers, and the texts that name them."""

import contextlib
from collections.abc import Callable

from kudurru.domain.dns.messages import HEADER_SIZE, TCP_MAX, Query, parse_query
from kudurru.domain.dns.names import Name, from_text
from kudurru.domain.dns.resolved import Resolved, behind_aliases, compose_resolved
from kudurru.domain.dns.responses import (
    TTL_MAX_S,
    Malformed,
    Message,
    Reader,
    _read_simple,
    is_answer_but_for_letters,
    is_answer_to,
    read_response,
)
from kudurru.domain.dns.upstreams import parse_entry
from kudurru.projections.pipeline.forward import PLAIN_MAX
from tests.packets import query

QUESTIONS = tuple(
    query("www.example", rtype)[12:] for rtype in (1, 28, 5, 6, 2, 15, 16, 33, 65, 255, 39)
)


def take_response(octets: bytes) -> None:
    """The first octet chooses the question; the rest is a packet."""
    if not octets:
        return
    question = QUESTIONS[octets[0] % len(QUESTIONS)]
    packet = octets[1:]
    if is_answer_to(question, packet):
        assert is_answer_but_for_letters(question, packet)
        check(question, packet)


def check(question: bytes, packet: bytes) -> None:
    """What holds of every response that is taken, whatever it is."""
    try:
        message = read_response(question, packet, is_trusted=True)
    except Malformed:
        return
    simple = _read_simple(question, packet, is_trusted=True)
    if simple is not None:
        assert Reader(question, packet).read(is_trusted=True) == simple
    if message.rcode > PLAIN_MAX:
        return  # not given on
    wire = compose_resolved(asked(question), Resolved(message, "forward"), 1 << 20)
    assert wire[12:].startswith(question)
    again = read_response(question, wire)
    assert again.counts == message.counts
    assert again.body == message.body
    assert again.ttl_s == message.ttl_s
    for at in again.ttls_at:
        assert int.from_bytes(again.body[at : at + 4], "big") <= TTL_MAX_S
    aged = Resolved(message, "cache", age_s=60)
    assert len(compose_resolved(asked(question), aged, TCP_MAX)) <= TCP_MAX
    check_behind_alias(question, message)
    check_letters(question, packet, message)


def check_letters(question: bytes, packet: bytes, message: Message) -> None:
    """It says the same to a question in other letters, whatever was copied from that."""
    loud = question[:-4].upper() + question[-4:]
    if not packet.startswith(question, HEADER_SIZE):
        return  # it has no question
    try:
        heard = read_response(loud, packet.replace(question, loud, 1), is_trusted=True)
    except Malformed:
        return  # it is written anew, and larger than a message
    assert heard.ttl_s == message.ttl_s
    assert unlettered(said(question, heard)) == unlettered(said(question, message))


def unlettered(records: list[tuple[int, bytes, int, bytes]]) -> list[tuple[int, bytes, int, bytes]]:
    return [(section, owner, rtype, data.lower()) for section, owner, rtype, data in records]


FAR = from_text("a.name.of.another.length.example.")


def check_behind_alias(question: bytes, message: Message) -> None:
    """Records say the same where they stand behind an alias, in another message."""
    target = question[:-4]
    alias = b"\xc0\x0c\0\5\0\1\0\0\0\1" + len(target).to_bytes(2, "big") + target
    try:
        moved = behind_aliases([alias], question, message, 0)
    except Malformed:
        return  # larger than a message
    before, after = said(question, message), said(FAR + question[-4:], moved)
    assert after[1:] == [record for record in before if record[0] < 2]


def said(question: bytes, message: Message) -> list[tuple[int, bytes, int, bytes]]:
    """Section, owner, type and data in full of each record."""
    head = b"\0\0\x81\x80\0\1" + b"".join(n.to_bytes(2, "big") for n in message.counts)
    reader = Reader(question, head + question + message.body)
    return [(r.section, r.owner, r.rtype, reader.plain_rdata(r)) for r in reader.records()]


def asked(question: bytes) -> Query:
    found = parse_query(b"\0\0\1\0\0\1\0\0\0\0\0\0" + question)
    assert isinstance(found, Query)
    assert isinstance(Name(found.qname), bytes)
    return found


def take_text(octets: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_entry(octets.decode("latin-1"))


def responses() -> Callable[[bytes], None]:
    return take_response


def texts() -> Callable[[bytes], None]:
    return take_text
