"""The rulebook of objects: `decide` says which events a command leads to, `evolve` folds them.

Both are pure. `decide` refuses with an error of `domain.errors` and then nothing happens; it
returns no event when nothing would change, because an apply every minute must not grow the log.
`evolve` never raises and never looks at a clock: what was accepted once replays for ever.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, assert_never

import msgspec

from kudurru.domain import codec
from kudurru.domain.commands import (
    ABSENT,
    Apply,
    Command,
    Delete,
    Observe,
    ObserveGone,
    Origin,
    RecordFact,
    Revert,
    UpdateStatus,
)
from kudurru.domain.dns import names
from kudurru.domain.errors import Cause, Conflict, Invalid, ManagedBy, NotFound
from kudurru.domain.events import (
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_MOVED,
    OBJECT_STATUS,
    Event,
    Position,
)
from kudurru.domain.kinds.meta import (
    API_VERSION,
    LAST_APPLIED,
    MANAGED_BY,
    NOT_UNICODE,
    PEOPLES_ANNOTATIONS,
    ObjectMeta,
    is_unicode,
)
from kudurru.domain.kinds.recordset import DNSRecordSetSpec
from kudurru.domain.kinds.registry import DNS_ZONE, KINDS
from kudurru.domain.kinds.stored import read_zone
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.kinds.zone import DNSZoneSpec, zone_warnings
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.reconcile.secondaries import manager_of as secondary_manager

Verb = Literal["created", "configured", "unchanged", "deleted", "recorded"]

DEFAULT_MANAGER = "kudurru"
CONTROLLER = "kudurru-controller"
MANAGER_MAX = 1024
_RESERVED_MANAGERS = frozenset({"external-dns", CONTROLLER})
_RESERVED_PREFIXES = ("update:", "mirror:", "secondary:", "catalog:", "dnsendpoint:")

EPOCH_SHIFT = 40

PENDING = "pending"
"""resourceVersion of an object whose newest event has no position yet: equal to none that a
caller can have read."""


def resource_version(epoch: int, seq: int) -> str:
    """Opaque to callers; with the epoch a position is never used twice."""
    return str((epoch << EPOCH_SHIFT) + seq)


def position_of(version: str, epoch: int) -> Position | None:
    """The position that a resourceVersion of this epoch means, None for any other text."""
    if not (version.isascii() and version.isdigit() and len(version) <= len(str(2**63))):
        return None
    of_epoch, seq = divmod(int(version), 1 << EPOCH_SHIFT)
    return Position(seq) if of_epoch == epoch else None


class AppliedBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Payload of obj.applied.v1: the object after the change, without its status. The manager is
    in the header of the event."""

    uid: str
    generation: int
    creation_timestamp: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    spec: Any
    origin: Origin | None = None


class StoredBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`AppliedBody` as it is read back: the spec stays octets until somebody needs it."""

    uid: str
    generation: int
    creation_timestamp: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    origin: Origin | None = None


class StatusBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Payload of obj.status.v1."""

    status: dict[str, Any]
    origin: Origin | None = None


class DeletedBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Payload of obj.deleted.v1."""

    uid: str
    origin: Origin | None = None


class MovedBody(msgspec.Struct, frozen=True):
    """Payload of obj.moved.v1, recorded in the scope that the object left."""

    to: str  # the scope it is in now


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object as the log has it now."""

    key: Key
    ver: int  # of its newest event in the stream
    resource_version: str
    manager: str
    scope: str
    body: StoredBody
    status: dict[str, Any] | None = None


class ObjectState(Protocol):
    """What `decide` asks about the present."""

    def find(self, key: Key) -> StoredObject | None: ...

    def version(self, key: Key) -> int:
        """Newest version of the stream, also when the object was deleted; 0 when never seen."""
        ...


class Outcome(msgspec.Struct, frozen=True):
    """What became of one command. `resource_version` is filled in once the events have a place;
    `warnings` say what is better thought over, or lost."""

    verb: Verb
    key: Key
    resource_version: str = ""
    warnings: tuple[str, ...] = ()


