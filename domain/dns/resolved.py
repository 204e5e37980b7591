"""Answers of other servers, given on to clients: joined, aged, and composed for a query."""

from collections.abc import Sequence
from struct import Struct as Layout
from typing import Literal

import msgspec

from kudurru.domain.dns.lookup import NOERROR
from kudurru.domain.dns.messages import (
    AD,
    CD,
    HEADER_SIZE,
    QR,
    RA,
    RD,
    TC,
    TCP_MAX,
    Query,
    after_name,
    opt_record,
    padded_options,
)
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import SOA
from kudurru.domain.dns.responses import Malformed, Message, Reader

_HEADER = Layout("!HHHHHH")
_RR_FIXED = Layout("!HHIH")

Source = Literal["forward", "cache", "stale", "local"]


class Resolved(msgspec.Struct, frozen=True, gc=False):
    """An answer for one query, and what the query log wants to know of it."""

    message: Message
    source: Source
    age_s: int = 0  # TTLs are counted down by it
    ttl_s: int | None = None  # TTL of every record instead, of stale answers
    upstream: str = ""
    latency_us: int = 0  # of the upstream
    extended_error: int | None = None
    stored_us: int = 0  # monotonic: since when TTLs count down
    until_us: int = 0  # until when the cache would say the same; 0: it is not from there


def with_ttls_between(message: Message, low_s: int, high_s: int) -> Message:
    """The message with every TTL raised and cut to bounds; itself where none is out of them."""
    body: bytes | bytearray = message.body
    for at in message.ttls_at:
        if not low_s <= int.from_bytes(body[at : at + 4], "big") <= high_s:
            break
    else:
        return message
    body = bytearray(body)
    for at in message.ttls_at:
        ttl = int.from_bytes(body[at : at + 4], "big")
        body[at : at + 4] = min(max(ttl, low_s), high_s).to_bytes(4, "big")
    return msgspec.structs.replace(message, body=bytes(body))


def compose_resolved(
    query: Query, resolved: Resolved, limit: int, *, options: bytes = b"", block: int = 0
) -> bytes:
    """The answer to a query of a client who may recurse, at most `limit` octets; what does not fit
    has TC set and no records. `options` and `block` as in `messages.compose`."""
    message = resolved.message
    rcode = message.rcode
    opt = opt_record(query, rcode, options)
    flags = QR | RA | query.flags & (RD | CD) | rcode & 0xF
    if message.is_authentic and (query.is_dnssec_ok or query.flags & AD):
        flags |= AD  # RFC 6840 section 5.8
    opt_count = 1 if opt else 0
    size = HEADER_SIZE + len(query.question) + len(message.body) + len(opt)
    if size > limit:
        head = _HEADER.pack(query.id, flags | TC, 1, 0, 0, opt_count)
        return head + query.question + opt
    if block and opt:
        padded = padded_options(options, size, limit, block)
        opt = opt_record(query, rcode, padded)
    an, ns, ar = message.counts
    head = _HEADER.pack(query.id, flags, 1, an, ns, ar + opt_count)
    return head + query.question + _aged(resolved) + opt


def _aged(resolved: Resolved) -> bytes:
    """The records with the TTLs that they have now."""
    message = resolved.message
    if resolved.ttl_s is None and not resolved.age_s:
        return message.body
    body = bytearray(message.body)
    if resolved.ttl_s is not None:
        ttl = resolved.ttl_s.to_bytes(4, "big")
        for at in message.ttls_at:
            body[at : at + 4] = ttl
        return bytes(body)
    age = resolved.age_s
    for at in message.ttls_at:
        left = int.from_bytes(body[at : at + 4], "big") - age
        body[at : at + 4] = (left if left > 0 else 0).to_bytes(4, "big")
    return bytes(body)


def dangling_alias(question: bytes, message: Message) -> Name | None:
    """The name (a key) that an answer's aliases lead to, where it says nothing of that name: it
    came from a server that serves zones and knows no more. None: the answer is whole."""
    if message.rcode != NOERROR or not message.is_negative or not message.counts[0]:
        return None
    head = _HEADER.pack(0, 0, 1, *message.counts)
    reader = Reader(question, head + question + message.body)
    records = reader.records()
    chain = reader.chain(records)
    if len(chain) == 1 or any(r.rtype == SOA and r.section == 1 for r in records):
        return None  # RFC 2308 section 2.2: there is no data, and it says so
    return Name(reader.final)


def joined(first: Message, target: bytes, second: Message, age_s: int) -> Message:
    """An answer that ends in an alias, and that to the question for its target: names of the
    second in full, for its pointers would point into the wrong question. Raises Malformed where
    that is larger than a message."""
    last = first.ttls_at[first.counts[0] - 1]
    size = last + 6 + int.from_bytes(first.body[last + 4 : last + 6], "big")
    ttls_at = list(first.ttls_at[: first.counts[0]])
    ttl_s = min(int.from_bytes(first.body[at : at + 4], "big") for at in ttls_at)
    records, places = _in_full(target, second, age_s, size)
    left_s = None if second.ttl_s is None else max(0, min(ttl_s, second.ttl_s - age_s))
    return Message(
        second.rcode,
        (first.counts[0] + second.counts[0], second.counts[1], 0),
        first.body[:size] + records,
        (*ttls_at, *places),
        left_s,
        second.is_negative,
        extended_error=second.extended_error,
    )


def behind_aliases(
    aliases: Sequence[bytes], question: bytes, message: Message, age_s: int
) -> Message:
    """A message that begins with aliases of ours (records with their owners in full, or as a
    pointer to the asked question) and goes on with the answer to another question, that of the last
    one's target: names in full, for its pointers would point into the wrong question. TTLs are as
    old as `age_s`. Raises Malformed where that is larger than a message."""
    ttls_at, size = [], 0
    for alias in aliases:
        ttls_at.append(size + after_name(alias, 0) + 4)
        size += len(alias)
    records, places = _in_full(question, message, age_s, size)
    an, ns, _ = message.counts
    return Message(
        message.rcode,
        (len(aliases) + an, ns, 0),
        b"".join(aliases) + records,
        (*ttls_at, *places),
        message.ttl_s,
        message.is_negative,
        extended_error=message.extended_error,
    )


def _in_full(question: bytes, message: Message, age_s: int, at: int) -> tuple[bytes, list[int]]:
    """Answer and authority of a message as octets that may stand anywhere, and the places of their
    TTLs where they begin at `at`."""
    head = _HEADER.pack(0, 0, 1, *message.counts)
    reader = Reader(question, head + question + message.body)
    parts: list[bytes] = []
    ttls_at: list[int] = []
    for record in reader.records():
        if record.section == 2:
            break
        rdata = reader.plain_rdata(record)
        ttl = max(0, record.ttl - age_s)
        fixed = _RR_FIXED.pack(record.rtype, record.rclass, ttl, len(rdata))
        ttls_at.append(at + len(record.owner) + 4)
        parts += (record.owner, fixed, rdata)
        at += len(record.owner) + len(fixed) + len(rdata)
        if at > TCP_MAX:
            raise Malformed("with names in full it is larger than a message")
    return b"".join(parts), ttls_at
