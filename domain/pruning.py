"""Pruning: which rows of a log may go, and what the rest is vouched for by.

    positions 1 ... upto    go, but for the rows that present and future state need
    upto + 1 ... size       stay; the last is the leaf of a checkpoint, the anchor
    the tree                stays whole, in its tiles

So the snapshot that a pruned log begins with is made of the very rows that were hashed and signed:
of each object its newest content and status, with who wrote them and why, and of each stream its
newest row, so that versions go on. Each of them is proved by its leaf in the tree as before. Which
rows are kept is written beside the anchor and its digest into `log.pruned.v1`, which a checkpoint
signs in the same transaction: a row that is missing is told from one that was pruned, and one that
was put back is found.

Every state from `upto` on can be told, and every version of a zone that was stamped since.
"""

from collections.abc import Iterator
from hashlib import sha256

import msgspec

from kudurru.domain.chain import Redaction
from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.serials import is_serial
from kudurru.domain.events import (
    CLOCK_STEPPED,
    KEY_ADOPTED,
    LOG_EPOCH,
    LOG_PRUNED,
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_MOVED,
    OBJECT_STATUS,
    OBJECT_TYPES,
    PAYLOAD_REDACTED,
    PRUNING_KEY,
    Position,
    Recorded,
)
from kudurru.domain.kinds.registry import DNS_ZONE
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.object_store import decode_body, decode_status
from kudurru.domain.objects import Key
from kudurru.domain.ports import Anchor, EventLog
from kudurru.domain.tree import TILE_WIDTH

_ZONE_PREFIX = f"{DNS_ZONE.name}/"
_ALWAYS = frozenset({KEY_ADOPTED, LOG_EPOCH, CLOCK_STEPPED})
"""Few, and each of them says how to read what comes after it."""


class PrunedBody(msgspec.Struct, frozen=True):
    """Body of log.pruned.v1."""

    upto: int
    anchor: int  # size of the checkpoint
    kept: str  # SHA-256 of `Anchor.kept`, hex
    rows: int  # how many went

    def matches(self, anchor: Anchor) -> bool:
        found = (anchor.upto, anchor.size, digest_of(anchor))
        return found == (self.upto, self.anchor, self.kept)


def digest_of(anchor: Anchor) -> str:
    return sha256(anchor.kept).hexdigest()


def newest_pruning(log: EventLog) -> tuple[Position, PrunedBody] | None:
    """Position and body of the newest log.pruned.v1."""
    for event in log.read(key=PRUNING_KEY, newest_first=True):
        if event.type == LOG_PRUNED and event.body is not None:
            try:
                return event.seq, msgspec.json.decode(event.body, type=PrunedBody)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return None  # the verifier names it, and whatever is missing with it
    return None


def limit(before: int, newest_checkpoint: int) -> Position:
    """Up to where rows may go when all before a position are to: whole tiles, and never up to the
    newest checkpoint."""
    last = min(before, newest_checkpoint) - 1
    return Position(max(0, last - last % TILE_WIDTH))


class _End(msgspec.Struct):
    """Where an object left a zone, or was deleted."""

    seq: int
    zone: str


class _Stream(msgspec.Struct):
    """What is known of the newest life of an object."""

    newest: int = 0  # seq of its newest event
    applied: int = 0  # of its newest content, 0: it is gone
    status: int = 0
    content_of_status: int = 0  # seq of the content that the status was written for
    zone: str = ""  # that it is in; of a DNSZone its own name
    ends: list[_End] = msgspec.field(default_factory=list)  # in any of its lives
    deleted: int = 0  # where its life before this one ended


class _Content(msgspec.Struct):
    """What an object held in a zone that was stamped since."""

    seq: int
    until: int  # when it was replaced, or left the zone


class _Stamped(msgspec.Struct):
    """The newest version of a zone."""

    seq: int
    serial: int
    zone_content: int  # seq of the content of the DNSZone


class _Zone(msgspec.Struct):
    """A DNSZone that is there."""

    created: str
    name: str
    apex: Name
    type: str = ""
    is_served: bool = True


