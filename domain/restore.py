"""Restore and undo: a plan of what would change, decided from two states and nothing else.

A restore appends: ordinary apply and delete events bring objects back to a state they had, between
a `restore.begun.v1` and a `restore.done.v1`. Spec, labels and annotations come back; status,
generation, uid, resourceVersion and serials never do. An object that is there keeps its owner; one
that is not comes back under the owner it had, with a new uid and its old creationTimestamp, so that
contested names fall as they did. Restoring twice is a no-op, because a plan holds differences only.

An undo reverts what one change set, or one restore, did: only where the object is still as that
left it. It gives an object back to the owner it was taken from.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Literal

import msgspec

from kudurru.domain.codec import canonical
from kudurru.domain.commands import Command, Delete, RecordFact, Revert
from kudurru.domain.differences import differences
from kudurru.domain.dns import names
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.events import (
    CONTENT_TYPES,
    RESTORE_BEGUN,
    RESTORE_DONE,
    Event,
    Recorded,
)
from kudurru.domain.kinds.registry import DNS_ZONE, KINDS
from kudurru.domain.kinds.stored import read_zone
from kudurru.domain.object_store import DEFAULT_MANAGER, StoredObject, manifest_of
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.selectors import parse_selector
from kudurru.domain.set_digest import SetDigest

ONE_TRANSACTION_MAX = 10_000
"""Objects that are restored as one change set; above it there is one for each zone, or a reader
of the log would wait for the longest of all."""

Action = Literal["create", "update", "delete", "replace"]
Objects = Mapping[Key, StoredObject]


class Scope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which objects are meant: those that every given part selects."""

    zone: str = ""  # name of the DNSZone: it and its record sets
    namespace: str = ""
    kind: str = ""
    selector: str = ""  # by labels, as they were or as they are
    keys: tuple[Key, ...] = ()
    everything: bool = False  # said in so many words

    def check(self) -> None:
        """Raises Invalid when nothing narrows it and nobody said that all is meant."""
        narrowed = bool(self.zone or self.namespace or self.kind or self.selector or self.keys)
        if narrowed == self.everything:
            say = "give either --all or a zone, a namespace, a kind, a selector or objects"
            raise Invalid("scope", [Cause("", say)])
        parse_selector(self.selector)

    def covers(self, key: Key, scope: str) -> bool:
        """Whether an object, or an event of it in a scope of the log, is meant. Labels are not
        asked."""
        kind = key.partition("/")[0]
        namespace, _, zone = scope.partition("/")
        return (
            kind in KINDS
            and self.zone in ("", zone)
            and self.namespace in ("", namespace)
            and self.kind in ("", kind)
            and (not self.keys or key in self.keys)
        )

    def moved_by(self, event: Event | Recorded) -> bool:
        """Whether an event changes what a plan for this scope was made of."""
        return (
            event.type in CONTENT_TYPES
            and self.covers(event.key, event.scope)
            and _is_restored(event.key)
        )

    def __str__(self) -> str:
        parts = [
            f"zone {self.zone}" if self.zone else "",
            f"namespace {self.namespace}" if self.namespace else "",
            f"kind {self.kind}" if self.kind else "",
            f"labels {self.selector}" if self.selector else "",
            ", ".join(str(ref_of(key)) for key in self.keys),
        ]
        return "; ".join(filter(None, parts)) or "everything"

    @property
    def event_scope(self) -> str:
        """Scope of the events that begin and end a restore, for the history of the zone."""
        return f"{self.namespace}/{self.zone}"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to one object. `replace` is delete and create, for a zone of another name."""

    key: Key
    action: Action
    then: StoredObject | None
    now: StoredObject | None
    owner: str  # afterwards, or at last

    @property
    def zone(self) -> str:
        stored = self.then or self.now
        assert stored is not None
        return stored.scope.partition("/")[2]

    def changes(self) -> Iterator[dict[str, Any]]:
        return differences(content(self.now), content(self.then))


class Skipped(msgspec.Struct, frozen=True):
    key: Key
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done. `base` is the position that it was made at."""

    verb: Literal["restore", "undo"]
    target: str  # of a restore the position, of an undo what it reverts
    base: int
    scope: Scope
    steps: tuple[Step, ...]
    skipped: tuple[Skipped, ...]

    def digest(self) -> str:
        """Of everything that is to be done, and of what it was decided from, but for `base`: what
        happened elsewhere since does not make a plan stale."""
        steps = [
            [
                step.key,
                step.action,
                step.owner,
                _content_digest(step.now),
                _content_digest(step.then),
            ]
            for step in self.steps
        ]
        skipped = [[one.key, one.reason] for one in self.skipped]
        what = [self.verb, self.target, msgspec.to_builtins(self.scope), steps, skipped]
        return sha256(canonical(what)).hexdigest()[:32]

    def parts(self) -> list[tuple[Step, ...]]:
        """Steps that happen together or not at all."""
        if len(self.steps) <= ONE_TRANSACTION_MAX:
            return [self.steps] if self.steps else []
        zones: dict[str, list[Step]] = {}
        for step in self.steps:
            zones.setdefault(step.zone, []).append(step)
        return [tuple(steps) for _, steps in sorted(zones.items())]


