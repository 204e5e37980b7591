"""Whole messages from octets, record by record: for transfers and updates, not for every query.

Names in rdata come out uncompressed for the types that may hold compressed ones (RFC 3597
section 4); rdata of a type that is known is well formed, of any other it is octets.
"""

from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812  # the name says what it is
from typing import NamedTuple

import msgspec

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.rdata_names import find_names, plain_rdata
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
    except (BadRecord, BadName, IndexError) as error:
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
    found = find_names(octets, at, end, rtype)
    if found is not None:
        rdata = plain_rdata(octets, at, end, found)
    records.check_rdata(rtype, rdata)
    return rdata
