"""Images: all that one owner holds, in answer-ready wire form.

An *image* holds every RRset of one owner, in order of type:

    2 octets   type
    4 octets   number of records
    4 octets   length of what follows for this type
    records    C0 0C, type, class IN, TTL, RDLENGTH, RDATA (uncompressed, in canonical order)

The owner of each record is a pointer to octet 12 of a message, where the question's name stands, so
the usual answer is header, question and a slice of an image. One bytes object per owner, because a
million owners are held, and a garbage collector does not visit bytes. The SOA is in no image: its
serial moves by itself.
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from struct import Struct as Layout
from typing import NamedTuple

import msgspec

from kudurru.domain.dns import records
from kudurru.domain.dns.records import CLASS_IN

QUESTION_POINTER = b"\xc0\x0c"

_RRSET_HEAD = Layout("!HII")
_RRSET_HEAD_SIZE = _RRSET_HEAD.size
COUNTS_SIZE = 6  # octets of it before the length
RR_HEAD = Layout("!2sHHIH")
_RR_HEAD_SIZE = RR_HEAD.size
_SINGLE_HEAD = Layout("!HII2sHHIH")  # the two of an RRset of one record

EMPTY = b""
"""Image of an owner that has nothing."""


class RRset(msgspec.Struct, frozen=True, gc=False):
    """Records of one owner and type. `rdatas` are uncompressed wire; `expires_at_s` is the unix
    time at which the first of them goes away, None: never."""

    rtype: int
    ttl: int
    rdatas: tuple[bytes, ...]
    expires_at_s: int | None = None


class PackedRRset(NamedTuple):
    """An RRset inside an image: `wire` holds its records one after another."""

    rtype: int
    rr_count: int
    wire: bytes


class Record(NamedTuple):
    rtype: int
    ttl: int
    rdata: bytes


def pack(rrsets: Sequence[RRset]) -> bytes:
    """Image of an owner that holds these RRsets."""
    if len(rrsets) == 1:
        return _pack_rrset(rrsets[0])
    if len({rrset.rtype for rrset in rrsets}) == len(rrsets):
        return b"".join([_pack_rrset(rrset) for rrset in sorted(rrsets, key=_type_of)])
    joined: dict[int, tuple[int, dict[bytes, bytes]]] = {}
    for rtype, ttl, rdatas in ((given.rtype, given.ttl, given.rdatas) for given in rrsets):
        least, unique = joined.get(rtype, (ttl, {}))
        for rdata in rdatas:
            unique.setdefault(records.canonical_rdata(rtype, rdata), rdata)
        joined[rtype] = (min(ttl, least), unique)
    return b"".join(
        [
            _pack_rrset(RRset(rtype, ttl, tuple(unique.values())))
            for rtype, (ttl, unique) in sorted(joined.items())
        ]
    )


_type_of = attrgetter("rtype")


def _pack_rrset(rrset: RRset) -> bytes:
    """The part of an image that one RRset is."""
    rtype, ttl, rdatas = rrset.rtype, rrset.ttl, rrset.rdatas
    if len(rdatas) == 1:
        rdata = rdatas[0]
        size = len(rdata)
        head = (rtype, 1, _RR_HEAD_SIZE + size, QUESTION_POINTER, rtype, CLASS_IN, ttl, size)
        return _SINGLE_HEAD.pack(*head) + rdata
    unique: dict[bytes, bytes] = {}
    for rdata in rdatas:
        unique.setdefault(records.canonical_rdata(rtype, rdata), rdata)
    wire = b"".join([pack_record(rtype, ttl, unique[rdata]) for rdata in sorted(unique)])
    return _RRSET_HEAD.pack(rtype, len(unique), len(wire)) + wire if wire else b""


def pack_record(rtype: int, ttl: int, rdata: bytes, rclass: int = CLASS_IN) -> bytes:
    """A record whose owner is the question's name."""
    return RR_HEAD.pack(QUESTION_POINTER, rtype, rclass, ttl, len(rdata)) + rdata


def find_rrset(image: bytes, rtype: int) -> tuple[int, bytes] | None:
    """Number of records and wire of the RRset of a type."""
    at = 0
    size = len(image)
    while at < size:
        found, rr_count, length = _RRSET_HEAD.unpack_from(image, at)
        at += _RRSET_HEAD_SIZE
        if found == rtype:
            return rr_count, image[at : at + length]
        at += length
    return None


def unpack(image: bytes) -> list[PackedRRset]:
    """RRsets of an image, in order of type."""
    found = []
    at, size = 0, len(image)
    while at < size:
        rtype, rr_count, length = _RRSET_HEAD.unpack_from(image, at)
        at += _RRSET_HEAD_SIZE
        found.append(PackedRRset(rtype, rr_count, image[at : at + length]))
        at += length
    return found


def is_single(image: bytes) -> bool:
    """Whether an image has exactly one RRset."""
    length = int.from_bytes(image[COUNTS_SIZE:_RRSET_HEAD_SIZE], "big")
    return len(image) == _RRSET_HEAD_SIZE + length


def rrset_counts(image: bytes) -> list[tuple[int, int]]:
    """Type and number of records of each RRset of an image."""
    found = []
    at, size = 0, len(image)
    while at < size:
        rtype, rr_count, length = _RRSET_HEAD.unpack_from(image, at)
        at += _RRSET_HEAD_SIZE + length
        found.append((rtype, rr_count))
    return found


def unpack_records(wire: bytes) -> Iterator[Record]:
    """Records of a packed RRset."""
    at = 0
    while at < len(wire):
        _, rtype, _, ttl, length = RR_HEAD.unpack_from(wire, at)
        at += _RR_HEAD_SIZE
        yield Record(rtype, ttl, wire[at : at + length])
        at += length


def alias_of(wire: bytes) -> bytes:
    """Where the RRset of a CNAME leads."""
    return next(unpack_records(wire)).rdata


def with_ttl_at_most(wire: bytes, ttl_max: int) -> bytes:
    """A packed RRset with its TTL capped."""
    return b"".join(
        pack_record(rtype, min(ttl, ttl_max), rdata) for rtype, ttl, rdata in unpack_records(wire)
    )


# Elements of a zone's digest


def digest_elements(key: bytes, image: bytes) -> list[bytes]:
    """Of each RRset of an owner."""
    if image[2:COUNTS_SIZE] == b"\x00\x00\x00\x01" and is_single(image):
        at = _RRSET_HEAD_SIZE + len(QUESTION_POINTER)
        return [b"".join((key, image[at : at + 2], image[at + 4 :]))]  # as `digest_element`
    return [digest_element(key, rrset) for rrset in unpack(image)]


def digest_element(key: bytes, rrset: PackedRRset) -> bytes:
    if rrset.rr_count == 1:
        # Between type and TTL stands the class; what follows is TTL, length and rdata.
        return b"".join((key, rrset.wire[2:4], rrset.wire[6:]))
    parts = [key, rrset.rtype.to_bytes(2, "big")]
    for i, (_, ttl, rdata) in enumerate(unpack_records(rrset.wire)):
        if i == 0:
            parts.append(ttl.to_bytes(4, "big"))
        parts += (len(rdata).to_bytes(2, "big"), rdata)
    return b"".join(parts)