# --- planning -------------------------------------------------------------------------------


def plan_restore(
    *,
    target: int,
    base: int,
    scope: Scope,
    then: Objects,
    now: Objects,
    unknown: Mapping[Key, str],
    force: bool,
) -> Plan:
    """Plan that makes the objects of a scope what they were. `unknown`: objects whose state then
    cannot be told, with the reason."""
    steps, skipped = [], []
    for key in sorted(then.keys() | now.keys() | unknown.keys()):
        if not _is_restored(key):
            continue
        was, is_ = then.get(key), now.get(key)
        reason = unknown.get(key) or _why_not(was, is_, force=force)
        if reason:
            skipped.append(Skipped(key, reason))
        elif step := _step(key, was, is_, owner=(is_ or was)):
            steps.append(step)
    return Plan(
        verb="restore",
        target=str(target),
        base=base,
        scope=scope,
        steps=tuple(steps),
        skipped=tuple(skipped),
    )


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a change set, or a restore, did to one object, and what it is now."""

    key: Key
    before: StoredObject | None
    after: StoredObject | None
    now: StoredObject | None
    changed_at: int = 0  # position of a later change, 0 when there is none
    unknown: str = ""  # why the state before cannot be told


def plan_undo(*, what: str, base: int, done: Iterable[Done]) -> Plan:
    """Plan that reverts what was done. Objects that changed since are conflicts: skipped."""
    steps, skipped = [], []
    for one in sorted(done, key=lambda one: one.key):
        if _is_same(one.now, one.before, with_owner=True):
            continue
        reason = one.unknown
        if not _is_restored(one.key):
            reason = "rights are given and taken, not undone"
        elif not _is_same(one.now, one.after, with_owner=True):
            at = f", last at position {one.changed_at}" if one.changed_at else ""
            reason = f"changed since{at}"
        elif not reason and one.before is not None:
            reason = _no_longer_valid(one.before)
        if reason:
            skipped.append(Skipped(one.key, reason))
        elif step := _step(one.key, one.before, one.now, owner=(one.before or one.now)):
            steps.append(step)
    return Plan(
        verb="undo",
        target=what,
        base=base,
        scope=Scope(keys=tuple(sorted(step.key for step in steps))),
        steps=tuple(steps),
        skipped=tuple(skipped),
    )


def _is_restored(key: Key) -> bool:
    return KINDS[ref_of(key).kind].is_restored


def _why_not(then: StoredObject | None, now: StoredObject | None, *, force: bool) -> str:
    """Why an object is left as it is; empty when it is not."""
    if then is None or _is_same(now, then):
        return ""
    if now is not None and now.manager != then.manager and not force:
        return (
            f"owned by {now.manager!r} now and by {then.manager!r} then; "
            "--force gives the content back, the owner stays"
        )
    return _no_longer_valid(then)


def _no_longer_valid(then: StoredObject) -> str:
    try:
        manifest_of(then.key, then.body.spec, then.body.labels, then.body.annotations)
    except Invalid as error:
        return f"this version does not allow it: {error.causes[0]}"
    return ""


def _step(
    key: Key, then: StoredObject | None, now: StoredObject | None, *, owner: StoredObject | None
) -> Step | None:
    if owner is None or _is_same(now, then, with_owner=owner is then):
        return None
    action: Action = "update"
    if then is None:
        action = "delete"
    elif now is None:
        action = "create"
    elif _zone_name(then) != _zone_name(now):
        action = "replace"  # spec.zoneName is immutable
    return Step(key=key, action=action, then=then, now=now, owner=owner.manager)


def _zone_name(stored: StoredObject) -> bytes:
    if not stored.key.startswith(f"{DNS_ZONE.name}/"):
        return b""
    return names.key(names.from_text(read_zone(stored.body.spec).zone_name))


def _is_same(a: StoredObject | None, b: StoredObject | None, *, with_owner: bool = False) -> bool:
    if a is None or b is None:
        return a is b
    return (
        bytes(a.body.spec) == bytes(b.body.spec)
        and a.body.labels == b.body.labels
        and a.body.annotations == b.body.annotations
        and (a.manager == b.manager or not with_owner)
    )


def content(stored: StoredObject | None) -> dict[str, Any]:
    """What a restore brings back, as builtins; parts that are empty are left out."""
    if stored is None:
        return {}
    parts = {
        "spec": msgspec.json.decode(stored.body.spec),
        "labels": stored.body.labels,
        "annotations": stored.body.annotations,
    }
    return {name: part for name, part in parts.items() if part}


def state_digest(objects: Iterable[StoredObject]) -> str:
    """Digest of what people wrote: spec, labels and annotations, whoever owns it."""
    whole = SetDigest()
    for stored in objects:
        whole.add(stored.key.encode() + b"\0" + canonical(_content_parts(stored)))
    return whole.hexdigest()


def _content_parts(stored: StoredObject) -> list[Any]:
    return [stored.body.spec, stored.body.labels, stored.body.annotations]


def _content_digest(stored: StoredObject | None) -> str:
    if stored is None:
        return ""
    return sha256(canonical([*_content_parts(stored), stored.manager])).hexdigest()


# --- carrying out ---------------------------------------------------------------------------


class Begun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of restore.begun.v1. Who and why are in the `who` of its change set."""

    id: str
    verb: Literal["restore", "undo"]
    target: str
    scope: Scope
    plan_digest: str
    base: int
    force: bool
    objects: int


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """Body of restore.done.v1."""

    id: str
    objects: int
    undone: bool = False  # it was not finished, and what it had done was reverted


