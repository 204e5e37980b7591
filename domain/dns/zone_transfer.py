"""Zone transfers as a server sends them, AXFR (RFC 5936) and IXFR (RFC 1995): streams of messages.

A stream is made while it is sent, one message of some 16 kB at a time, so that a zone of any size
takes no more memory than a small one. Every message repeats the question: names of the zone point
at it (RFC 5936 section 3.4), and in the first 16 kB of a message every owner can be pointed at.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct as Layout

import msgspec

from kudurru.domain.dns import names, records
from kudurru.domain.dns.images import EMPTY, QUESTION_POINTER, pack_record
from kudurru.domain.dns.messages import HEADER_SIZE, TCP_MAX, TransferFrame
from kudurru.domain.dns.record_types import SOA
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_tree import Delta

MESSAGE_FILL = 16_000
"""Octets at which a message is sent: below, pointers reach every owner of it. Larger ones would
save nothing that can be measured, and hold up other clients for longer."""

SIGNATURE_ROOM = 700
"""Octets that a TSIG record takes at most: two names of 255, a MAC of 64, and its numbers."""

_POINTER_MAX = 0x3FFF
_SHORT_MAX = 1024  # octets of a record that surely fits behind a message that is not full
_RRSET_HEAD = Layout("!HII")
_RRSET_HEAD_SIZE = _RRSET_HEAD.size
_RR_HEAD_SIZE = 12  # of a record whose owner is a pointer

Node = tuple[bytes, bytes]
"""An owner as it is written, and its image."""


class TooLarge(Exception):
    """A record that no message can hold."""


def full(frame: TransferFrame, apex: bytes, soa: bytes, nodes: Iterable[Node]) -> Iterator[bytes]:
    """All of a zone (RFC 5936 section 2.2). `apex` is its key, `soa` the packed SOA record.
    Raises: TooLarge."""
    writer = _Writer(frame, apex)
    writer.records(QUESTION_POINTER, soa)
    yield from writer.images(nodes)
    yield from writer.last(soa)


def up_to_date(frame: TransferFrame, apex: bytes, soa: bytes) -> bytes:
    """The answer to who has the version already, and over UDP to who has to come over TCP
    (RFC 1995 section 2 and 4)."""
    writer = _Writer(frame, apex)
    writer.records(QUESTION_POINTER, soa)
    return writer.message()


def difference(frame: TransferFrame, apex: bytes, delta: Delta) -> Iterator[bytes]:
    """What leads from one version to another, as one step (RFC 1995 section 4 and 5). Raises:
    TooLarge."""
    assert delta.from_serial is not None
    assert delta.old_soa is not None
    old, new = _packed(delta.old_soa, delta.from_serial), _packed(delta.new_soa, delta.to_serial)
    writer = _Writer(frame, apex)
    writer.records(QUESTION_POINTER, new)
    yield from writer.more(QUESTION_POINTER, old)
    for owner, (before, after) in delta.changes.items():
        yield from writer.more_records(owner, _missing_in(after, before))
    yield from writer.more(QUESTION_POINTER, new)
    for owner, (before, after) in delta.changes.items():
        yield from writer.more_records(owner, _missing_in(before, after))
    yield from writer.last(new)


def condense(deltas: Sequence[Delta]) -> Delta:
    """Steps that follow each other as one (RFC 1995 section 5)."""
    first, last = deltas[0], deltas[-1]
    if first is last:
        return first
    changes: dict[bytes, tuple[bytes, bytes]] = {}
    for delta in deltas:
        for owner, (old, new) in delta.changes.items():
            known = changes.get(owner)
            changes[owner] = (known[0] if known is not None else old, new)
    return Delta(
        from_serial=first.from_serial,
        to_serial=last.to_serial,
        old_soa=first.old_soa,
        new_soa=last.new_soa,
        changes={owner: (old, new) for owner, (old, new) in changes.items() if old != new},
    )


def with_case(delta: Delta, cased: Mapping[bytes, bytes]) -> Delta:
    """Owners written as they are now: letter case is no content, and kept all the same."""
    if not any(owner in cased for owner in delta.changes):
        return delta
    changes = {cased.get(owner, owner): change for owner, change in delta.changes.items()}
    return msgspec.structs.replace(delta, changes=changes)


def _packed(soa: Soa, serial: int) -> bytes:
    return pack_record(SOA, soa.ttl, soa.rdata(serial))


def _missing_in(image: bytes, other: bytes) -> list[bytes]:
    """Packed records that `other` has and `image` has not; TTLs are a part of records here."""
    if not other:
        return []
    present = set(_split(image)) if image else EMPTY
    return [record for record in _split(other) if record not in present]


def _split(image: bytes) -> Iterator[bytes]:
    """Packed records of an image, or of a packed RRset without its head."""
    at = 0
    while at < len(image):
        _, count, length = _RRSET_HEAD.unpack_from(image, at)
        at += _RRSET_HEAD_SIZE
        if count == 1:
            yield image[at : at + length]
        else:
            yield from _split_rrset(image[at : at + length])
        at += length


def _split_rrset(wire: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(wire):
        end = at + _RR_HEAD_SIZE + (wire[at + 10] << 8 | wire[at + 11])
        yield wire[at:end]
        at = end


class _Writer:
    """Fills one message after another."""

    __slots__ = ("_apex", "_count", "_frame", "_parts", "_size", "_start")

    def __init__(self, frame: TransferFrame, apex: bytes) -> None:
        self._frame = frame
        self._apex = apex
        self._start = HEADER_SIZE + len(frame.question)
        self._parts: list[bytes] = []
        self._count = 0
        self._size = self._start

    def message(self) -> bytes:
        """The message so far; the next one begins."""
        wire = self._frame.message(self._count, b"".join(self._parts))
        self._parts, self._count, self._size = [], 0, self._start
        return wire

    def images(self, nodes: Iterable[Node]) -> Iterator[bytes]:
        """All records of owners. Nearly every owner has one record, which stands there ready but
        for its owner: those are put together here, at a third of the cost of a call for each."""
        unpack, apex, cut = _RRSET_HEAD.unpack_from, self._apex, -len(self._apex)
        parts, size = self._parts, self._size
        for owner, image in nodes:
            rtype, count, length = unpack(image)
            is_one = count == 1 and _RRSET_HEAD_SIZE + length == len(image)
            if is_one and length < _SHORT_MAX and rtype not in _WITH_NAMES and owner.endswith(apex):
                part = owner[:cut] + image[_RRSET_HEAD_SIZE:]
                parts.append(part)
                self._count += 1
                size += len(part)
                if size < MESSAGE_FILL:
                    continue
                self._size = size
                yield self.message()
            else:
                self._size = size
                yield from self.more_records(owner, _split(image))
            parts, size = self._parts, self._size

    def more_records(self, owner: bytes, packed: Iterable[bytes]) -> Iterator[bytes]:
        pointer = self._owner(owner)
        for record in packed:
            at = self._size
            if not self._fits(pointer, record):
                yield self.message()
                pointer, at = self._owner(owner), self._size
            self.records(pointer, record)
            # From the second record on the owner is pointed at, in the same message.
            if len(pointer) > len(QUESTION_POINTER) and at <= _POINTER_MAX:
                pointer = (0xC000 | at).to_bytes(2, "big")
            if self._size >= MESSAGE_FILL:
                yield self.message()
                pointer = self._owner(owner)

    def more(self, pointer: bytes, record: bytes) -> Iterator[bytes]:
        """One record of the apex."""
        if not self._fits(pointer, record):
            yield self.message()
        self.records(pointer, record)

    def last(self, soa: bytes) -> Iterator[bytes]:
        yield from self.more(QUESTION_POINTER, soa)
        yield self.message()

    def records(self, pointer: bytes, record: bytes) -> None:
        """One packed record, its owner written as `pointer`."""
        written = self._compressed(record)
        self._parts.append(pointer + written)
        self._count += 1
        self._size += len(pointer) + len(written)

    def _fits(self, pointer: bytes, record: bytes) -> bool:
        room = TCP_MAX - SIGNATURE_ROOM - len(self._frame.tail)
        size = len(pointer) + len(record) - 2
        if self._start + size > room:
            raise TooLarge(f"a record of {size} octets fits into no message")
        return self._size + size <= room

    def _owner(self, owner: bytes) -> bytes:
        """An owner, which is inside the zone, as it is written before the first of its records."""
        apex = self._apex
        if owner.endswith(apex):
            return owner[: -len(apex)] + QUESTION_POINTER
        return owner  # with capitals in the apex' part, which it keeps

    def _compressed(self, record: bytes) -> bytes:
        """A packed record without its owner, the names in its data compressed where they may be."""
        rtype = record[2] << 8 | record[3]
        layout = _WITH_NAMES.get(rtype)
        if layout is None:
            return record[2:]
        at, name_count = layout
        rdata = record[_RR_HEAD_SIZE:]
        parts = [rdata[:at]]
        for _ in range(name_count):
            end = at
            while size := rdata[end]:
                end += size + 1
            end += 1
            parts.append(self._name(rdata[at:end]))
            at = end
        parts.append(rdata[at:])
        written = b"".join(parts)
        return record[2:10] + len(written).to_bytes(2, "big") + written

    def _name(self, name: bytes) -> bytes:
        apex = self._apex
        if len(apex) > len(QUESTION_POINTER) and names.is_within(name, apex):
            return name[: -len(apex)] + QUESTION_POINTER
        return name


_WITH_NAMES = {
    rtype: layout for rtype in range(256) if (layout := records.compressible(rtype)) is not None
}
