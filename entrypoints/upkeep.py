"""Upkeep of a log: old rows that go, payloads that are erased.

Each is one transaction: the events that say so, the checkpoint that signs them, and what is taken
away. A process that dies before its commit has changed nothing, one that dies after it has done all
of it; there is no step in between to recover from.
"""

from datetime import timedelta
from typing import Annotated

import msgspec

from kudurru.domain import targets
from kudurru.domain.chain import Redaction as RedactionBody
from kudurru.domain.codec import canonical
from kudurru.domain.errors import Cause, Conflict, Invalid, NotFound, Pruned
from kudurru.domain.events import (
    LOG_EPOCH,
    LOG_PRUNED,
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_MOVED,
    OBJECT_STATUS,
    PAYLOAD_REDACTED,
    POSITION_MAX,
    PRUNING_KEY,
    REDACTION_KEY,
    ChangeSet,
    Event,
    Position,
    Recorded,
    Who,
)
from kudurru.domain.kinds.registry import DNS_ZONE
from kudurru.domain.object_store import CONTROLLER
from kudurru.domain.objects import key_of, ref_of
from kudurru.domain.ports import Anchor, Erasure, EventLog, Upkeep, VerifiableLog
from kudurru.domain.pruning import Keeper, PrunedBody, digest_of, limit
from kudurru.domain.targets import check_kept
from kudurru.entrypoints.wiring import Node
from kudurru.projections import as_of

OTHERS_SHOWN = 20


class RedactRequest(msgspec.Struct, frozen=True, kw_only=True):
    seq: Annotated[int, msgspec.Meta(ge=1, le=POSITION_MAX)]
    who: bool = False  # the person and the reason, else the object
    reason: str


class PruneRequest(msgspec.Struct, frozen=True, kw_only=True):
    before: Annotated[int, msgspec.Meta(ge=0, le=POSITION_MAX)]  # position; older rows go
    dry_run: bool = False
    reason: str = ""


# --- redacting ------------------------------------------------------------------------------


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """A payload that may be erased, and the event that says so."""

    event: Event
    erasure: Erasure
    others: list[int]
    """Positions of the same object whose content is still there, the newest first."""

    @property
    def upkeep(self) -> Upkeep:
        return Upkeep(erase=(self.erasure,))

    def change_set(self, who: Who, now_us: int) -> ChangeSet:
        return ChangeSet((self.event,), msgspec.structs.replace(who, wall=now_us))


def redaction(node: Node, request: RedactRequest) -> Redaction:
    """Raises: NotFound for a position that is not in the log; Conflict for what is erased already,
    or is the content of a live object; Invalid for what verification or replay needs."""
    found = node.log.get(request.seq)
    if found is None:
        newest = node.log.head().seq
        if 0 < request.seq <= newest:
            check_kept(Position(request.seq), node.log)
        raise NotFound(f"position {request.seq} is not in the log, which ends at {newest}")
    if request.who:
        return _redaction_of_who(node, found)
    _check_body(node, found)
    others = [
        int(event.seq)
        for event in node.log.read(key=found.key, newest_first=True)
        if _may_repeat(event, found) and event.seq != found.seq and event.body is not None
    ]
    return Redaction(
        event=_redacted(node, RedactionBody(found.seq), found.scope),
        erasure=Erasure(found.seq, found.seq, "body"),
        others=others[:OTHERS_SHOWN],
    )


def _may_repeat(event: Recorded, found: Recorded) -> bool:
    """Whether an event of the same object may say what another one says: problems of a record set
    name its endpoints."""
    return event.type == found.type or _is_erasable_status(event)


def _is_erasable_status(event: Recorded) -> bool:
    return event.type == OBJECT_STATUS and not event.key.startswith(f"{DNS_ZONE.name}/")


def _check_body(node: Node, event: Recorded) -> None:
    if event.type != OBJECT_APPLIED and not _is_erasable_status(event):
        fault = f"it is {event.type}, which verification or replay needs, and holds no object"
        raise Invalid(f"position {event.seq}", [Cause("", fault)])
    if event.body is None:
        raise Conflict(f"position {event.seq} was redacted already")
    entry = node.objects.entry(event.key)
    if entry is not None and event.seq in (entry.applied, entry.status):
        raise Conflict(
            f"position {event.seq} is what {ref_of(event.key)} is now: delete or change it first, "
            "then redact the position"
        )
    if event.type == OBJECT_APPLIED and (serial := _named_by(node, event)):
        raise Conflict(
            f"position {event.seq} is part of the version that serial {serial} names, which must "
            "mean the same for ever: change the zone once more, then redact the position"
        )


