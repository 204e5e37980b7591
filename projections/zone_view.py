"""Zones as they are served, from DNSZone and DNSRecordSet events.

The view holds answer-ready zones and, per owner name, which record sets it comes from; everything
else is read from the log when an owner has to be worked out again. It comes before the objects view
in a follower, and so sees the objects as they were before the event at hand.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from typing import Any

import msgspec

from kudurru.domain import zone_model
from kudurru.domain.chain import Redaction
from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.serials import SERIAL_BITS, is_serial
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Delta, Zone
from kudurru.domain.events import (
    CONTENT_TYPES,
    LOG_PRUNED,
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_MOVED,
    OBJECT_STATUS,
    PAYLOAD_REDACTED,
    Position,
    Recorded,
)
from kudurru.domain.kinds.meta import Reason
from kudurru.domain.kinds.recordset import DNSRecordSetSpec, EndpointProblem
from kudurru.domain.kinds.stored import read_record_set_body, read_zone
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.object_store import decode_body, decode_status
from kudurru.domain.objects import Key, name_of
from kudurru.domain.ports import Origins
from kudurru.domain.pruning import PrunedBody
from kudurru.domain.reconcile.secondaries import is_expired, soa_from_status
from kudurru.domain.set_digest import SetDigest
from kudurru.domain.zone_model import Contribution, Parsed
from kudurru.projections.objects_view import ObjectsView
from kudurru.projections.zone_history import (
    HistoryFrame,
    ZoneHistory,
    dump_versions,
    load_versions,
)
from kudurru.projections.zone_state import PART_NODES, ZoneState, dump_state, load_state

_ZONE_PREFIX = "DNSZone/"
_SET_PREFIX = "DNSRecordSet/"

Endpoints = dict[Name, tuple[Parsed, ...]]
Expiry = tuple[int, str, Name]
"""Unix time, name of the DNSZone, and owner to work out again then."""


OnChange = Callable[[Origins], None]
OnStamp = Callable[[ZoneState, Position, object], None]


class ZoneView:
    """Implements `projections.follow.Projection`. `on_change` is told what changed of what is
    served, before the change is acknowledged: answers that come of it are dropped there."""

    name = "zones"

    def __init__(
        self,
        objects: ObjectsView,
        read_event: Callable[[int], Recorded | None],
        on_change: OnChange = lambda _changed: None,
    ) -> None:
        self._objects = objects
        self._read_event = read_event
        self._on_change = on_change
        self.served = ZoneSet()
        self.on_judged: Callable[[Key], None] | None = None
        """Called with zones and record sets of which something else is to be said now, in the
        middle of an event."""
        self._on_stamp: OnStamp | None = None
        self._is_told_later = self._has_changed = False
        self.reset()

    def reset(self) -> None:
        self.position = Position(0)
        self.now_s = 0
        self.served.show()
        for zone in list(self.served):
            self.served.remove(zone.key)
        for apex in list(self.served.forwards):
            self.served.forward(apex, None)
        self.history = ZoneHistory()
        self._states: dict[str, ZoneState] = {}  # by object name
        self._by_apex: dict[Name, list[ZoneState]] = {}
        self._waiting: dict[str, set[Key]] = {}  # record sets whose zone is not served, by zone
        self._problems: dict[Key, dict[Name, list[EndpointProblem]]] = {}
        self._expiries: list[Expiry] = []  # heap
        self._scheduled: set[Expiry] = set()  # what the heap holds
        self._unknown: dict[Key, str] = {}  # objects whose content was redacted, and their zone
        self._several: set[Key] = set()  # record sets that have several owners
        self._touched: set[str] = set()  # zones that may hold more than their serial says
        self._shows_unstamped = False
        self.served.note_change(None)
        self._on_change(self.served.changes())

    # --- following ----------------------------------------------------------------------

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """What happens inside is served when it ends, whole, and not before."""
        self.served.hold()
        try:
            yield
        finally:
            self.served.show()
            self._changed()

    @contextmanager
    def told_once(self) -> Iterator[None]:
        """What changes inside is served at once, and `on_change` is called at the end, after an
        exception too: for a few events between which nobody asks."""
        self._is_told_later = True
        try:
            yield
        except BaseException:
            self._has_changed = True
            self.served.note_change(None)  # who knows how far it came
            raise
        finally:
            self._is_told_later = False
            if self._has_changed:
                self._has_changed = False
                self._changed()

    @contextmanager
    def stamps_told(self, on_stamp: OnStamp) -> Iterator[None]:
        """Inside, each version is told as soon as it was stamped: its zone, the seq of the stamp,
        and the content hash that the stamp gives it, whatever that is."""
        self._on_stamp = on_stamp
        try:
            yield
        finally:
            self._on_stamp = None

    def _changed(self) -> None:
        if self._is_told_later:
            self._has_changed = True
        elif not self.served.is_held:
            self._on_change(self.served.changes())

    def apply(self, event: Recorded) -> None:
        now_s = event.ts // 1_000_000
        if now_s > self.now_s:
            self.advance(now_s)
        self.position = event.seq
        key, body = event.key, event.body
        if body is None:
            self._apply_erased(event)
        elif key.startswith(_SET_PREFIX):
            if event.type in CONTENT_TYPES:
                self._apply_set(event, body)
        elif key.startswith(_ZONE_PREFIX):
            self._apply_zone(event, body)
        elif event.type == PAYLOAD_REDACTED:
            # What was erased is in the changes between versions too, of whatever zone had the name
            # then; and a replay makes others, as it never sees it. Both are forgotten here.
            if msgspec.json.decode(body, type=Redaction).part == "body":
                self.history.forget_changes()
        elif event.type == LOG_PRUNED:
            pruned = msgspec.json.decode(body, type=PrunedBody)
            self.history.forget_before(Position(pruned.upto))

    def advance(self, now_s: int) -> None:
        if now_s <= self.now_s:
            return
        self.now_s = now_s
        while self._expiries and self._expiries[0][0] <= now_s:
            expiry = heapq.heappop(self._expiries)
            self._scheduled.remove(expiry)
            _, name, owner = expiry
            state = self._states.get(name)
            if state is not None and state.zone is not None:
                self._rebuild(state, state.zone, owner)
                self._changed()

    def _apply_erased(self, event: Recorded) -> None:
        """An old content that was redacted. Nobody knows what the zone served then; from the next
        content of the object on it is known again."""
        if event.type != OBJECT_APPLIED:
            return
        self._unknown[event.key] = event.scope.partition("/")[2]
        before = self._stored(event.key) if event.key.startswith(_SET_PREFIX) else None
        if before is not None:
            self._remove(event.key, before[1])

    def is_known(self, name: str) -> bool:
        """Whether nothing was redacted of what a zone is made of now."""
        return name not in self._unknown.values()

    def next_expiry_s(self) -> int | None:
        """When a record will go away by itself, seconds UTC."""
        return self._expiries[0][0] if self._expiries else None

    def digest(self) -> str:
        whole = SetDigest()
        for state in self._states.values():
            parts = [state.key, state.created]
            if state.zone is not None:
                parts += [state.zone.digest(), str(state.zone.serial)]
                parts += [] if state.zone.is_available else ["unavailable"]
                parts.append(_digest_of_nodes(state.zone.stamped_nodes()))
            whole.add("\0".join([*parts, *sorted(state.unselected)]).encode())
        for name, keys in self._waiting.items():
            for key in keys:
                whole.add(f"waiting\0{name}\0{key}".encode())
        for key in self._problems:
            for problem in self._noted_problems(key):
                whole.add(key.encode() + msgspec.json.encode(problem))
        whole.add(self.history.digest().encode())
        return whole.hexdigest()

    # --- snapshots ----------------------------------------------------------------------

    def dump(self) -> Iterator[bytes]:
        """The view, then each zone, then each history; the large ones in several parts. Keys of
        objects are numbers, their places in the objects view."""
        places = {key: i for i, key in enumerate(self._objects.in_order())}
        yield msgspec.msgpack.encode(
            _Dump(
                self.position,
                self.now_s,
                list(self._states),
                list(self.history.zones()),
                self.history.frame(),
                self._waiting,
                self._problems,
                self._expiries,
                self._unknown,
                sorted(self._touched),
                [places[key] for key in self._several],
            )
        )
        for state in self._states.values():
            yield from dump_state(state, places)
        for apex in self.history.zones():
            yield from dump_versions(self.history.packed(apex))

    def load(self, parts: Iterator[bytes]) -> None:
        """After the objects view."""
        found = _decode_dump(next(parts))
        keys = list(self._objects.in_order())
        for name in found.states:
            state = self._states[name] = load_state(parts, keys)
            self._by_apex.setdefault(state.apex, []).append(state)
        for apex in self._by_apex:
            self._note_forward(apex)
            self._show(apex)
        versions = {apex: load_versions(parts) for apex in found.histories}
        self.history = ZoneHistory.of(found.history, versions)
        self._waiting, self._problems = found.waiting, found.problems
        self._expiries, self._scheduled = found.expiries, set(found.expiries)
        self._unknown, self._touched = found.unknown, set(found.touched)
        self._several = {keys[place] for place in found.several}
        self.now_s, self.position = found.now_s, found.position
        self._changed()

    # --- reading ------------------------------------------------------------------------

    @property
    def forwards(self) -> Mapping[Name, tuple[str, ...]]:
        """Upstreams of zones of type Forward, by key of their name, as they are shown with the
        zones. Replaced when it changes."""
        return self.served.forwards

    def states(self) -> Iterable[ZoneState]:
        return self._states.values()

    def state(self, name: str) -> ZoneState | None:
        """By the name of the DNSZone object."""
        return self._states.get(name)

    def find(self, name: str) -> ZoneState | None:
        """The zone that people mean: by object name, else by DNS name."""
        if name in self._states:
            return self._states[name]
        try:
            apex = names.key(names.from_text(name))
        except names.BadName:
            return None
        states = self._by_apex.get(apex, [])
        return next((s for s in states if s.zone is not None), states[0] if states else None)

    def withhold(self, name: str) -> None:
        """Do not answer from a secondary zone until its next status: it has expired, whether the
        log could be told or not."""
        state = self._states.get(name)
        if state is not None and state.zone is not None and state.spec.type == "Secondary":
            self.served.before_change(state.zone)
            state.zone.is_available = False
            self._changed()

    def waiting(self) -> dict[str, set[Key]]:
        """Record sets whose zone is not served, by name of the DNSZone. Do not change it."""
        return self._waiting

    def serving(self, apex: Name) -> ZoneState | None:
        """The DNSZone that serves a name, by its key."""
        states = self._by_apex.get(apex, ())
        return next((state for state in states if state.zone is not None), None)

    def problems(self, key: Key) -> list[EndpointProblem]:
        """What is wrong with a record set, in order of owners."""
        loaded = self._stored(key)
        if loaded is not None:
            zone = loaded[1].zone_ref.name
            state = self._states.get(zone)
            if state is None or state.zone is None:
                return [_zone_not_found(zone, state)]
            if not state.allows_set(key):
                return [_not_selected(state)]
        return self._noted_problems(key)

    def unserved_sets(self) -> list[Key]:
        """Record sets that are not served, or not all of them."""
        noted = {key for key, found in self._problems.items() if any(found.values())}
        return sorted(noted.union(*self._waiting.values()))

    def _noted_problems(self, key: Key) -> list[EndpointProblem]:
        found = self._problems.get(key, {})
        return [problem for owner in sorted(found) for problem in found[owner]]

    def holder(self, apex: Name) -> ZoneState | None:
        """The earliest DNSZone of a name, by its key: the one that has it, whatever its type."""
        states = self._by_apex.get(apex, ())
        return min(states, key=_precedence, default=None)

    def reason(self, key: Key) -> Reason:
        """Why a record set that has problems is not served as it says: the first of them."""
        by_owner = self._problems[key]
        return by_owner[min(by_owner)][0].reason

    def with_problems(self) -> list[Key]:
        """Record sets that have problems."""
        unserved: list[Iterable[Key]] = [*self._waiting.values()]
        unserved += [state.unselected for state in self._states.values()]
        return [*self._problems, *(key for keys in unserved for key in keys)]

    def unstamped(self) -> list[ZoneState]:
        """Primary zones whose newest content is not what their serial says. The serial of a
        secondary is its primary's."""
        states = (self._states.get(name) for name in sorted(self._touched))
        ours = (s for s in states if s and s.spec.type == "Primary")
        found = [s for s in ours if s.zone and s.zone.has_unstamped_changes()]
        self._touched = {s.name for s in found}
        return found

    def settle_some(self, count: int) -> None:
        """Bring the digests of zones up to what is in them, by so many owners at most: what a stamp
        would do all at once. It looks at as many zones at most."""
        for name in islice(self._touched, count):
            state = self._states.get(name)
            if state is not None and state.zone is not None:
                count -= state.zone.settle_some(count)
            if not count:
                return

    def show_unstamped(self) -> None:
        """Serve zones that have no serial yet, too, until one is written: it cannot be now."""
        self._shows_unstamped = True
        for apex in self._by_apex:
            self._show(apex)

    # --- zones --------------------------------------------------------------------------

    def _apply_zone(self, event: Recorded, octets: bytes) -> None:
        name = name_of(event.key)
        if event.type != OBJECT_STATUS:
            self._unknown.pop(event.key, None)
        if event.type == OBJECT_APPLIED:
            body = decode_body(octets)
            spec = read_zone(body.spec)
            state = self._states.get(name)
            if state is None:
                state = ZoneState(event.key, body.creation_timestamp, spec)
                self._states[name] = state
                self._by_apex.setdefault(state.apex, []).append(state)
            else:
                self._change_zone(state, spec)
            self._elect(state.apex)
            self._note_forward(state.apex)
        elif event.type == OBJECT_DELETED and name in self._states:
            state = self._states.pop(name)
            if state.zone is not None:
                self._withdraw(state)
            left = [s for s in self._by_apex[state.apex] if s is not state]
            if left:
                self._by_apex[state.apex] = left
                self._elect(state.apex)
            else:
                del self._by_apex[state.apex]
                self._show(state.apex)
            self._note_forward(state.apex)
        elif event.type == OBJECT_STATUS and name in self._states:
            self._stamp(self._states[name], event, octets)

    def _note_forward(self, apex: Name) -> None:
        """Whether a name is sent elsewhere: by the zone that has it."""
        states = self._by_apex.get(apex, ())
        first = min(states, key=_precedence, default=None)
        forward = first.spec.forward if first is not None else None
        upstreams = tuple(forward.upstreams) if forward is not None else None
        if self.served.forward(apex, upstreams):
            self._changed()

    def _change_zone(self, state: ZoneState, spec: DNSZoneSpec) -> None:
        """Another spec for a known zone: only a change that reaches every record works them all
        out again."""
        before, state.spec = state.spec, spec
        zone = state.zone
        if zone is None:
            return
        self._touched.add(state.name)
        self.served.before_change(zone)
        if spec.type != before.type:
            self._withdraw(state)
        elif (spec.default_ttl, spec.allowed_namespaces) != (
            before.default_ttl,
            before.allowed_namespaces,
        ):
            self._set_soa(state, zone)
            keys = self._keys_of(state)
            self._clear_sources(state, zone)
            self._populate(state, zone, keys)
        else:
            self._set_soa(state, zone)
            self._rebuild(state, zone, state.apex)
        self._changed()

    def _set_soa(self, state: ZoneState, zone: Zone) -> None:
        if state.spec.type == "Primary":
            zone.set_soa(zone_model.soa_of(state.spec))

    def _elect(self, apex: Name) -> None:
        """The earliest of the DNSZones with this name has it. A primary is served at once, a
        secondary as it was transferred."""
        states = self._by_apex[apex]
        first = min(states, key=_precedence)
        for state in states:
            if state is not first and state.zone is not None:
                self._withdraw(state)
            self._tell([state.key])
        if first.spec.type != "Forward" and first.zone is None:
            zone = Zone(names.from_text(first.spec.zone_name), zone_model.soa_of(first.spec))
            first.zone = zone
            self._touched.add(first.name)
            waiting = self._waiting.pop(first.name, set())
            self._tell(waiting)
            self._populate(first, zone, waiting)
            if first.spec.type == "Secondary":
                stored = self._objects.find(first.key)
                zone.is_available, version = _version_of(zone, stored.status if stored else None)
                self._take_version(zone, version)
        self._show(apex)

    def _show(self, apex: Name) -> None:
        """Serve who has the name. What was served there before stays until the first serial of a
        zone that takes its place; where nothing was, a secondary answers that it is not ready."""
        state = next((s for s in self._by_apex.get(apex, ()) if s.zone is not None), None)
        if state is None:
            self.served.remove(apex)
        elif state.zone is not None and (
            state.is_shown or self._shows_unstamped or self._awaits(state)
        ):
            self.served.add(state.zone)
        self._changed()

    def _awaits(self, state: ZoneState) -> bool:
        """Whether a secondary is still to be transferred to where nothing is served."""
        return state.spec.type == "Secondary" and self.served.get(state.apex) is None

    def _withdraw(self, state: ZoneState) -> None:
        """Stop serving; its record sets wait for a zone of that name. A zone that is served again
        has no serial at first, so its versions until now lead nowhere."""
        keys = self._keys_of(state)
        self._tell([state.key, *keys])
        if keys:
            self._waiting[state.name] = keys
        for key in keys:
            self._problems.pop(key, None)
        state.sources.clear()
        state.unselected.clear()
        state.troubled.clear()
        state.zone = None
        self.history.forget(state.apex)

    def _keys_of(self, state: ZoneState) -> set[Key]:
        return state.unselected | state.record_sets()

    def _clear_sources(self, state: ZoneState, zone: Zone) -> None:
        self._tell(state.unselected)
        for key in self._keys_of(state):
            self._problems.pop(key, None)
        for owner in list(state.sources):
            if names.is_within(owner, state.apex):
                zone.replace(owner, ())
        state.sources.clear()
        state.unselected.clear()
        if state.troubled:
            self._tell([state.key, *state.troubled])
            state.troubled.clear()

    def _populate(self, state: ZoneState, zone: Zone, keys: Iterable[Key]) -> None:
        zone.replace(state.apex, zone_model.apex_rrsets(state.spec))
        for key in sorted(keys):
            loaded = self._load(key)
            if loaded is not None:
                self._include(state, zone, key, *loaded)

    def _stamp(self, state: ZoneState, event: Recorded, body: bytes) -> None:
        zone, status = state.zone, decode_status(body)
        if zone is not None and state.spec.type == "Secondary":
            is_available, version = _version_of(zone, status)
            if version is None and is_available == zone.is_available:
                return  # it was refreshed, which says nothing new of what is served
            self.served.before_change(zone)
            zone.is_available = is_available
            delta = self._take_version(zone, version)
            if delta is not None:
                self.history.add(state.apex, delta, event.seq, event.ts)
                self._tell_stamp(state, event.seq, status)
            self._show(state.apex)
            return
        # Only the serial is looked at: whatever else a status holds, the zone is served.
        serial = status.get("serial")
        if zone is None or not is_serial(serial) or serial == zone.serial:
            return
        self.served.before_change(zone)
        delta = zone.stamp(serial)
        self.history.add(state.apex, delta, event.seq, event.ts)
        self._tell_stamp(state, event.seq, status)
        self._shows_unstamped = False
        if delta.from_serial is None:
            self._show(state.apex)
        else:
            self._changed()

    @staticmethod
    def _take_version(zone: Zone, version: tuple[int, Soa] | None) -> Delta | None:
        """Let a secondary zone be this version. What became of the version before, where there was
        one; None where it is the same, or was healed."""
        if version is None:
            return None
        serial, soa = version
        is_same = zone.stamped_soa is not None and serial == zone.serial
        zone.set_soa(soa)
        delta = zone.stamp(serial)
        return None if is_same else delta

    # --- record sets --------------------------------------------------------------------

    def _apply_set(self, event: Recorded, body: bytes) -> None:
        key = event.key
        if self._unknown and event.type != OBJECT_MOVED:
            self._unknown.pop(key, None)
        if event.type != OBJECT_APPLIED:  # after it moved it comes in anew elsewhere
            before = self._stored(key)
            if before is not None:
                self._remove(key, before[1])
            return
        created, spec = read_record_set_body(body)
        if self._apply_plain(key, spec):
            return
        endpoints = zone_model.parse_endpoints(spec)
        if self._apply_in_place(key, created, spec.zone_ref.name, endpoints):
            return
        before = self._stored(key)
        if before is not None and before[1] == spec:
            return
        if before is not None:
            self._remove(key, before[1], keep=endpoints, zone=spec.zone_ref.name)
        if not endpoints:
            return  # it takes part in nothing, and would be noted in some histories only
        state = self._states.get(spec.zone_ref.name)
        if state is None or state.zone is None:
            self._waiting.setdefault(spec.zone_ref.name, set()).add(key)
            self._tell([key])
            return
        self._include(state, state.zone, key, created, endpoints)
        self._changed()

    def _apply_plain(self, key: Key, spec: DNSRecordSetSpec) -> bool:
        """Whether a record set had and has one owner all to itself, or is new and the first there,
        and was taken in. So it is with nearly every change, and all that has to be done then is
        to let the owner hold what the record set says."""
        state = self._states.get(spec.zone_ref.name)
        if state is None or (zone := state.zone) is None or key in self._several:
            return False
        plain = zone_model.plain_rrsets(spec, state.apex, state.spec.default_ttl)
        if plain is None or key in self._problems:
            return False
        owner, owner_key, rrsets = plain
        source = state.sources.get(owner_key)
        if source is None:
            if self._objects.entry(key) is not None or state.spec.allowed_namespaces is not None:
                return False
            state.sources[owner_key] = key
        elif source != key:
            return False
        self._touched.add(state.name)
        self.served.before_change(zone)
        zone.replace(owner, rrsets)
        self._changed()
        return True

    def _apply_in_place(self, key: Key, created: str, name: str, endpoints: Endpoints) -> bool:
        """Whether a record set has the one owner that it had before, in the zone that it was in,
        and was taken in anew. So it is with nearly every change, and what was before need not be
        read from the log."""
        state = self._states.get(name)
        if len(endpoints) != 1 or key in self._several or state is None or state.zone is None:
            return False
        ((owner, parsed),) = endpoints.items()
        found = state.sources.get(owner)
        if found != key and (not isinstance(found, tuple) or key not in found):
            return False
        self._forget_problems(key, state)
        self._rebuild(state, state.zone, owner, Contribution(created, key, parsed))
        self._changed()
        return True

    def _stored(self, key: Key) -> tuple[str, DNSRecordSetSpec] | None:
        """When a record set was made, and its spec, before the event at hand."""
        entry = self._objects.entry(key)
        event = self._read_event(entry.applied) if entry else None
        if event is None or event.body is None:  # pruned or redacted
            return None
        return read_record_set_body(event.body)

    def _load(self, key: Key) -> tuple[str, Endpoints] | None:
        before = self._stored(key)
        return (before[0], zone_model.parse_endpoints(before[1])) if before is not None else None

    def _include(
        self, state: ZoneState, zone: Zone, key: Key, created: str, endpoints: Endpoints
    ) -> None:
        """Let a record set take part in its zone."""
        if not state.allows_set(key):
            state.unselected.add(key)
            self._tell([key])
            return
        if len(endpoints) > 1:
            self._several.add(key)
        for owner, parsed in endpoints.items():
            state.add_source(owner, key)
            self._rebuild(state, zone, owner, Contribution(created, key, parsed))

    def _remove(
        self,
        key: Key,
        spec: DNSRecordSetSpec,
        *,
        keep: Iterable[Name] = (),
        zone: str = "",
    ) -> None:
        """Take a record set out of its zone. Owners in `keep` are not worked out again when it
        stays in that `zone`: including it anew does so in one step, and the next query never sees
        the name without it."""
        name = spec.zone_ref.name
        self._forget_problems(key, self._states.get(name))
        self._several.discard(key)
        waiting = self._waiting.get(name)
        if waiting is not None:
            waiting.discard(key)
            if not waiting:
                del self._waiting[name]
        state = self._states.get(name)
        if state is None or state.zone is None:
            return
        state.unselected.discard(key)
        kept = set(keep) if zone == name and state.allows_set(key) else set()
        for owner in zone_model.parse_endpoints(spec):
            state.remove_source(owner, key)
            if owner not in kept:
                self._rebuild(state, state.zone, owner)
        self._changed()

    def _rebuild(
        self, state: ZoneState, zone: Zone, owner: Name, known: Contribution | None = None
    ) -> None:
        """Work out what one owner serves, from all its record sets. One of them may be `known`."""
        self._touched.add(state.name)
        self.served.before_change(zone)
        if known is not None and state.sources.get(owner) == known.key:
            contributions = [known]
        else:
            found = (
                known if known is not None and known.key == key else self._contribution(key, owner)
                for key in state.sources_of(owner)
            )
            contributions = [contribution for contribution in found if contribution is not None]
        resolved = zone_model.resolve_owner(
            contributions,
            owner_key=owner,
            apex_key=state.apex,
            default_ttl=state.spec.default_ttl,
            now_s=self.now_s,
            takes_apex_ns=state.spec.type == "Secondary",
        )
        if resolved.problems or self._problems:
            self._note_problems(state, owner, contributions, resolved.problems)
        if resolved.next_expiry_s is not None:
            self._schedule((resolved.next_expiry_s, state.name, owner))
        if owner == state.apex:
            zone.replace(zone.apex, zone_model.apex_rrsets(state.spec) + resolved.rrsets)
        elif resolved.owner is not None:
            zone.replace(resolved.owner, resolved.rrsets)
        elif names.is_within(owner, state.apex):
            zone.replace(owner, ())

    def _schedule(self, expiry: Expiry) -> None:
        # Once each: a record set that is written every minute must not grow the heap.
        if expiry not in self._scheduled:
            self._scheduled.add(expiry)
            heapq.heappush(self._expiries, expiry)

    def _contribution(self, key: Key, owner: Name) -> Contribution | None:
        loaded = self._load(key)
        if loaded is None or owner not in loaded[1]:
            return None
        return Contribution(loaded[0], key, loaded[1][owner])

    def _note_problems(
        self,
        state: ZoneState,
        owner: Name,
        contributions: Iterable[Contribution],
        problems: dict[Key, list[EndpointProblem]],
    ) -> None:
        for contribution in contributions:
            key, found = contribution.key, problems.get(contribution.key)
            there = self._problems.get(key, {})
            if there.get(owner) == found:
                continue
            self._tell([key, state.key])
            if found:
                self._problems.setdefault(key, {})[owner] = found
                state.troubled.add(key)
            else:
                del there[owner]
                if not there:
                    del self._problems[key]
                    state.troubled.discard(key)

    def _forget_problems(self, key: Key, state: ZoneState | None) -> None:
        if self._problems.pop(key, None) is not None and state is not None:
            state.troubled.discard(key)
            self._tell([key, state.key])

    def _tell_stamp(self, state: ZoneState, seq: Position, status: dict[str, Any]) -> None:
        if self._on_stamp is not None:
            self._on_stamp(state, seq, status.get("contentHash"))

    def _tell(self, keys: Iterable[Key]) -> None:
        if self.on_judged is not None:
            for key in keys:
                self.on_judged(key)


