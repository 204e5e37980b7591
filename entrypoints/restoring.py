"""Restore and undo on a log: plans are read from it, and carried out as changes.

A plan needs the log only, so it is made by whoever can read it, while a server writes. Carrying it
out makes the plan again and compares digests: the plan that a person saw is the one that happens,
or nothing is.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec

from kudurru.domain import mass_change, restore, settings_changes
from kudurru.domain.commands import Command, Delete
from kudurru.domain.dns import names
from kudurru.domain.errors import Cause, Conflict, Invalid, KudurruError, NotFound
from kudurru.domain.events import (
    POSITION_MAX,
    SETTINGS_CHANGED,
    Position,
    Recorded,
    SecretWrite,
    Who,
)
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE, TSIG_KEY
from kudurru.domain.kinds.stored import read_record_set, read_zone
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import EventLog
from kudurru.domain.reconcile.zones import next_serial
from kudurru.domain.restore import Begun, Plan, Scope, Step
from kudurru.domain.targets import check_kept, position_in
from kudurru.entrypoints.wiring import Change, Guard
from kudurru.projections import as_of

CONFLICTS_SHOWN = 10


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Bring a scope back to a position, or go on with a restore that was cut off (`resume`)."""

    target: Annotated[int, msgspec.Meta(ge=0, le=POSITION_MAX)] = 0
    scope: Scope = Scope()
    resume: str = ""
    plan_digest: str = ""  # of the plan that was agreed to; empty: any
    force: bool = False
    allow_mass_change: bool = False
    reason: str = ""


class UndoRequest(msgspec.Struct, frozen=True, kw_only=True):
    what: str  # a position of a change set, or the id of a restore
    skip_conflicts: bool = False
    allow_mass_change: bool = False
    reason: str = ""