_decode_stored = msgspec.json.Decoder(StoredBody)
_decode_status = msgspec.json.Decoder(StatusBody)


def decode_body(body: bytes) -> StoredBody:
    return _decode_stored.decode(body)


def decode_status(body: bytes) -> dict[str, Any]:
    return _decode_status.decode(body).status


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """What an object is to hold."""

    spec: msgspec.Raw  # canonical JSON
    labels: dict[str, str]
    annotations: dict[str, str]
    manager: str
    created: str


# --- deciding -------------------------------------------------------------------------------


class Batch:
    """Decides commands in order, each seeing what the earlier ones led to.

    A refused command raises and leaves the batch as it was before that command; the caller drops
    the batch (all or nothing) or goes on with the next command (group commit).
    """

    def __init__(
        self, state: ObjectState, *, now_us: int, epoch: int, new_uid: Callable[[], str]
    ) -> None:
        self._state = state
        self._now_us = now_us
        self._epoch = epoch
        self._new_uid = new_uid
        self._led_to: dict[Key, tuple[Event, ...]] = {}
        self._zones: dict[Key, _ZoneFacts | None] = {}

    def nested(self) -> "Batch":
        """A batch on top of this one, for commands that happen together or not at all."""
        return Batch(self, now_us=self._now_us, epoch=self._epoch, new_uid=self._new_uid)

    def absorb(self, inner: "Batch") -> None:
        """Take over what a nested batch decided."""
        for key, events in inner._led_to.items():
            self._led_to[key] = self._led_to.get(key, ()) + events
            self._zones.pop(key, None)

    def find(self, key: Key) -> StoredObject | None:
        stored = self._state.find(key)
        for event in self._led_to.get(key, ()):
            stored = evolve(stored, event, PENDING)
        return stored

    def version(self, key: Key) -> int:
        events = self._led_to.get(key)
        return events[-1].ver if events else self._state.version(key)

    def decide(self, command: Command) -> tuple[list[Event], Outcome]:
        events, outcome = self.judge(command)
        self.note(events)
        return events, outcome

    def judge(self, command: Command) -> tuple[list[Event], Outcome]:
        """What a command would lead to. It has not, until it is noted."""
        match command:
            case Apply():
                return self._apply(command)
            case UpdateStatus():
                return self._update_status(command)
            case Delete():
                return self._delete(command)
            case Revert():
                return self._revert(command)
            case RecordFact():
                return self._record(command)
            case Observe():
                return self._observe(command)
            case ObserveGone():
                return self._observe_gone(command)
            case _:
                assert_never(command)

    def note(self, events: Sequence[Event]) -> None:
        """Let the events of one command have happened."""
        if events:
            key = events[0].key
            self._led_to[key] = (*self._led_to.get(key, ()), *events)
            self._zones.pop(key, None)

    def _apply(self, command: Apply) -> tuple[list[Event], Outcome]:
        manifest = command.manifest
        key = manifest.key
        stored = self.find(key)
        # The owner first: whoever does not own it has no business with its versions.
        if stored is not None and stored.manager != command.manager and not command.force:
            raise ManagedBy(str(ref_of(key)), stored.manager)
        _check_expected(key, command.expected, stored)
        self._check_zone_rules(key, manifest, stored, command.manager)
        written = _Written(
            spec=msgspec.Raw(codec.canonical(manifest.spec)),
            labels=manifest.meta.labels,
            annotations=annotations_after(
                manifest.meta.annotations, stored.body.annotations if stored else {}
            ),
            manager=command.manager,
            created=_time_text(self._now_us // 1_000_000),
        )
        events, outcome = self._write(key, manifest, stored, written)
        return events, _warned(outcome, manifest, stored)

    def _revert(self, command: Revert) -> tuple[list[Event], Outcome]:
        """What was in the log may come back, also where an Apply of it would be refused: a record
        set whose zone has become another shows as a problem, as it did then."""
        manifest = manifest_of(command.key, command.spec, command.labels, command.annotations)
        stored = self.find(command.key)
        self._check_zone_name(manifest, stored)
        if isinstance(manifest.spec, DNSRecordSetSpec):
            zone = manifest.spec.zone_ref.name
            self._check_not_secondary(command.key, zone, self._zone_named(zone), command.manager)
        written = _Written(
            spec=command.spec,
            labels=command.labels,
            annotations=command.annotations,
            manager=command.manager,
            created=command.created,
        )
        return self._write(command.key, manifest, stored, written)

    def _write(
        self, key: Key, manifest: Manifest, stored: StoredObject | None, written: "_Written"
    ) -> tuple[list[Event], Outcome]:
        """Events that give the object this content and owner; none where it has them."""
        scope = scope_of(manifest)
        body = AppliedBody(
            uid=stored.body.uid if stored else self._new_uid(),
            generation=stored.body.generation if stored else 1,
            creation_timestamp=stored.body.creation_timestamp if stored else written.created,
            labels=written.labels,
            annotations=written.annotations,
            spec=written.spec,
        )
        if stored is None:
            return [self._event(OBJECT_APPLIED, key, scope, written.manager, body)], Outcome(
                "created", key
            )
        if bytes(written.spec) != bytes(stored.body.spec):
            body = msgspec.structs.replace(body, generation=body.generation + 1)
        elif (
            stored.manager == written.manager
            and stored.body.labels == written.labels
            and stored.body.annotations == written.annotations
        ):
            return [], Outcome("unchanged", key, stored.resource_version)
        events = []
        if scope != stored.scope:
            events.append(
                self._event(OBJECT_MOVED, key, stored.scope, written.manager, MovedBody(scope))
            )
        events.append(
            self._event(OBJECT_APPLIED, key, scope, written.manager, body, after=len(events))
        )
        return events, Outcome("configured", key)

    def _observe(self, command: Observe) -> tuple[list[Event], Outcome]:
        manifest, meta = command.manifest, command.manifest.meta
        key, stored = manifest.key, self.find(manifest.key)
        events: list[Event] = []
        if stored is not None and stored.body.uid != meta.uid:
            # It was deleted and made again, and only the end of that was seen.
            events.append(self._gone(stored, command.origin))
        before = stored if not events else None
        body = AppliedBody(
            uid=meta.uid,
            generation=meta.generation,
            creation_timestamp=meta.creation_timestamp,
            labels=meta.labels,
            annotations=annotations_after(meta.annotations, {}),
            spec=msgspec.Raw(codec.canonical(manifest.spec)),
            origin=command.origin,
        )
        scope = scope_of(manifest)
        is_same = before is not None and _is_same(before, body, command.manager)
        if not is_same:
            if before is not None and scope != before.scope:
                moved = MovedBody(scope)
                events.append(self._event(OBJECT_MOVED, key, before.scope, command.manager, moved))
            at = len(events)
            events.append(self._event(OBJECT_APPLIED, key, scope, command.manager, body, after=at))
        there = (before.status if before else None) or {}
        if command.status is not None and command.status != there:
            said = StatusBody(command.status, command.origin)
            at = len(events)
            events.append(self._event(OBJECT_STATUS, key, scope, command.manager, said, after=at))
        if not events:
            assert stored is not None
            outcome = Outcome("unchanged", key, stored.resource_version)
        else:
            outcome = Outcome("created" if stored is None else "configured", key)
        return events, _warned(outcome, manifest, before)

    def _observe_gone(self, command: ObserveGone) -> tuple[list[Event], Outcome]:
        stored = self.find(command.key)
        if stored is None:
            return [], Outcome("unchanged", command.key)
        return [self._gone(stored, command.origin)], Outcome("deleted", command.key)

    def _gone(self, stored: StoredObject, origin: Origin) -> Event:
        body = DeletedBody(stored.body.uid, origin)
        return self._event(OBJECT_DELETED, stored.key, stored.scope, stored.manager, body)

    def _record(self, command: RecordFact) -> tuple[list[Event], Outcome]:
        before = self.version(command.key)
        if command.ver != before + 1:
            there = "is there already" if command.ver == 1 else f"is at version {before}"
            raise Conflict(f"{ref_of(command.key)} {there}")
        event = Event(
            command.type, command.key, command.ver, command.scope, command.manager, command.body
        )
        return [event], Outcome("recorded", command.key)

    def _update_status(self, command: UpdateStatus) -> tuple[list[Event], Outcome]:
        stored = self.find(command.key)
        if stored is None:
            raise NotFound(f"{ref_of(command.key)} does not exist")
        _check_expected(command.key, command.expected, stored)
        # A caller that has no status to compare with wrote {}: both are "none".
        if (stored.status or {}) == command.status:
            return [], Outcome("unchanged", command.key, stored.resource_version)
        event = self._event(
            OBJECT_STATUS, command.key, stored.scope, stored.manager, StatusBody(command.status)
        )
        return [event], Outcome("configured", command.key)

    def _delete(self, command: Delete) -> tuple[list[Event], Outcome]:
        stored = self.find(command.key)
        if stored is None:
            raise NotFound(f"{ref_of(command.key)} does not exist")
        foreign = command.manager is not None and stored.manager != command.manager
        if foreign and not command.force:
            raise ManagedBy(str(ref_of(command.key)), stored.manager)
        _check_expected(command.key, command.expected, stored)
        zone = stored.scope.partition("/")[2]
        if command.manager is not None and stored.manager == secondary_manager(zone):
            self._check_not_secondary(command.key, zone, self._zone_named(zone), command.manager)
        event = self._event(
            OBJECT_DELETED,
            command.key,
            stored.scope,
            stored.manager,
            DeletedBody(stored.body.uid),
        )
        return [event], Outcome("deleted", command.key)

    def _event(
        self, type_: str, key: Key, scope: str, manager: str, body: Any, after: int = 0
    ) -> Event:
        return Event(
            type_, key, self.version(key) + 1 + after, scope, manager, codec.canonical(body)
        )

    def _check_zone_rules(
        self, key: Key, manifest: Manifest, stored: StoredObject | None, manager: str
    ) -> None:
        spec = manifest.spec
        if isinstance(spec, DNSRecordSetSpec):
            zone = spec.zone_ref.name
            known = self._zone_named(zone)
            if known is not None:
                _check_inside(manifest, spec, known)
                self._check_not_secondary(key, zone, known, manager)
        else:
            self._check_zone_name(manifest, stored)

    @staticmethod
    def _check_not_secondary(
        key: Key, zone: str, known: "_ZoneFacts | None", manager: str | None
    ) -> None:
        """What a secondary zone holds comes from its primary, whoever may write here."""
        if known is not None and known.is_secondary and manager != secondary_manager(zone):
            why = f"{zone} is Secondary: its records come from its primary, change them there"
            raise Invalid(str(ref_of(key)), [Cause("spec.zoneRef.name", why)])

    def _check_zone_name(self, manifest: Manifest, stored: StoredObject | None) -> None:
        spec = manifest.spec
        if isinstance(spec, DNSZoneSpec) and stored is not None:
            before = read_zone(stored.body.spec)
            if _apex(before) != _apex(spec):
                _refuse(
                    manifest,
                    Cause(
                        "spec.zoneName",
                        f"immutable: it is {before.zone_name!r}; "
                        "make a new DNSZone and delete this one",
                    ),
                )

    def _zone_named(self, name: str) -> "_ZoneFacts | None":
        return self._zone(key_of(DNS_ZONE.name, "", name))

    def _zone(self, key: Key) -> "_ZoneFacts | None":
        if key not in self._zones:
            if key not in self._led_to and isinstance(self._state, Batch):
                self._zones[key] = self._state._zone(key)  # who may know it already
            else:
                stored = self.find(key)
                self._zones[key] = _zone_facts(stored) if stored else None
        return self._zones[key]


def _warned(outcome: Outcome, manifest: Manifest, before: StoredObject | None) -> Outcome:
    if not isinstance(manifest.spec, DNSZoneSpec):
        return outcome
    was = read_zone(before.body.spec) if before is not None else None
    return msgspec.structs.replace(outcome, warnings=tuple(zone_warnings(manifest.spec, was)))


def _check_inside(manifest: Manifest, spec: DNSRecordSetSpec, zone: "_ZoneFacts") -> None:
    """Records outside their zone are refused while the zone is known. A record set may come before
    its zone; what is then outside shows as a problem in its status."""
    apex, suffix = zone.apex, f".{zone.apex_text}"
    causes = [
        Cause(
            f"spec.endpoints[{i}].dnsName",
            f"{endpoint.dns_name!r} is outside the zone {zone.apex_text}",
        )
        for i, endpoint in enumerate(spec.endpoints)
        if not _is_below(endpoint.dns_name, suffix)
        and not names.is_within(names.key(names.from_text(endpoint.dns_name)), apex)
    ]
    if causes:
        _refuse(manifest, *causes)


def _is_same(stored: StoredObject, body: AppliedBody, manager: str) -> bool:
    """Whether an object is what an observation says, whatever version it has there."""
    there = stored.body
    return (
        bytes(there.spec) == bytes(body.spec)
        and there.labels == body.labels
        and there.annotations == body.annotations
        and there.generation == body.generation
        and stored.manager == manager
    )


def _is_below(text: str, suffix: str) -> bool:
    """Whether a name is surely below a zone, as its text tells: the usual case, ten times as cheap
    as its octets. An escaped dot before the suffix would deceive it."""
    return "\\" not in text and text.endswith((suffix, suffix[:-1]))


@lru_cache(1)  # of a second, in which many things are made
def _time_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _ZoneFacts(NamedTuple):
    """What the rules of record sets ask of their zone."""

    apex: names.Name
    apex_text: str
    is_secondary: bool


def _zone_facts(stored: StoredObject) -> _ZoneFacts:
    spec = read_zone(stored.body.spec)
    apex = _apex(spec)
    return _ZoneFacts(apex, names.to_text(apex), spec.type == "Secondary")


def _apex(spec: DNSZoneSpec) -> names.Name:
    return names.key(names.from_text(spec.zone_name))


def _refuse(manifest: Manifest, *causes: Cause) -> NoReturn:
    raise Invalid(str(ref_of(manifest.key)), causes)


def _check_expected(key: Key, expected: str | None, stored: StoredObject | None) -> None:
    if expected is None:
        return
    if stored is None:
        if expected == ABSENT:
            return
        raise Conflict(f"{ref_of(key)} does not exist, resourceVersion {expected} was expected")
    if expected == ABSENT:
        raise Conflict(f"{ref_of(key)} exists, and was expected not to")
    if stored.resource_version != expected:
        raise Conflict(
            f"{ref_of(key)} is at resourceVersion {stored.resource_version}, "
            f"{expected} was expected; read it again"
        )


def annotations_after(given: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """What an Apply that gives annotations makes of those that are there: what belongs to people
    stays unless it is given, what the store sets is never taken from a caller."""
    if not given and not before:
        return {}
    kept = {name: before[name] for name in PEOPLES_ANNOTATIONS if name in before}
    return {
        name: value
        for name, value in {**kept, **given}.items()
        if name not in (MANAGED_BY, LAST_APPLIED)
    }


def manifest_of(
    key: Key, spec: msgspec.Raw, labels: dict[str, str], annotations: dict[str, str]
) -> Manifest:
    """The manifest of what was recorded. Raises Invalid where this version does not allow it: the
    rules of the version that recorded it may have been laxer."""
    ref = ref_of(key)
    kind = KINDS[ref.kind]
    meta = ObjectMeta(
        name=ref.name, namespace=ref.namespace, labels=labels, annotations=annotations
    )
    try:
        decoded = msgspec.json.decode(spec, type=kind.spec)
    except msgspec.ValidationError as error:
        raise Invalid(str(ref), [Cause("spec", str(error))]) from None
    if causes := list(kind.faults(decoded)):
        raise Invalid(str(ref), causes)
    return Manifest(kind=kind, meta=meta, spec=decoded)


def scope_of(manifest: Manifest) -> str:
    """`namespace/zone`: where an event counts when one zone is read as of a moment."""
    if isinstance(manifest.spec, DNSRecordSetSpec):
        return f"{manifest.meta.namespace}/{manifest.spec.zone_ref.name}"
    if manifest.kind is DNS_ZONE:
        return f"/{manifest.meta.name}"
    return f"{manifest.meta.namespace}/"


def manager_faults(manager: str, *, from_outside: bool = True) -> Iterator[Cause]:
    """Of a manager name. Some names are for parts of this program only."""
    if not manager:
        yield Cause("manager", "empty")
    if not is_unicode(manager):
        yield Cause("manager", NOT_UNICODE)
    if len(manager) > MANAGER_MAX:
        yield Cause("manager", f"{len(manager)} characters; at most {MANAGER_MAX}")
    is_reserved = manager in _RESERVED_MANAGERS or manager.startswith(_RESERVED_PREFIXES)
    if from_outside and is_reserved:
        yield Cause("manager", f"{manager!r} is reserved; choose another name")


# --- folding --------------------------------------------------------------------------------


def evolve(stored: StoredObject | None, event: Any, version: str) -> StoredObject | None:
    """The object after an event (`Event` or `Recorded`); None when it is gone.

    `version` is the resourceVersion that the event's position means. An erased payload leaves the
    object as it was: a live object's spec is never erased.
    """
    if event.body is None:
        return stored
    match event.type:
        case "obj.applied.v1":
            return StoredObject(
                key=event.key,
                ver=event.ver,
                resource_version=version,
                manager=event.manager,
                scope=event.scope,
                body=decode_body(event.body),
                status=stored.status if stored else None,
            )
        case "obj.status.v1" if stored is not None:
            return msgspec.structs.replace(
                stored,
                ver=event.ver,
                resource_version=version,
                status=decode_status(event.body),
            )
        case "obj.moved.v1" if stored is not None:
            return msgspec.structs.replace(stored, ver=event.ver, resource_version=version)
        case "obj.deleted.v1":
            return None
        case _:
            return stored


def to_document(stored: StoredObject) -> dict[str, Any]:
    """The object as people see it: builtins in the shape of Kubernetes, and the caller's own."""
    document = to_encodable(stored)
    document["spec"] = msgspec.json.decode(stored.body.spec)
    if stored.status is not None:
        document["status"] = msgspec.json.decode(msgspec.json.encode(stored.status))
    return document


def to_encodable(stored: StoredObject) -> dict[str, Any]:
    """The same, only to be encoded by msgspec: the spec is JSON already."""
    ref = ref_of(stored.key)
    body = stored.body
    meta: dict[str, Any] = {"name": ref.name}
    if ref.namespace:
        meta["namespace"] = ref.namespace
    meta["uid"] = body.uid
    meta["resourceVersion"] = stored.resource_version
    meta["generation"] = body.generation
    meta["creationTimestamp"] = body.creation_timestamp
    if body.labels:
        meta["labels"] = dict(body.labels)
    meta["annotations"] = {MANAGED_BY: stored.manager, **body.annotations}
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": ref.kind,
        "metadata": meta,
        "spec": body.spec,
    }
    if stored.status is not None:
        document["status"] = stored.status
    return document