def _version_of(zone: Zone, status: dict[str, Any] | None) -> tuple[bool, tuple[int, Soa] | None]:
    """Whether a secondary zone with this status is answered from, and serial and SOA of the version
    that it names, where the zone is to be stamped with them."""
    serial, soa = (status or {}).get("serial"), soa_from_status(status)
    if soa is None or not isinstance(serial, int) or not 0 <= serial < 1 << SERIAL_BITS:
        return False, None
    is_available = not is_expired(status)
    if serial == zone.serial and soa == zone.stamped_soa:
        # What a restore changed is no version; what was fetched again under its serial is.
        said = (status or {}).get("contentHash")
        if not zone.has_unstamped_changes() or zone.digest() != said:
            return is_available, None
    return is_available, (serial, soa)


def _digest_of_nodes(nodes: Iterable[tuple[bytes, bytes]]) -> str:
    """Of owners and their images. Not `Zone.digest`, which is kept up to date with every change:
    this one is of what there is."""
    found, rest = sha256(), iter(sorted((names.key(owner), image) for owner, image in nodes))
    while some := list(islice(rest, PART_NODES)):
        found.update(msgspec.msgpack.encode(some))
    return found.hexdigest()


def _precedence(state: ZoneState) -> tuple[str, str]:
    return state.created, state.name


