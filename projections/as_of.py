"""Objects as of a position, read from the log without building every view.

One object is the newest event of its stream; the objects of a zone or a namespace are found
through the index of scopes. Only what has no such narrow way (a kind, labels, everything) reads
the whole log.
"""

from collections.abc import Callable, Iterator
from heapq import merge

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.errors import NotFound
from kudurru.domain.events import (
    CONTENT_TYPES,
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_MOVED,
    OBJECT_STATUS,
    OBJECT_TYPES,
    Recorded,
)
from kudurru.domain.kinds.registry import DNS_ZONE
from kudurru.domain.kinds.stored import read_zone
from kudurru.domain.object_store import (
    StoredObject,
    decode_body,
    decode_status,
    resource_version,
)
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.ports import EventLog
from kudurru.domain.restore import Done, Scope
from kudurru.domain.selectors import parse_selector


class Known(msgspec.Struct, frozen=True, gc=False):
    """The events that make an object what it is."""

    applied: Recorded
    newest: Recorded
    status: Recorded | None = None

    @property
    def erased(self) -> str:
        """Why the object cannot be told, where it cannot."""
        if self.applied.body is not None:
            return ""
        return f"its payload at position {self.applied.seq} was redacted"

    def stored(self, epoch: int) -> StoredObject:
        applied, status = self.applied, self.status
        assert applied.body is not None
        return StoredObject(
            key=applied.key,
            ver=self.newest.ver,
            resource_version=resource_version(epoch, self.newest.seq),
            manager=applied.manager,
            scope=applied.scope,
            body=decode_body(applied.body),
            status=decode_status(status.body) if status and status.body else None,
        )


class Between(msgspec.Struct, frozen=True):
    """The objects of a scope at two positions. `unknown`: objects whose first state cannot be told,
    with the reason."""

    then: dict[Key, StoredObject]
    now: dict[Key, StoredObject]
    unknown: dict[Key, str]


def find(log: EventLog, key: Key, upto: int, *, with_status: bool = True) -> Known | None:
    """One object, None when it was not there. Its status may be much older than its content, and
    takes longer to find."""
    newest = applied = status = None
    for event in log.read(0, upto, key=key, newest_first=True):
        newest = newest or event
        if event.type == OBJECT_APPLIED:
            applied = applied or event
        elif event.type == OBJECT_STATUS:
            status = status or event
        elif event.type == OBJECT_DELETED:
            break
        if applied is not None and (status is not None or not with_status):
            break
    return Known(applied, newest, status) if applied and newest else None


def state(log: EventLog, key: Key, upto: int) -> StoredObject | None:
    """`find` without what was erased."""
    known = find(log, key, upto)
    return known.stored(log.epoch) if known is not None and not known.erased else None


def objects(
    log: EventLog,
    scope: Scope,
    upto: int,
    erased: Callable[[Key, str], None] = lambda key, why: None,  # noqa: ARG005  # told to nobody
) -> dict[Key, StoredObject]:
    """The objects of a scope, in order of their keys, with their status. `erased` is told of those
    that were there and cannot be shown, and why."""
    fold = _read(log, scope, upto)
    matches = parse_selector(scope.selector)
    found = {}
    for key, known in sorted(fold.known.items()):
        if not scope.covers(key, known.applied.scope):
            continue
        if known.erased:
            erased(key, known.erased)
        else:
            found[key] = known.stored(log.epoch)
    return {key: stored for key, stored in found.items() if matches(stored.body.labels)}


def between(log: EventLog, scope: Scope, first: int, last: int) -> Between:
    """The objects of a scope at two positions. An object that is in the scope at one of them is
    given for both, wherever it was at the other. Statuses are not to be relied on."""
    fold = _read(log, scope, last, note_at=first)
    then = {key: k for key, k in fold.noted.items() if scope.covers(key, k.applied.scope)}
    now = {key: k for key, k in fold.known.items() if scope.covers(key, k.applied.scope)}
    if not fold.is_whole:
        for key in now.keys() - then.keys():
            if key in fold.noted_elsewhere or fold.first_version[key] > 1:
                _add(then, key, find(log, key, first, with_status=False))
        for key in then.keys() - now.keys():
            _add(now, key, find(log, key, last, with_status=False))
    unknown = {key: known.erased for key, known in then.items() if known.erased}
    found = Between(
        {key: k.stored(log.epoch) for key, k in then.items() if key not in unknown},
        {key: k.stored(log.epoch) for key, k in now.items() if not k.erased},
        unknown,
    )
    return _selected(found, scope.selector) if scope.selector else found


