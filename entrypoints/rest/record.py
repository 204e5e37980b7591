"""The log over HTTP: events, verification, checkpoints, restore, undo, redaction, pruning."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from kudurru.domain import targets
from kudurru.domain.access import Rights
from kudurru.domain.errors import Busy, Cause, Invalid, NotFound
from kudurru.domain.events import OBJECT_STATUS, POSITION_MAX, Position, Recorded
from kudurru.domain.kinds.meta import DEFAULT_NAMESPACE
from kudurru.domain.kinds.registry import KINDS, kind_by_word
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import VerifiableLog
from kudurru.domain.restore import Plan, Scope, Step
from kudurru.domain.verify import TAIL_ROWS, verify
from kudurru.entrypoints import restoring
from kudurru.entrypoints.history import describe_event, first_position, matches, zone_meant
from kudurru.entrypoints.history_names import NameChanges, changes_near, is_wanted, name_changes
from kudurru.entrypoints.rest.calls import Call, Param
from kudurru.entrypoints.rest.naming import check_names, zone_named
from kudurru.entrypoints.rest.reach import check_reach, spec_of
from kudurru.entrypoints.rest.routes import Route
from kudurru.entrypoints.rest.status import Forbidden
from kudurru.entrypoints.restoring import Carried, RestoreRequest, UndoRequest
from kudurru.entrypoints.service import Erased, MarkRequest, Pruned
from kudurru.entrypoints.upkeep import PruneRequest, RedactRequest
from kudurru.entrypoints.waiting import alone
from kudurru.projections import as_of

EVENTS_MAX = 500
SCANNED_MAX = 20_000
"""Events that one request looks through: a second. What is left is for the next."""

COMPARED_MAX = 5_000
"""The same, where each is held against what was before it."""

DAMAGES_MAX = 20


class EventPage(msgspec.Struct, frozen=True, kw_only=True, rename={"continue_": "continue"}):
    """Events, newest first. `continue` is given back for those before, and empty at the end; a
    page may have few events and not be the last, where many were looked through."""

    items: list[dict[str, Any]]
    continue_: str = ""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    level: str
    rows: int
    damages: list[dict[str, Any]]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A signed checkpoint of the whole log (C2SP)."""

    note: str


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: str = ""


class ScopeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which objects are meant: those that every given part selects."""

    zone: str = ""  # by object name or DNS name
    namespace: str = ""
    kind: str = ""
    selector: str = ""
    objects: list[str] = []  # KIND/NAME or KIND/NAMESPACE/NAME
    all: bool = False


class RestoreBody(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Bring objects back to a moment. Without `apply` it is planned, and nothing is written."""

    at: str = ""
    before_event: Annotated[int, msgspec.Meta(ge=1, le=POSITION_MAX)] | None = None
    resume: str = ""
    scope: ScopeRequest = ScopeRequest()
    apply: bool = False
    plan_digest: str = ""  # of the plan that was agreed to
    force: bool = False
    allow_mass_change: bool = False
    reason: str = ""