def _named_by(node: Node, event: Recorded) -> int:
    """The serial of the newest version of a zone that a content is part of; 0 when it is of none.
    Of a DNSZone also when it is gone, as the highest serial of its name is known by what it was."""
    name = event.scope.partition("/")[2]
    zone = key_of(DNS_ZONE.name, "", name)
    upto = None
    if event.key == zone:
        ends = (e.seq for e in node.log.read(event.seq, key=zone) if e.type == OBJECT_DELETED)
        upto = next(ends, None)
    elif (state := node.zones.state(name)) is None or state.zone is None:
        return 0
    changes = (OBJECT_APPLIED, OBJECT_MOVED, OBJECT_DELETED)
    later = (e.seq for e in node.log.read(event.seq, key=event.key) if e.type in changes)
    until = next(later, node.log.head().seq + 1)
    serial, stamped = as_of.last_stamp(node.log, zone, upto)
    return serial if event.seq < stamped < until else 0


def _redaction_of_who(node: Node, event: Recorded) -> Redaction:
    """Rows of a change set have one author under one salt: it goes from all of them."""
    if event.type in (PAYLOAD_REDACTED, LOG_PRUNED, LOG_EPOCH):
        fault = "it says who took something out of the log, which stays"
        raise Invalid(f"position {event.seq}", [Cause("", fault)])
    if event.who is None:
        raise Conflict(f"who did position {event.seq} was redacted already")
    last = event.txn + event.n - 1
    body = RedactionBody(event.txn, "who", last if last != event.txn else 0)
    return Redaction(
        event=_redacted(node, body, "/"), erasure=Erasure(event.txn, last, "who"), others=[]
    )


def _redacted(node: Node, body: RedactionBody, scope: str) -> Event:
    version = node.log.stream_version(REDACTION_KEY) + 1
    return Event(PAYLOAD_REDACTED, REDACTION_KEY, version, scope, CONTROLLER, canonical(body))


# --- pruning --------------------------------------------------------------------------------


class Pruning(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that may go."""

    anchor: Anchor
    rows: int
    kept: int  # rows up to there that stay, as they make the state

    @property
    def upkeep(self) -> Upkeep:
        return Upkeep(prune=self.anchor)

    def change_set(self, node: Node, who: Who, now_us: int) -> ChangeSet:
        """Raises: Conflict when another pruning was faster."""
        if node.log.oldest() >= self.anchor.upto:
            raise Conflict("the log was pruned meanwhile; look again")
        body = PrunedBody(self.anchor.upto, self.anchor.size, digest_of(self.anchor), self.rows)
        version = node.log.stream_version(PRUNING_KEY) + 1
        event = Event(LOG_PRUNED, PRUNING_KEY, version, "/", CONTROLLER, canonical(body))
        return ChangeSet((event,), msgspec.structs.replace(who, wall=now_us))


def position_before(text: str, log: EventLog, now_us: int) -> int:
    """The position before which rows are to go, by a target; 0 where none are so old. Raises:
    Invalid for a text that is no target, or one that is to come."""
    try:
        position = targets.resolve(text, log, now_us, is_limit=True)
    except (NotFound, Pruned) as error:
        if targets.position_in(text) is not None and not isinstance(error, Pruned):
            raise
        return 0
    return position if targets.position_in(text) is not None else position + 1


def older_than(age: timedelta, log: EventLog, now_us: int) -> int:
    """The position before which rows are older than that, by the times of the log, which never go
    back: where a clock was once ahead, rows go later."""
    return log.position_at(max(0, now_us - age // timedelta(microseconds=1))) + 1


def plan_pruning(log: VerifiableLog, before: int) -> Pruning | None:
    """What may go of the rows before a position; None when nothing may. Reads all of it."""
    newest = log.newest_checkpoint()
    upto = limit(before, newest.size if newest is not None else 0)
    if upto <= log.oldest():
        return None
    keeper, count = Keeper(), 0
    for event in log.read(0, upto):
        keeper.feed(event)
        count += 1
    kept = keeper.kept()
    if not count - (stay := int.from_bytes(kept).bit_count()):
        return None
    size = next(log.checkpoints(upto)).size
    return Pruning(anchor=Anchor(size, kept), rows=count - stay, kept=stay)