def restore_key(id_: str) -> Key:
    return Key(f"Restore//{id_}")


def cause_of(plan: Plan, id_: str) -> str:
    """What the events of a plan carry as their cause."""
    return f"restore:{id_}" if id_ else f"undo:{plan.target}"


def begin(plan: Plan, id_: str, *, force: bool) -> RecordFact:
    begun = Begun(
        id=id_,
        verb=plan.verb,
        target=plan.target,
        scope=plan.scope if plan.verb == "restore" else Scope(),
        plan_digest=plan.digest(),
        base=plan.base,
        force=force,
        objects=len(plan.steps),
    )
    scope = plan.scope.event_scope
    return RecordFact(
        type=RESTORE_BEGUN,
        key=restore_key(id_),
        ver=1,
        scope=scope,
        manager=DEFAULT_MANAGER,
        body=canonical(begun),
    )


def end(id_: str, scope: Scope, *, objects: int, undone: bool = False) -> RecordFact:
    return RecordFact(
        type=RESTORE_DONE,
        key=restore_key(id_),
        ver=2,
        scope=scope.event_scope,
        manager=DEFAULT_MANAGER,
        body=canonical(Ended(id=id_, objects=objects, undone=undone)),
    )


def commands(steps: Iterable[Step]) -> list[Command]:
    """Orders that carry steps out: zones before their record sets, deletions last and in the
    other order."""
    first: list[Command] = []
    last: list[Command] = []
    for step in sorted(steps, key=lambda step: not step.key.startswith(f"{DNS_ZONE.name}/")):
        if step.action == "replace":
            first.append(Delete(key=step.key))
        if step.then is None:
            last.insert(0, Delete(key=step.key))
        else:
            first.append(
                Revert(
                    key=step.key,
                    spec=step.then.body.spec,
                    labels=step.then.body.labels,
                    annotations=step.then.body.annotations,
                    manager=step.owner,
                    created=step.then.body.creation_timestamp,
                )
            )
    return first + last
