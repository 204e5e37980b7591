"""Zones as they were served at a position, each read from its own events when it is asked for.

Which zones there were takes one look at every DNSZone's first event; everything else of one zone
is found through the index of scopes. So what a name answered is told without replaying the log.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.errors import Redacted
from kudurru.domain.events import (
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_MOVED,
    OBJECT_STATUS,
    Recorded,
)
from kudurru.domain.kinds.registry import DNS_ZONE
from kudurru.domain.object_store import decode_body, decode_status
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import EventLog
from kudurru.projections import as_of
from kudurru.projections.objects_view import ObjectsView
from kudurru.projections.zone_state import ZoneState
from kudurru.projections.zone_view import ZoneView


class TooLarge(Exception):
    """A zone has more events than may be read for an answer."""


class ZonesAsOf(ZoneSet):
    """Zones served at a position, also before their first serial. Time stands at the moment of
    its event, or where it is told."""

    def __init__(
        self,
        log: EventLog,
        upto: int,
        *,
        now_s: int | None = None,
        events_max: int | None = None,
    ) -> None:
        """With `events_max`, zones of more events raise TooLarge."""
        super().__init__()
        self._log = log
        self._upto = upto
        self._events_max = events_max
        self.events_read = 0
        if now_s is None:
            event = log.get(upto)
            now_s = event.ts // 1_000_000 if event else 0
        self.now_s = now_s
        self._elected = _elected(as_of.zone_births(log, upto))
        self._unread = set(self._elected)

    def get(self, apex_key: bytes) -> Zone | None:
        if apex_key in self._unread:
            self._unread.discard(apex_key)
            state = self.load(self._elected[apex_key])
            if state.spec.forward is not None:
                self.forward(Name(apex_key), tuple(state.spec.forward.upstreams))
            elif state.zone is not None and self.shows(state):
                self.add(state.zone)
        return super().get(apex_key)

    def shows(self, state: ZoneState) -> bool:  # noqa: ARG002  # not all of them in others
        """Whether a zone is answered from."""
        return True

    def is_unread(self, apex_key: bytes) -> bool:
        """Whether `get` has to read it first."""
        return apex_key in self._unread

    def find(self, key: bytes) -> Zone | None:
        while (zone := self.get(key)) is None:
            if key == names.ROOT or key in self.forwards:
                return None
            key = key[key[0] + 1 :]
        return zone

    def is_forwarded(self, key: bytes, zone: Zone) -> bool:
        above = key
        while above != zone.key:
            self.get(above)  # or it is not known yet
            above = above[above[0] + 1 :]
        return super().is_forwarded(key, zone)

    def is_elected(self, apex_key: bytes, name: str) -> bool:
        """Whether a DNSZone is the one of those with its zone name that has it."""
        return self._elected.get(apex_key) == name

    def load(self, name: str) -> ZoneState:
        """The state of a DNSZone that is there. Its zone is None when it is no primary."""
        key = key_of(DNS_ZONE.name, "", name)
        found = as_of.events_of(self._log, name, upto=self._upto)
        events = list(islice(found, self._events_max))
        if self._events_max is not None and next(found, None) is not None:
            raise TooLarge(name)
        self.events_read += len(events)
        fed: dict[int, Recorded] = {event.seq: event for event in _essence(events, key)}
        objects = ObjectsView(fed.get, self._log.epoch)
        view = ZoneView(objects, fed.get)
        for event in fed.values():
            view.apply(event)
            objects.apply(event)
        view.advance(self.now_s)
        state = view.state(name)
        if state is None:
            raise Redacted(f"what DNSZone {name} was at position {self._upto} was redacted")
        return state


def _elected(births: Iterable[Recorded]) -> dict[bytes, str]:
    """Name of the DNSZone that has each apex: the earliest, as `ZoneView` elects."""
    found: dict[Name, tuple[str, str]] = {}
    for born in births:
        apex = as_of.apex_of(born)
        if apex is None or born.body is None:
            continue
        one = (decode_body(born.body).creation_timestamp, ref_of(born.key).name)
        found[apex] = min(one, found.get(apex, one))
    return {apex: name for apex, (_, name) in found.items()}


def _essence(events: list[Recorded], zone: Key) -> Iterator[Recorded]:
    """The events that make the newest and the stamped version: of each object the last before the
    last stamp, the stamp, and what came after it."""
    stamp = next((i for i in range(len(events) - 1, -1, -1) if _is_stamp(events[i], zone)), None)
    before = events[:stamp] if stamp is not None else []
    last: dict[Key, Recorded] = {}
    for event in before:
        if event.type == OBJECT_APPLIED:
            last[event.key] = event
        elif event.type in (OBJECT_DELETED, OBJECT_MOVED):
            last.pop(event.key, None)
    # The zone first: its record sets need not wait for it then.
    yield from sorted(last.values(), key=lambda event: (event.key != zone, event.seq))
    for event in events[len(before) :]:
        if event.type == OBJECT_MOVED:
            # It left. Where it went is another zone's matter.
            yield msgspec.structs.replace(event, type=OBJECT_DELETED)
        elif event.type != OBJECT_STATUS or event.key == zone:
            yield event


def _is_stamp(event: Recorded, zone: Key) -> bool:
    return (
        event.type == OBJECT_STATUS
        and event.key == zone
        and event.body is not None
        and decode_status(event.body).get("serial") is not None
    )