def _zone_not_found(name: str, state: ZoneState | None) -> EndpointProblem:
    if state is None:
        why = f"there is no DNSZone {name!r}: spec.zoneRef.name"
    elif state.spec.type == "Primary":
        why = f"DNSZone {name} is not served: an earlier one has the name {state.spec.zone_name}"
    else:
        why = f"DNSZone {name} is of type {state.spec.type}, which takes no record sets"
    return EndpointProblem(dns_name="", record_type="", reason="ZoneNotFound", message=why)


def _not_selected(state: ZoneState) -> EndpointProblem:
    return EndpointProblem(
        dns_name=state.spec.zone_name,
        record_type="",
        reason="NotSelected",
        message=f"DNSZone {state.name} does not allow this namespace: spec.allowedNamespaces",
    )


class _Dump(msgspec.Struct, frozen=True, array_like=True):
    """All of the view but its zones and the versions of their histories, which follow."""

    position: Position
    now_s: int
    states: list[str]  # in the order of the parts
    histories: list[Name]
    history: HistoryFrame
    waiting: dict[str, set[Key]]
    problems: dict[Key, dict[Name, list[EndpointProblem]]]
    expiries: list[Expiry]
    unknown: dict[Key, str]
    touched: list[str]
    several: list[int]  # places


_decode_dump = msgspec.msgpack.Decoder(_Dump).decode