def _add(into: dict[Key, Known], key: Key, known: Known | None) -> None:
    if known is not None:
        into[key] = known


def _selected(found: Between, selector: str) -> Between:
    """What the labels of either moment select."""
    matches = parse_selector(selector)
    keys = {
        key
        for side in (found.then, found.now)
        for key, stored in side.items()
        if matches(stored.body.labels)
    }
    return Between(
        {key: stored for key, stored in found.then.items() if key in keys},
        {key: stored for key, stored in found.now.items() if key in keys},
        {key: reason for key, reason in found.unknown.items() if key in keys},
    )


class _Fold:
    """Takes in the events of a scope, in order."""

    def __init__(self, note_at: int | None) -> None:
        self.known: dict[Key, Known] = {}
        self.first_version: dict[Key, int] = {}
        self.noted: dict[Key, Known] = {}
        self.noted_elsewhere: set[Key] = set()
        """Objects that were in the scope before the noted position and were not at it."""
        self.is_whole = False  # whether all events were read, not those of some scopes
        self._note_at = note_at
        self._has_noted = note_at is None

    def feed(self, events: Iterator[Recorded]) -> None:
        for event in events:
            if not self._has_noted and event.seq > (self._note_at or 0):
                self.note()
            if event.type in OBJECT_TYPES:
                self._take(event)
        if not self._has_noted:
            self.note()

    def note(self) -> None:
        self._has_noted = True
        self.noted = dict(self.known)
        self.noted_elsewhere = self.first_version.keys() - self.known.keys()

    def _take(self, event: Recorded) -> None:
        key, type_ = event.key, event.type
        before = self.known.get(key)
        self.first_version.setdefault(key, event.ver)
        if type_ == OBJECT_APPLIED:
            self.known[key] = Known(event, event, before.status if before else None)
        elif before is None:
            return
        elif type_ == OBJECT_STATUS:
            self.known[key] = Known(before.applied, event, event)
        elif type_ == OBJECT_DELETED or not self.is_whole:
            # Where it moved to shows by its next event, if that scope is read too.
            del self.known[key]
        else:
            self.known[key] = Known(before.applied, event, before.status)


def _read(log: EventLog, scope: Scope, upto: int, *, note_at: int | None = None) -> _Fold:
    fold = _Fold(note_at)
    if scope.keys:
        fold.is_whole = True
        streams = [log.read(0, upto, key=key) for key in scope.keys]
        fold.feed(merge(*streams, key=lambda event: event.seq))
    elif scope.zone or scope.namespace:
        fold.feed(events_of(log, scope.zone, scope.namespace, upto=upto))
    else:
        fold.is_whole = True
        fold.feed(log.read(0, upto))
    return fold


def events_of(
    log: EventLog,
    zone: str = "",
    namespace: str = "",
    *,
    after: int = 0,
    upto: int | None = None,
    newest_first: bool = False,
) -> Iterator[Recorded]:
    """Events in the scopes of a zone, a namespace or a zone in a namespace, in order."""
    streams = [
        log.read(after, upto, scope=scope, newest_first=newest_first)
        for scope in log.scopes()
        if _is_in(scope, zone, namespace)
    ]
    if len(streams) == 1:
        return streams[0]
    return merge(*streams, key=lambda event: event.seq, reverse=newest_first)


def _is_in(scope: str, zone: str, namespace: str) -> bool:
    of_namespace, _, of_zone = scope.partition("/")
    return zone in ("", of_zone) and namespace in ("", of_namespace)


def moved_since(log: EventLog, scope: Scope, base: int, *, but_by: str) -> Recorded | None:
    """The first change of a scope after a position, but for those of a cause."""
    for event in log.read(base):
        if event.type in CONTENT_TYPES and cause_of(event) != but_by and scope.moved_by(event):
            return event
    return None


