"""Whole messages from octets, record by record: for transfers and updates, not for every query.

Names in rdata come out uncompressed for the types that may hold compressed ones (RFC 3597
section 4); rdata of a type that is known is well formed, of any other it is octets.
"""

from collections.abc import Callable
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812  # the name says what it is
from typing import NamedTuple

import msgspec

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.record_types import AAAA, A, BadRecord, type_to_text

HEADER_SIZE = 12
TTL_MAX = 2**31 - 1
QR, TC = 0x8000, 0x0200

_HEADER = Layout("!HHHHHH")
_TYPE_AND_CLASS = Layout("!HH")
_RR_FIXED = Layout("!HHIH")


class BadMessage(ValueError):
    """Octets that are no DNS message; the text says why."""


class Record(NamedTuple):
    owner: Name
    rtype: int
    rclass: int
    ttl: int
    rdata: bytes


class Question(NamedTuple):
    name: Name
    rtype: int
    rclass: int


class Message(msgspec.Struct, frozen=True):
    id: int
    flags: int
    questions: list[Question]
    answers: list[Record]
    authorities: list[Record]
    additionals: list[Record]

    @property
    def opcode(self) -> int:
        return self.flags >> 11 & 0xF

    @property
    def rcode(self) -> int:
        """Of the header; what EDNS adds to it is not looked at."""
        return self.flags & 0xF


def read_message(octets: bytes) -> Message:
    """Raises: BadMessage."""
    if len(octets) < HEADER_SIZE:
        raise BadMessage(f"{len(octets)} octets are no message")
    id_, flags, *counts = _HEADER.unpack_from(octets)
    at = HEADER_SIZE
    try:
        questions = []
        for _ in range(counts[0]):
            name, at = names.from_wire(octets, at)
            questions.append(Question(name, *_TYPE_AND_CLASS.unpack_from(octets, at)))
            at += _TYPE_AND_CLASS.size
        sections: list[list[Record]] = []
        for count in counts[1:]:
            section: list[Record] = []
            for _ in range(count):
                record, at = _record(octets, at)
                section.append(record)
            sections.append(section)
    except BadName as error:
        raise BadMessage(str(error)) from None
    except LayoutError:
        raise BadMessage("the message is cut short") from None
    if at != len(octets):
        raise BadMessage(f"{len(octets) - at} octets behind the last record")
    return Message(id_, flags, questions, *sections)


def _record(octets: bytes, at: int) -> tuple[Record, int]:
    owner, at = names.from_wire(octets, at)
    rtype, rclass, ttl, length = _RR_FIXED.unpack_from(octets, at)
    at += _RR_FIXED.size
    end = at + length
    if end > len(octets):
        raise BadMessage("a record is cut short")
    # RFC 2181 section 8: a TTL with the highest bit set counts as 0.
    ttl = 0 if ttl > TTL_MAX and not record_types.is_meta_type(rtype) else ttl
    try:
        rdata = _rdata(octets, at, end, rtype)
    except (BadRecord, BadName) as error:
        where = f"{type_to_text(rtype)} of {names.to_text(owner)}"
        raise BadMessage(f"{where}: {error}") from None
    return Record(owner, rtype, rclass, ttl, rdata), end


def _rdata(octets: bytes, at: int, end: int, rtype: int) -> bytes:
    """Uncompressed and checked. Empty rdata is left to the caller: updates have it (RFC 2136
    section 2.4) with every type."""
    rdata = octets[at:end]
    if not rdata or record_types.is_meta_type(rtype):
        return rdata
    if (rtype == A and len(rdata) == 4) or (rtype == AAAA and len(rdata) == 16):
        return rdata
    where = _NAMES.get(rtype)
    if where is not None:
        rdata = _uncompressed(octets, at, end, *where(octets, at))
    records.check_rdata(rtype, rdata)
    return rdata


def _uncompressed(octets: bytes, at: int, end: int, before: int, count: int) -> bytes:
    parts = [octets[at : at + before]]
    at += before
    for _ in range(count):
        if at >= end:
            raise BadRecord("a name is missing")
        name, at = names.from_wire(octets, at)
        parts.append(name)
    if at > end:
        raise BadRecord("a name is cut short")
    parts.append(octets[at:end])
    return records.bounded(b"".join(parts))


_Where = Callable[[bytes, int], tuple[int, int]]
"""(message, start of rdata) to octets before the first name, and how many names follow."""


def _fixed(before: int, count: int) -> _Where:
    return lambda _octets, _at: (before, count)


def _naptr(octets: bytes, at: int) -> tuple[int, int]:
    before = 4
    for _ in range(3):
        where = at + before
        before += 1 + (octets[where] if where < len(octets) else 0)
    return before, 1


_NAMES: dict[int, _Where] = {
    record_types.type_from_text(mnemonic): where
    for where, mnemonics in (
        (_fixed(0, 1), "NS MD MF CNAME MB MG MR PTR DNAME NXT"),
        (_fixed(0, 2), "SOA MINFO RP"),
        (_fixed(2, 1), "MX AFSDB RT KX"),
        (_fixed(2, 2), "PX"),
        (_fixed(6, 1), "SRV"),
        (_fixed(18, 1), "SIG RRSIG"),
        (_naptr, "NAPTR"),
    )
    for mnemonic in mnemonics.split()
}