class Undertaking(msgspec.Struct, frozen=True):
    """A plan, and the changes that carry it out, in order; none when there is nothing to do."""

    plan: Plan
    id: str  # of the restore, empty for a plain undo
    changes: tuple[Change, ...]


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an undertaking. `seq` is the position of its last change set, 0 when there
    was nothing to do."""

    id: str
    seq: int
    plan: dict[str, Any]


# --- planning -------------------------------------------------------------------------------


def plan_restore(log: EventLog, request: RestoreRequest) -> Plan:
    """Raises Invalid for a scope that is none."""
    request.scope.check()
    check_kept(Position(request.target), log)
    base = log.head().seq
    found = as_of.between(log, request.scope, request.target, base)
    return restore.plan_restore(
        target=request.target,
        base=base,
        scope=request.scope,
        then=found.then,
        now=found.now,
        unknown=found.unknown,
        force=request.force,
    )


def plan_undo(log: EventLog, what: str, *, shows_settings: bool = True) -> Plan:
    """Raises NotFound for a position or a restore that is not in the log, Invalid for a position
    where no object was changed: where settings were, it says how they are taken back."""
    base = log.head().seq
    name, events = _what_to_undo(log, what.strip())
    done = list(as_of.done_by(log, events, base))
    if not done:
        raise Invalid("undo", _why_nothing(log, what, shows_settings=shows_settings))
    return restore.plan_undo(what=name, base=base, done=done)


def _why_nothing(log: EventLog, what: str, *, shows_settings: bool) -> list[Cause]:
    found = [
        cause
        for event in _what_to_undo(log, what.strip())[1]
        if event.type == SETTINGS_CHANGED and event.body is not None and shows_settings
        for cause in settings_changes.ways_back(log, event)
    ]
    why = (
        f"nothing to undo at {what}: no object was changed there; `kudurru history` has the numbers"
    )
    return found or [Cause("", why)]


def _what_to_undo(log: EventLog, what: str) -> tuple[str, Iterator[Recorded]]:
    if position_in(what) is not None:
        event = log.get(int(what))
        if event is None:
            check_kept(Position(int(what)), log)
            raise NotFound(f"position {what} is not in the log, which ends at {log.head().seq}")
        check_kept(Position(event.txn - 1), log, f"what was before position {event.txn}")
        return str(event.txn), log.read(event.txn - 1, event.txn + event.n - 1)
    found = _restore(log, what)
    cause = f"restore:{what}"
    events = log.read(found.begun_at - 1, found.done_at or None)
    return what, (event for event in events if as_of.cause_of(event) == cause)


class _Found(msgspec.Struct, frozen=True):
    begun: Begun
    begun_at: int
    done_at: int  # 0: not yet


def _restore(log: EventLog, id_: str) -> _Found:
    events = list(log.read(key=restore.restore_key(id_)))
    if not events or events[0].body is None:
        raise NotFound(f"there is no restore {id_!r}: `kudurru history` shows their ids")
    check_kept(Position(events[0].seq - 1), log, f"restore {id_}")
    begun = msgspec.json.decode(events[0].body, type=Begun)
    return _Found(begun, events[0].seq, events[1].seq if len(events) > 1 else 0)


# --- carrying out ---------------------------------------------------------------------------


def prepare_restore(log: EventLog, request: RestoreRequest, new_id: str, who: Who) -> Undertaking:
    """Raises Conflict when the plan is not the one that was agreed to."""
    if request.resume:
        return _prepare_resume(log, request, who)
    plan = plan_restore(log, request)
    if request.plan_digest and plan.digest() != request.plan_digest:
        raise Conflict("the plan is stale: the objects of its scope have changed since; plan again")
    allows = request.force or request.allow_mass_change
    return _undertaking(plan, new_id, who, force=request.force, allows=allows)


def _prepare_resume(log: EventLog, request: RestoreRequest, who: Who) -> Undertaking:
    """The rest of a restore. What others have changed since it began is left as it is."""
    id_ = request.resume
    found = _unfinished(log, id_)
    cause = f"restore:{id_}"
    if found.begun.verb == "undo":
        plan = plan_undo(log, found.begun.target)
    else:
        again = msgspec.structs.replace(
            request,
            target=int(found.begun.target),
            scope=found.begun.scope,
            force=found.begun.force or request.force,
        )
        plan = plan_restore(log, again)
        if not request.force:
            plan = _without(plan, _changed_by_others(log, found, cause))
    parts: list[list[Command]] = [restore.commands(part) for part in plan.parts()]
    parts.append([restore.end(id_, plan.scope, objects=found.begun.objects)])
    allows = found.begun.force or request.force or request.allow_mass_change
    return Undertaking(plan, id_, _changes(plan, parts, cause, who, allows=allows))


def _unfinished(log: EventLog, id_: str) -> _Found:
    found = _restore(log, id_)
    if found.done_at:
        raise Conflict(f"restore {id_} is finished, since position {found.done_at}")
    return found


def unfinished(facts: Mapping[Key, int]) -> list[str]:
    """Ids of restores that began and are not over, by the versions of streams."""
    prefix = restore.restore_key("")
    return [
        key.removeprefix(prefix)
        for key, version in facts.items()
        if version == 1 and key.startswith(prefix)
    ]


def _changed_by_others(log: EventLog, found: _Found, cause: str) -> set[Key]:
    return {
        event.key
        for event in log.read(found.begun_at)
        if found.begun.scope.moved_by(event) and as_of.cause_of(event) != cause
    }


def _without(plan: Plan, keys: set[Key]) -> Plan:
    left = [step.key for step in plan.steps if step.key in keys]
    reason = "changed since the restore began; --force overwrites it"
    return msgspec.structs.replace(
        plan,
        steps=tuple(step for step in plan.steps if step.key not in keys),
        skipped=(*plan.skipped, *(restore.Skipped(key, reason) for key in left)),
    )


def prepare_undo(log: EventLog, request: UndoRequest, new_id: str, who: Who) -> Undertaking:
    """Raises Conflict, with what stands in the way, when objects changed since and are not to be
    skipped."""
    plan = plan_undo(log, request.what)
    if plan.skipped and not request.skip_conflicts:
        shown = "".join(
            f"\n  {ref_of(one.key)}: {one.reason}" for one in plan.skipped[:CONFLICTS_SHOWN]
        )
        more = len(plan.skipped) - CONFLICTS_SHOWN
        raise Conflict(
            f"{plan.target} cannot be undone whole:{shown}"
            + (f"\n  and {more} more" if more > 0 else "")
            + "\n--skip-conflicts undoes the rest"
        )
    allows = request.allow_mass_change
    if not plan.target.isdigit() and not (found := _restore(log, plan.target)).done_at:
        return _end_by_undo(plan, found, who, allows=allows)
    return _undertaking(plan, new_id, who, force=False, allows=allows)


def _end_by_undo(plan: Plan, found: _Found, who: Who, *, allows: bool) -> Undertaking:
    """What an unfinished restore has done is reverted, and the restore is over by that."""
    id_ = found.begun.id
    ended = restore.end(id_, found.begun.scope, objects=found.begun.objects, undone=True)
    parts: list[list[Command]] = [restore.commands(part) for part in plan.parts()]
    parts = [*parts[:-1], [*(parts[-1] if parts else ()), ended]]
    return Undertaking(plan, "", _changes(plan, parts, f"undo:{id_}", who, allows=allows))


def _undertaking(plan: Plan, new_id: str, who: Who, *, force: bool, allows: bool) -> Undertaking:
    if not plan.steps:
        return Undertaking(plan, "", ())
    parts: list[list[Command]] = [restore.commands(part) for part in plan.parts()]
    if plan.verb == "undo" and len(parts) == 1:
        cause = f"undo:{plan.target}"
        return Undertaking(plan, "", _changes(plan, parts, cause, who, allows=allows))
    begun = restore.begin(plan, new_id, force=force)
    ended = restore.end(new_id, plan.scope, objects=len(plan.steps))
    parts = [[begun, *parts[0], ended]] if len(parts) == 1 else [[begun], *parts, [ended]]
    changes = _changes(plan, parts, f"restore:{new_id}", who, allows=allows)
    return Undertaking(plan, new_id, changes)


def _changes(
    plan: Plan, parts: list[list[Command]], cause: str, who: Who, *, allows: bool
) -> tuple[Change, ...]:
    who = msgspec.structs.replace(who, cause=cause)
    guard = Guard(plan.scope, plan.base, cause) if plan.steps else None
    return tuple(
        Change(
            commands=tuple(part),
            who=who,
            allow_mass_change=allows,
            guard=guard,
            secrets=tuple(_erased(part)),
        )
        for part in parts
    )


def _erased(commands: Iterable[Command]) -> Iterator[SecretWrite]:
    """A key that goes takes its secret along, as when it is revoked: no restore revives it."""
    for command in commands:
        if isinstance(command, Delete) and ref_of(command.key).kind == TSIG_KEY.name:
            yield SecretWrite(command.key, None)


def cut_off(undertaking: Undertaking, carried: int, error: KudurruError) -> KudurruError:
    """What to tell when a change was refused after `carried` others happened."""
    if not carried or not undertaking.id:
        return error
    id_ = undertaking.id
    return Conflict(
        f"{error}\nrestore {id_} is unfinished: `kudurru restore --resume {id_}` does the rest, "
        f"`kudurru undo {id_}` takes back what was done"
    )


# --- showing --------------------------------------------------------------------------------


def describe(log: EventLog, plan: Plan, now_s: int) -> dict[str, Any]:
    """A plan as people and programs see it."""
    return {
        "verb": plan.verb,
        "target": int(plan.target) if plan.target.isdigit() else plan.target,
        "base": plan.base,
        "scope": str(plan.scope) if plan.verb == "restore" else "",
        "digest": plan.digest(),
        "steps": [_step(step) for step in plan.steps],
        "skipped": [{"object": short_name(one.key), "reason": one.reason} for one in plan.skipped],
        "zones": [_zone(log, plan, name, steps, now_s) for name, steps in _by_zone(plan.steps)],
    }


def short_name(key: Key) -> str:
    ref = ref_of(key)
    where = f"{ref.namespace}/" if ref.namespace else ""
    return f"{ref.kind.lower()}/{where}{ref.name}"


def _step(step: Step) -> dict[str, Any]:
    document: dict[str, Any] = {
        "object": short_name(step.key),
        "action": step.action,
        "owner": step.owner,
    }
    if step.now is not None and step.now.manager != step.owner:
        document["ownerNow"] = step.now.manager
    if step.then is not None and step.then.manager != step.owner:
        document["ownerThen"] = step.then.manager
    document["changes"] = list(step.changes())
    return document


def _by_zone(steps: tuple[Step, ...]) -> list[tuple[str, list[Step]]]:
    """Steps by the zones whose records they change, an object that moves under both."""
    found: dict[str, list[Step]] = {}
    for step in steps:
        if ref_of(step.key).kind in (DNS_ZONE.name, DNS_RECORD_SET.name):
            for name in {s.scope.partition("/")[2] for s in (step.then, step.now) if s}:
                found.setdefault(name, []).append(step)
    return sorted(found.items())


def _zone(log: EventLog, plan: Plan, name: str, steps: list[Step], now_s: int) -> dict[str, Any]:
    key = key_of(DNS_ZONE.name, "", name)
    serial = as_of.last_serial(log, key)
    following = next_serial(stamped=serial, highest_published=serial, imported=None, now_s=now_s)
    own = next((step for step in steps if step.key == key), None)
    now = own.now if own else _stored(log, key, plan.base)
    then = own.then if own else now
    specs = _spec(now), _spec(then)
    before, after = _records(log, plan, name, steps, *specs)
    servers = frozenset().union(*map(mass_change.nameservers_of, specs))
    zone = now or then
    return {
        "zone": names.to_text(names.from_text(read_zone(zone.body.spec).zone_name))
        if zone
        else name,
        "recordsChanged": mass_change.lost(before, after, servers),
        "recordsAdded": mass_change.lost(after, before, servers),
        "serial": serial,
        "nextSerial": following,
    }


def _stored(log: EventLog, key: Key, upto: int) -> StoredObject | None:
    known = as_of.find(log, key, upto, with_status=False)
    return known.stored(log.epoch) if known and not known.erased else None


def _spec(stored: StoredObject | None) -> DNSZoneSpec | None:
    """Of a zone that has records; None where there is none."""
    spec = read_zone(stored.body.spec) if stored else None
    return spec if spec is not None and spec.type != "Forward" else None


def _records(
    log: EventLog,
    plan: Plan,
    name: str,
    steps: list[Step],
    now: DNSZoneSpec | None,
    then: DNSZoneSpec | None,
) -> tuple[mass_change.Records, mass_change.Records]:
    """What the steps may touch of a zone, before and after, as the mass-change guard counts: all
    its records where the DNSZone is another one then."""
    if now is not None and then is not None and now.type == "Primary" != then.type:
        then = None  # what it had is not what its primary has
    sets: dict[Key, StoredObject | None] = {}
    if (then is not None) if now is None else mass_change.reaches_all(now, then):
        sets |= as_of.objects(log, Scope(zone=name), plan.base)
    before = sets | {step.key: step.now for step in steps}
    after = sets | {step.key: step.then for step in steps}
    return _served(now, name, before), _served(then, name, after)


def _served(
    zone: DNSZoneSpec | None, name: str, sets: Mapping[Key, StoredObject | None]
) -> mass_change.Records:
    found = mass_change.nameservers_of(zone)
    for key, stored in sets.items():
        if zone is None or stored is None or ref_of(key).kind != DNS_RECORD_SET.name:
            continue
        spec = read_record_set(stored.body.spec)
        if spec.zone_ref.name == name and mass_change.allows(zone, key):
            mass_change.add_records(found, spec, zone.default_ttl)
    return found