def cause_of(event: Recorded) -> str:
    if event.who is None:
        return ""
    return msgspec.json.decode(event.who, type=_Cause).cause


class _Cause(msgspec.Struct):
    cause: str = ""


# --- zones ----------------------------------------------------------------------------------


def zone_named(log: EventLog, name: str, *positions: int) -> str:
    """Name of the DNSZone that people mean, by object name or by DNS name, at the first position
    where there is one. Raises NotFound."""
    plain = name.rstrip(".").lower()
    try:
        apex = names.key(names.from_text(name))
    except names.BadName:
        apex = None
    for position in positions:
        births = list(zone_births(log, position))
        by_name = [ref_of(event.key).name for event in births]
        if plain in by_name:
            return plain
        for event, object_name in zip(births, by_name, strict=True):
            if apex is not None and apex_of(event) == apex:
                return object_name
    raise no_zone(name)


def no_zone(name: str) -> NotFound:
    """What to tell of a name that no zone has."""
    return NotFound(f"there is no zone {name!r}, and was none then; name it as `get zone` does")


def zone_births(log: EventLog, upto: int) -> Iterator[Recorded]:
    """Of each DNSZone that is there at a position the event that made it, in no order. Where that
    was redacted, the first of its contents that was not: what is asked of it here never changes."""
    for born in log.births(DNS_ZONE.name, upto):
        yield born if born.body is not None else _first_readable(log, born)


def _first_readable(log: EventLog, born: Recorded) -> Recorded:
    for event in log.read(born.seq, key=born.key):
        if event.type == OBJECT_DELETED:
            break
        if event.type == OBJECT_APPLIED and event.body is not None:
            return event
    return born


def apex_of(born: Recorded) -> Name | None:
    """Zone name, as a key, of a DNSZone by the event that made it; it is immutable. None where
    all that tells it was redacted."""
    if born.body is None:
        return None
    spec = read_zone(decode_body(born.body).spec)
    return names.key(names.from_text(spec.zone_name))


def last_serial(log: EventLog, zone: Key, upto: int | None = None) -> int | None:
    """The serial that a DNSZone had last, also when it was deleted since; None before the first."""
    for event in log.read(0, upto, key=zone, newest_first=True):
        if event.type == OBJECT_STATUS and event.body is not None:
            serial = decode_status(event.body).get("serial")
            if isinstance(serial, int):
                return serial
    return None


def last_stamp(log: EventLog, zone: Key, upto: int | None = None) -> tuple[int, int]:
    """The serial that a DNSZone had last, and the position where it got it; zeros when it had
    none."""
    serial = at = 0
    for event in log.read(0, upto, key=zone, newest_first=True):
        if event.type != OBJECT_STATUS or event.body is None:
            continue
        found = decode_status(event.body).get("serial")
        if not isinstance(found, int) or (serial and found != serial):
            break
        serial, at = found, event.seq
    return serial, at


# --- what was done --------------------------------------------------------------------------


def done_by(log: EventLog, events: Iterator[Recorded], base: int) -> Iterator[Done]:
    """What events did to each object together. They stand in order; between two of them of one
    object nothing else happened to it, or that is a later change."""
    spans: dict[Key, list[Recorded]] = {}
    for event in events:
        if event.type in OBJECT_TYPES and event.type != OBJECT_STATUS:
            spans.setdefault(event.key, []).append(event)
    for key, own in spans.items():
        first, last = own[0].seq, own[-1].seq
        before, after, now = (
            find(log, key, upto, with_status=False) for upto in (first - 1, last, base)
        )
        yield Done(
            key=key,
            before=before.stored(log.epoch) if before and not before.erased else None,
            after=after.stored(log.epoch) if after and not after.erased else None,
            now=now.stored(log.epoch) if now and not now.erased else None,
            changed_at=_changed_at(log, key, last),
            unknown=before.erased if before else "",
        )


def _changed_at(log: EventLog, key: Key, after: int) -> int:
    """Position of the newest change of an object after one, 0 when there is none."""
    for event in log.read(after, key=key, newest_first=True):
        if event.type in (OBJECT_APPLIED, OBJECT_DELETED, OBJECT_MOVED):
            return event.seq
    return 0
