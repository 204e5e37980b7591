"""The log as people and programs read it: events described, and found."""

from collections.abc import Callable
from typing import Any

import msgspec

from kudurru.domain import settings_changes, targets
from kudurru.domain.commands import Origin
from kudurru.domain.differences import differences
from kudurru.domain.errors import NotFound
from kudurru.domain.events import (
    AUDIT_MARKED,
    AUTH_ACTED,
    AUTH_DENIED,
    AUTH_LOGIN,
    BLOCKING_SET,
    CHECKPOINT_STATE,
    KEY_ADOPTED,
    MIRROR_INTENDED,
    MIRROR_RESTORED,
    MIRROR_SYNCED,
    MIRROR_WRITTEN,
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_MOVED,
    OBJECT_STATUS,
    OBJECT_TYPES,
    RESTORE_BEGUN,
    RESTORE_DONE,
    SETTINGS_CHANGED,
    Recorded,
    Who,
)
from kudurru.domain.filtering import pauses
from kudurru.domain.notation import time_text
from kudurru.domain.objects import ref_of
from kudurru.domain.ports import EventLog
from kudurru.projections import as_of

_VERBS = {
    OBJECT_STATUS: "status",
    OBJECT_DELETED: "deleted",
    OBJECT_MOVED: "moved",
    AUDIT_MARKED: "marked",
    RESTORE_DONE: "ended",
    SETTINGS_CHANGED: "set",
    AUTH_DENIED: "denied",
    AUTH_LOGIN: "came in",
    AUTH_ACTED: "acted",
    MIRROR_INTENDED: "intended",
    MIRROR_WRITTEN: "written",
    MIRROR_SYNCED: "followed",
    MIRROR_RESTORED: "went back",
}
_MIRROR = (MIRROR_INTENDED, MIRROR_WRITTEN, MIRROR_SYNCED, MIRROR_RESTORED)


class _FromCluster(msgspec.Struct, frozen=True):
    origin: Origin | None = None


Sees = Callable[[Recorded], bool]
"""Whether an event may be shown."""


def all_of_it(event: Recorded) -> bool:
    del event
    return True


def first_position(since: str, log: EventLog, now_us: int) -> int:
    """The first position that is not before a target."""
    text = since.strip()
    if (position := targets.position_in(text)) is not None:
        return position
    return log.position_at(targets.moment_us(text, now_us) - 1) + 1


def zone_meant(text: str, log: EventLog) -> str:
    """Name of the DNSZone that a person means, by object name or DNS name; as they wrote it where
    there is none any more."""
    try:
        return as_of.zone_named(log, text, log.head().seq)
    except NotFound:
        return text.rstrip(".").lower()


def matches(event: Recorded, zone: str | None, actor: str | None) -> bool:
    """Whether a change is asked for. Checkpoints change nothing: `audit tail` shows them."""
    if event.type in (CHECKPOINT_STATE, KEY_ADOPTED):
        return False
    if zone is not None and event.scope.partition("/")[2] != zone:
        return False
    return actor is None or actor in (who_of(event).actor, who_of(event).actor.partition(":")[2])


def who_of(event: Recorded) -> Who:
    if event.who is None:
        return Who(actor="(erased)")
    return msgspec.json.decode(event.who, type=Who)


def describe_event(
    event: Recorded, log: EventLog, *, with_changes: bool = False, sees: Sees = all_of_it
) -> dict[str, Any]:
    """An event as people and programs see it, if wanted with what changed field by field: from
    nothing, where what was before may not be seen."""
    who = who_of(event)
    ref = ref_of(event.key)
    where = f"{ref.namespace}/" if ref.namespace else ""
    document: dict[str, Any] = {
        "seq": event.seq,
        "txn": event.txn,
        "time": time_text(event.ts),
        "actor": who.actor,
        "source": who.source,
        "manager": event.manager,
        "verb": _verb(event, log),
        "type": event.type,
        "object": f"{ref.kind.lower()}/{where}{ref.name}",
        "reason": who.reason,
    }
    if who.cause:
        document["cause"] = who.cause
    if event.type in (RESTORE_BEGUN, RESTORE_DONE) and event.body is not None:
        document["restore"] = msgspec.json.decode(event.body)
    if event.type in (AUTH_DENIED, AUTH_LOGIN, AUTH_ACTED) and event.body is not None:
        document["access"] = msgspec.json.decode(event.body)
    if event.type in _MIRROR and event.body is not None:
        document["mirror"] = msgspec.json.decode(event.body)
    if event.type in OBJECT_TYPES and event.body is not None:
        origin = msgspec.json.decode(event.body, type=_FromCluster).origin
        if origin is not None:
            document["origin"] = msgspec.to_builtins(origin)
    if event.body is None:
        document["redacted"] = True
    elif with_changes and event.type == SETTINGS_CHANGED:
        document["changes"] = _settings_changes(event, log)
    elif with_changes:
        before = _previous(event, log, sees)
        document["changes"] = list(differences(before, _content(event)))
    return document


def _verb(event: Recorded, log: EventLog) -> str:
    if event.type == OBJECT_APPLIED:
        before = _before(event, log)
        is_new = before is None or before.type == OBJECT_DELETED
        return "created" if is_new else "changed"
    if event.type == RESTORE_BEGUN:
        return "begun" if log.stream_version(event.key) > 1 else "unfinished"
    if event.type == BLOCKING_SET and event.body is not None:
        return pauses.verb(event.body)
    return _VERBS.get(event.type, event.type)


def _before(event: Recorded, log: EventLog) -> Recorded | None:
    """The event before this one in its stream. Delete then create keeps the stream."""
    if event.ver == 1:
        return None
    return next(log.read(0, event.seq - 1, key=event.key, newest_first=True), None)


def _content(event: Recorded) -> dict[str, Any]:
    if event.body is None or event.type in (OBJECT_DELETED, OBJECT_MOVED):
        return {}
    body: dict[str, Any] = msgspec.json.decode(event.body)
    kept = ("spec", "labels", "annotations", "status")
    return {part: body[part] for part in kept if body.get(part)}


def _settings_changes(event: Recorded, log: EventLog) -> list[dict[str, Any]]:
    """Of settings, where they are kept."""
    changed = settings_changes.decode(event.body or b"").changed
    before = settings_changes.before(log, event)
    after = {path: value for path, value in changed.items() if value is not None}
    return list(differences(before, after))


def _previous(event: Recorded, log: EventLog, sees: Sees) -> dict[str, Any]:
    """Content of the event of the same type before this one, of the same object."""
    types = (OBJECT_APPLIED, OBJECT_DELETED) if event.type != OBJECT_STATUS else (OBJECT_STATUS,)
    for earlier in log.read(0, event.seq - 1, key=event.key, newest_first=True):
        if earlier.type in types:
            return _content(earlier) if sees(earlier) else {}
    return {}