class Keeper:
    """Reads events in order, up to where rows go, and tells which of them stay.

    Those that make the state there, and those that make the newest stamped version of each zone:
    what was changed after the stamp has two contents that count.
    """

    def __init__(self) -> None:
        self._position = 0
        self._streams: dict[Key, _Stream] = {}
        self._facts: dict[Key, int] = {}
        self._always: list[int] = []
        self._redactions: list[tuple[int, range]] = []
        self._zones: dict[str, _Zone] = {}
        self._by_apex: dict[Name, set[str]] = {}
        self._serving: dict[Name, str] = {}  # which DNSZone a zone is served by
        self._stamps: dict[str, _Stamped] = {}  # of zones that are served, while they are
        self._contents: dict[tuple[str, Key], _Content] = {}
        self._zones_of: dict[Key, set[str]] = {}  # that there are contents in

    def feed(self, event: Recorded) -> None:
        self._position = event.seq
        if event.type in OBJECT_TYPES:
            self._feed_object(event)
            return
        self._facts[event.key] = event.seq
        if event.type in _ALWAYS:
            self._always.append(event.seq)
        elif event.type == PAYLOAD_REDACTED and event.body is not None:
            redaction = msgspec.json.decode(event.body, type=Redaction)
            self._redactions.append((event.seq, redaction.covers(event.seq - 1)))

    def _feed_object(self, event: Recorded) -> None:
        stream = self._streams.setdefault(event.key, _Stream())
        stream.newest = event.seq
        is_zone = event.key.startswith(_ZONE_PREFIX)
        match event.type:
            case t if t == OBJECT_APPLIED:
                self._replaced(event, stream)
                stream.applied, stream.zone = event.seq, event.scope.partition("/")[2]
                if is_zone and event.body is not None:
                    self._apply_zone(event, event.body)
            case t if t == OBJECT_STATUS:
                stream.status, stream.content_of_status = event.seq, stream.applied
                if is_zone:
                    self._stamp(event, stream)
            case t if t == OBJECT_MOVED:
                self._replaced(event, stream)
                stream.ends.append(_End(event.seq, stream.zone))
                stream.zone = ""
            case t if t == OBJECT_DELETED:
                self._replaced(event, stream)
                stream.ends.append(_End(event.seq, stream.zone))
                stream.deleted = event.seq
                stream.applied = stream.status = 0
                if is_zone:
                    self._delete_zone(event)

    def _replaced(self, event: Recorded, stream: _Stream) -> None:
        """What the object held may be part of a version that stays."""
        stamped = self._stamps.get(stream.zone) if stream.applied and stream.zone else None
        if stamped is not None and stream.applied < stamped.seq:
            self._contents[stream.zone, event.key] = _Content(stream.applied, event.seq)
            self._zones_of.setdefault(event.key, set()).add(stream.zone)

    # Which DNSZone serves a zone is elected as in `ZoneView`: while one does, its stamps count.

    def _apply_zone(self, event: Recorded, body: bytes) -> None:
        stored = decode_body(body)
        spec = msgspec.json.decode(stored.spec, type=DNSZoneSpec)
        name = event.scope.partition("/")[2]
        zone = self._zones.get(name)
        if zone is None:
            apex = names.key(names.from_text(spec.zone_name))
            zone = self._zones[name] = _Zone(stored.creation_timestamp, name, apex)
            self._by_apex.setdefault(apex, set()).add(name)
        is_served = spec.type != "Forward"
        if zone.type not in ("", spec.type) and is_served:
            # What is another type now is another zone: it begins anew.
            zone.is_served = False
            self._elect(zone.apex, event)
        zone.type, zone.is_served = spec.type, is_served
        self._elect(zone.apex, event)

    def _delete_zone(self, event: Recorded) -> None:
        # What is kept of the zone must end, or it would keep another one from being served.
        self._always.append(event.seq)
        zone = self._zones.pop(event.scope.partition("/")[2], None)
        if zone is not None:
            self._by_apex[zone.apex].discard(zone.name)
            self._elect(zone.apex, event)

    def _elect(self, apex: Name, event: Recorded) -> None:
        """The highest serial of a name is known from the zones that had it, also when they serve it
        no more: what they were when they were stamped last, and how that ended, stay."""
        there = [self._zones[name] for name in self._by_apex[apex]]
        first = min(there, key=lambda zone: (zone.created, zone.name), default=None)
        elected = first.name if first is not None and first.is_served else ""
        before = self._serving.get(apex, "")
        if elected == before:
            return
        self._serving[apex] = elected
        stamped = self._stamps.pop(before, None)
        if stamped is not None:
            self._always += [stamped.zone_content, stamped.seq, event.seq]

    def _stamp(self, event: Recorded, stream: _Stream) -> None:
        zone = self._zones.get(stream.zone)
        if event.body is None or zone is None or self._serving.get(zone.apex) != zone.name:
            return
        serial = decode_status(event.body).get("serial")
        before = self._stamps.get(stream.zone)
        if is_serial(serial) and (before is None or before.serial != serial):
            self._stamps[stream.zone] = _Stamped(event.seq, serial, stream.applied)

    def kept(self) -> bytes:
        """As in `Anchor`, of the events that were fed."""
        bits = bytearray(-(-self._position // 8))
        for seq in self._needed():
            bits[(seq - 1) >> 3] |= 1 << ((seq - 1) & 7)
        for seq, covered in reversed(self._redactions):
            # It excuses what is erased for as long as that is there.
            if any(bits[(one - 1) >> 3] >> ((one - 1) & 7) & 1 for one in covered):
                bits[(seq - 1) >> 3] |= 1 << ((seq - 1) & 7)
        return bytes(bits)

    def _needed(self) -> Iterator[int]:
        if self._position:
            yield self._position  # whose head the next row continues
        yield from self._always
        yield from self._facts.values()
        for stamped in self._stamps.values():
            yield stamped.seq
            yield stamped.zone_content
        for key, stream in self._streams.items():
            yield stream.newest
            if stream.applied:
                yield stream.applied
            if stream.deleted:
                yield stream.deleted
            earlier = list(self._earlier_contents(key, stream))
            yield from earlier
            if earlier:
                yield from (end.seq for end in stream.ends if end.seq > min(earlier))
            yield from self._departures(stream)

    def _departures(self, stream: _Stream) -> Iterator[int]:
        """Where an object left a zone that was stamped since, when the rest of it came later still:
        who is behind and has it in the zone must see it go before the stamp."""
        newest = stream.applied or stream.newest
        last = {end.zone: end for end in stream.ends}
        for zone, end in last.items():
            stamped = self._stamps.get(zone)
            if stamped is not None and end.seq < stamped.seq < newest:
                yield end.seq

    def _earlier_contents(self, key: Key, stream: _Stream) -> Iterator[int]:
        """Contents of an object that count beside its newest, and its status."""
        if stream.applied and stream.status:
            yield stream.status
            yield stream.content_of_status
        for zone in self._zones_of.get(key, ()):
            content, stamped = self._contents[zone, key], self._stamps.get(zone)
            if stamped and content.seq < stamped.seq < content.until:
                yield content.seq