class UndoBody(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    what: str  # a position of a change set, or the id of a restore
    apply: bool = True
    skip_conflicts: bool = False
    allow_mass_change: bool = False
    reason: str = ""


class MarkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    reason: str = ""


class At(msgspec.Struct, frozen=True, kw_only=True):
    position: int


class RedactBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    position: Annotated[int, msgspec.Meta(ge=1, le=POSITION_MAX)]
    part: Literal["body", "who"] = "body"
    reason: str


class PruneBody(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    before: str
    dry_run: bool = False
    reason: str = ""


_EVENTS = (
    Param("actor", "text", "By whom, with or without what comes before the colon."),
    Param("kind", "text", "Of objects of this kind."),
    Param("namespace", "text", "Of objects in this namespace."),
    Param("name", "text", "Of the object of this name; with kind."),
    Param("zone", "text", "Of a zone, by object name or DNS name."),
    Param("dnsName", "text", "What changed at this DNS name, whatever objects have it."),
    Param("recordType", "text", "Of records of this type; with dnsName."),
    Param("type", "text", "Of this type, such as obj.applied.v1."),
    Param("noStatus", "switch", "Without the statuses that the system wrote."),
    Param("since", "text", "Not before."),
    Param("until", "text", "Not after."),
    Param("changes", "switch", "With what changed, field by field."),
    Param("limit", "count", f"At most {EVENTS_MAX}."),
    Param("continue", "text", "Those before, as the page before says."),
)


def routes() -> Iterator[Route]:
    yield Route(
        method="GET", path="/events", right="history", handler=events, tag="log",
        about="Who changed what, when and why, newest first.", params=_EVENTS, reply=EventPage,
    )  # fmt: skip
    yield Route(
        method="GET", path="/events/verify", right="audit.verify", handler=verify_log, tag="log",
        about="Verify the log.", reply=Verification, is_endless=True,
        params=(Param("level", "text", "tail (the newest rows) or full; tail when left out."),),
    )  # fmt: skip
    yield Route(
        method="GET", path="/checkpoint", right="info", handler=newest_checkpoint, tag="log",
        about="The newest signed checkpoint.", reply=Note,
    )  # fmt: skip
    yield Route(
        method="POST", path="/checkpoint", right="checkpoint", handler=checkpoint, tag="log",
        about="Sign the whole log as it is now, unless it is signed.", reply=Note,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="POST", path="/checkpoint:rotate", right="audit.redact", handler=rotate, tag="log",
        about="Sign with a new key from here on.", body=Reason, reply=Note,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="POST", path="/restore", right="restore", handler=restore, tag="log",
        about="Bring objects back to a moment: the plan, or with `apply` that it happens.",
        body=RestoreBody, reply=Carried, is_endless=True,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="POST", path="/undo", right="undo", handler=undo, tag="log",
        about="Take one change, or one restore, back.", body=UndoBody, reply=Carried,
        is_endless=True,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="POST", path="/marks", right="mark", handler=mark, tag="log", code=201,
        about="Name this moment, as a target for `at`.", body=MarkBody, reply=At,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="POST", path="/events:redact", right="audit.redact", handler=redact, tag="log",
        about="Erase a payload; that it was is in the log.", body=RedactBody, reply=Erased,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="POST", path="/events:prune", right="audit.prune", handler=prune, tag="log",
        about="Let the oldest events go.", body=PruneBody, reply=Pruned, is_endless=True,
        is_leaders=True,
    )  # fmt: skip


# --- reading --------------------------------------------------------------------------------


async def events(call: Call) -> EventPage:
    page: EventPage = await call.aside(partial(_events, call))
    return page


def _events(call: Call) -> EventPage:
    log, now_us = call.context.node.log, call.context.node.clock.now_us()
    limit = min(call.count("limit", 50) or EVENTS_MAX, EVENTS_MAX)
    after = first_position(call.text("since"), log, now_us) - 1 if call.text("since") else 0
    upto = targets.resolve(call.text("until"), log, now_us) if call.text("until") else None
    if before := call.text("continue"):
        if not (before.isascii() and before.isdigit() and len(before) < 18):
            raise Invalid("query", [Cause("continue", "not of this list: begin without it")])
        upto = Position(min(int(before), upto or int(before)))
    wanted = _wanted(call)
    scanned_max = SCANNED_MAX if wanted.at_name is None else COMPARED_MAX
    found: list[dict[str, Any]] = []
    after = max(after, 0)
    if wanted.key is not None:
        read = log.read(after, upto, key=wanted.key, newest_first=True)
    elif wanted.zone is not None and wanted.at_name is None:
        read = as_of.events_of(log, wanted.zone, after=after, upto=upto, newest_first=True)
    else:
        read = changes_near(wanted.at_name, log, after, upto)
    for scanned, event in enumerate(read, 1):
        if wanted.takes(event) and is_wanted(wanted.at_name, event, log, wanted.sees):
            found.append(_described(call, event))
        if len(found) == limit or scanned == scanned_max:
            more = str(event.seq - 1) if event.seq - 1 > after else ""
            return EventPage(items=found, continue_=more)
    return EventPage(items=found)


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    rights: Rights
    key: Key | None
    kind: str
    namespace: str
    name: str
    zone: str | None
    type: str
    actor: str | None
    at_name: NameChanges | None
    has_status: bool

    def sees(self, event: Recorded) -> bool:
        return self.rights.may_see(event.key, event.scope)

    def takes(self, event: Recorded) -> bool:
        ref = ref_of(event.key)
        return (
            self.kind in ("", ref.kind)
            and self.namespace in ("", ref.namespace)
            and self.name in ("", ref.name)
            and self.type in ("", event.type)
            and (bool(self.type) or matches(event, self.zone, self.actor))
            and matches_filter(event, self.zone, self.actor)
            and (self.has_status or event.type != OBJECT_STATUS)
            and self.sees(event)
        )


def matches_filter(event: Recorded, zone: str | None, actor: str | None) -> bool:
    """`history.matches`, for events of any type."""
    if zone is None and actor is None:
        return True
    return matches(event, zone, actor)


def _wanted(call: Call) -> _Wanted:
    kind = kind_by_word(call.text("kind")) if call.text("kind") else None
    namespace, name = call.text("namespace"), call.text("name")
    key = None
    if kind is not None and name:
        where = (namespace or DEFAULT_NAMESPACE) if kind.namespaced else ""
        key = key_of(kind.name, where, name)
    zone = call.text("zone")
    return _Wanted(
        rights=call.principal.rights,
        key=key,
        kind=kind.name if kind is not None else "",
        namespace=namespace,
        name=name,
        zone=zone_meant(zone, call.context.node.log) if zone else None,
        type=call.text("type"),
        actor=call.text("actor") or None,
        at_name=name_changes(call.text("dnsName"), call.text("recordType")),
        has_status=not call.has("noStatus"),
    )


def _described(call: Call, event: Recorded) -> dict[str, Any]:
    rights = call.principal.rights
    document = describe_event(
        event,
        call.context.node.log,
        with_changes=call.has("changes"),
        sees=lambda other: rights.may_see(other.key, other.scope),
    )
    if not rights.may("addresses"):
        # "api 192.0.2.1": how somebody came is for everybody, from where is not.
        document["source"] = document["source"].partition(" ")[0]
    return document


async def verify_log(call: Call) -> Verification:
    level = call.text("level", "tail")
    if level not in ("tail", "full"):
        raise Invalid("query", [Cause("level", f"{level!r} is neither tail nor full")])
    if call.context.verifying.locked():
        raise Busy("the log is being verified for somebody else; try again")
    async with call.context.verifying:
        log: VerifiableLog = call.context.node.log  # type: ignore[assignment]  # every log of ours is
        tail = TAIL_ROWS if level == "tail" else None
        # Minutes, and others of this token need not wait for it.
        verified = await alone(partial(verify, log, tail=tail), "kudurru-verify")
    damages = [
        {"kind": one.kind, "position": one.position, "message": one.message}
        for one in verified.damages[:DAMAGES_MAX]
    ]
    return Verification(level=level, rows=verified.rows, damages=damages)


async def newest_checkpoint(call: Call) -> Note:
    log: VerifiableLog = call.context.node.log  # type: ignore[assignment]  # every log of ours is
    stored = await call.briefly(log.newest_checkpoint)
    if stored is None:
        raise NotFound("the log was not signed yet: POST to have it signed")
    return Note(note=stored.note)


async def checkpoint(call: Call) -> Note:
    return Note(note=await call.context.operate("checkpoint", None, call.who))


async def rotate(call: Call) -> Note:
    reason = call.body(Reason).reason
    return Note(note=await call.context.operate("rotate-key", reason, call.who))


# --- restoring ------------------------------------------------------------------------------


async def restore(call: Call) -> Carried:
    wanted = call.body(RestoreBody)
    given = [bool(wanted.at), wanted.before_event is not None, bool(wanted.resume)]
    if given.count(True) != 1:
        fault = "give one of at, beforeEvent and resume"
        raise Invalid("restore", [Cause("", fault)])
    if wanted.force:
        call.demand("objects.force")
    if wanted.scope.all or wanted.resume:
        call.demand("restore.all")
    request = await call.aside(partial(_restore_request, call, wanted))
    if not wanted.resume:
        planned: tuple[RestoreRequest, Carried]
        planned = await call.aside(partial(_planned, call, request))
        request = planned[0]
        if not wanted.apply:
            return planned[1]
    done = await call.context.operate("restore", msgspec.to_builtins(request), call.who)
    return msgspec.convert(done, Carried)


def _restore_request(call: Call, wanted: RestoreBody) -> RestoreRequest:
    log, now_us = call.context.node.log, call.context.node.clock.now_us()
    request = RestoreRequest(
        resume=wanted.resume,
        plan_digest=wanted.plan_digest,
        force=wanted.force,
        allow_mass_change=wanted.allow_mass_change,
        reason=wanted.reason,
    )
    if wanted.resume:
        return request
    if wanted.before_event is not None:
        target = targets.before_change(wanted.before_event, log)
    else:
        target = targets.whole_change(targets.resolve(wanted.at, log, now_us), log)
    part = wanted.scope
    scope = Scope(
        zone=zone_named(call, part.zone, target, log.head().seq) if part.zone else "",
        namespace=part.namespace,
        kind=kind_by_word(part.kind).name if part.kind else "",
        selector=part.selector,
        keys=tuple(dict.fromkeys(map(_object_key, part.objects))),
        everything=part.all,
    )
    scope.check()
    return msgspec.structs.replace(request, target=target, scope=scope)


def _object_key(text: str) -> Key:
    word, *rest = text.split("/")
    kind = kind_by_word(word)
    if not 1 <= len(rest) <= 2:
        raise Invalid("scope", [Cause("objects", f"{text!r} is not KIND/NAMESPACE/NAME")])
    namespace = rest[0] if len(rest) == 2 else DEFAULT_NAMESPACE
    return check_names(kind, {"namespace": namespace, "name": rest[-1]})


def _planned(call: Call, request: RestoreRequest) -> tuple[RestoreRequest, Carried]:
    """The request bound to the plan that was looked at, and that plan. Raises: Forbidden."""
    log, clock = call.context.node.log, call.context.node.clock
    plan = restoring.plan_restore(log, request)
    _check_plan(call, plan)
    document = restoring.describe(log, plan, clock.now_us() // 1_000_000)
    digest = request.plan_digest or plan.digest()
    bound = msgspec.structs.replace(request, plan_digest=digest)
    return bound, Carried(id="", seq=0, plan=document)


def _check_plan(call: Call, plan: Plan) -> None:
    """Each step is a write. What is skipped names objects too."""
    rights = call.principal.rights
    for step in plan.steps:
        before, after = (one.scope if one is not None else None for one in (step.now, step.then))
        seen = [rights.may_see(step.key, one) for one in (before, after) if one is not None]
        if rights.is_limited and not any(seen):
            raise Forbidden(f"it concerns objects outside of {rights.limits}")
        if why := rights.why_not_write(step.key, before, after):
            raise Forbidden(why)
        _check_step(call, step)
    if rights.is_limited and plan.skipped:
        raise Forbidden(f"it concerns objects outside of {rights.limits}, or changed since")


def _check_step(call: Call, step: Step) -> None:
    """What a write of the object would be refused for. Raises: Forbidden."""
    rights = call.principal.rights
    if KINDS[ref_of(step.key).kind].is_internal:
        call.demand("keys")
    if step.action == "replace" and rights.is_limited:
        raise Forbidden(
            f"{ref_of(step.key)}: its DNS name changes, which is not for limited tokens"
        )
    if step.then is not None and (spec := spec_of(step.then)) is not None:
        check_reach(call, step.key, spec, step.now)


async def undo(call: Call) -> Carried:
    wanted = call.body(UndoBody)
    planned = await call.aside(partial(_planned_undo, call, wanted))
    if not wanted.apply:
        return Carried(id="", seq=0, plan=planned)
    request = UndoRequest(
        what=wanted.what,
        skip_conflicts=wanted.skip_conflicts,
        allow_mass_change=wanted.allow_mass_change,
        reason=wanted.reason,
    )
    done = await call.context.operate("undo", msgspec.to_builtins(request), call.who)
    return msgspec.convert(done, Carried)


def _planned_undo(call: Call, wanted: UndoBody) -> dict[str, Any]:
    """Raises: Forbidden. The plan is made again when it is carried out: of the same events, and
    what changed meanwhile is a conflict, so that it has no other objects."""
    log, clock = call.context.node.log, call.context.node.clock
    sees = call.principal.rights.may("settings.read")
    plan = restoring.plan_undo(log, wanted.what, shows_settings=sees)
    _check_plan(call, plan)
    return restoring.describe(log, plan, clock.now_us() // 1_000_000)


async def mark(call: Call) -> At:
    wanted = call.body(MarkBody)
    request = msgspec.to_builtins(MarkRequest(name=wanted.name, reason=wanted.reason))
    return At(position=await call.context.operate("mark", request, call.who))


async def redact(call: Call) -> Any:
    wanted = call.body(RedactBody)
    if not wanted.reason.strip():
        raise Invalid("redact", [Cause("reason", "say why: it is all that will be left")])
    is_of_who = wanted.part == "who"
    request = RedactRequest(seq=wanted.position, who=is_of_who, reason=wanted.reason)
    return await call.context.operate("redact", msgspec.to_builtins(request), call.who)


async def prune(call: Call) -> Any:
    wanted = call.body(PruneBody)
    node = call.context.node
    now_us = node.clock.now_us()
    resolve = partial(targets.resolve, wanted.before, node.log, now_us, is_limit=True)
    before = await call.aside(resolve)
    request = PruneRequest(before=before, dry_run=wanted.dry_run, reason=wanted.reason)
    return await call.context.operate("prune", msgspec.to_builtins(request), call.who)
