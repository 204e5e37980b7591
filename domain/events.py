"""Events: facts of the log.

An event type has a stable short name with a version, never a Python path. A change of shape is a
new version and an upcaster; stored bytes never change. The stream of an object is its key; the
first event of a stream has version 1 and there are no gaps.
"""

from typing import NewType

import msgspec

from kudurru.domain.objects import Key

Position = NewType("Position", int)
"""A seq of the log: 1 for the first event, no gaps. 0 means before the first."""

POSITION_MAX = 2**53 - 1
"""The largest that anybody may name: larger ones are no numbers in JSON, nor in a database."""

OBJECT_APPLIED = "obj.applied.v1"
OBJECT_STATUS = "obj.status.v1"
OBJECT_DELETED = "obj.deleted.v1"
OBJECT_MOVED = "obj.moved.v1"
"""Recorded in the scope that a record set leaves when its zoneRef changes, so that reading one
scope as of a moment needs no other scope."""
CLOCK_STEPPED = "clock.stepped.v1"
PAYLOAD_REDACTED = "payload.redacted.v1"
"""Names payloads that were erased in the same transaction, in the scope of what they said."""
LOG_PRUNED = "log.pruned.v1"
"""Names the rows that were taken away in the same transaction, see `domain.pruning`."""
LOG_EPOCH = "log.epoch.v1"
"""The log goes on from a backup, see `domain.epochs`."""

CHECKPOINT_STATE = "checkpoint.state.v1"
"""Says what the log means up to here; the signed checkpoint covers it as its last leaf."""
KEY_ADOPTED = "key.adopted.v1"
"""Names the key that signs checkpoints from here on, see `domain.checkpoint`."""

AUDIT_MARKED = "audit.marked.v1"
RESTORE_BEGUN = "restore.begun.v1"
RESTORE_DONE = "restore.done.v1"

BLOCKING_SET = "blocking.set.v1"
"""Pauses what policies deny, or ends the pause, see `domain.filtering.pauses`."""

SETTINGS_CHANGED = "settings.changed.v1"
"""Settings that were changed through kudurru, and the layer that the log is from there on, see
`domain.settings_changes`."""
AUTH_DENIED = "auth.denied.v1"
"""Somebody was not let in, or not let do something, see `domain.access`."""
AUTH_LOGIN = "auth.login.v1"
"""A token was used from an address that it had not come from."""
AUTH_ACTED = "auth.acted.v1"
"""Somebody did what leaves no other event."""

MIRROR_INTENDED = "mirror.intended.v1"
"""Objects are about to be written to a Kubernetes cluster, see `domain.mirror`."""
MIRROR_WRITTEN = "mirror.written.v1"
MIRROR_SYNCED = "mirror.synced.v1"
MIRROR_RESTORED = "mirror.restored.v1"

OBJECT_TYPES = frozenset({OBJECT_APPLIED, OBJECT_STATUS, OBJECT_DELETED, OBJECT_MOVED})
CONTENT_TYPES = OBJECT_TYPES - {OBJECT_STATUS}
"""Types that change what people wrote, or where it stands."""
KNOWN_TYPES = OBJECT_TYPES | {
    CLOCK_STEPPED,
    PAYLOAD_REDACTED,
    LOG_PRUNED,
    LOG_EPOCH,
    CHECKPOINT_STATE,
    KEY_ADOPTED,
    AUDIT_MARKED,
    RESTORE_BEGUN,
    RESTORE_DONE,
    BLOCKING_SET,
    SETTINGS_CHANGED,
    AUTH_DENIED,
    AUTH_LOGIN,
    AUTH_ACTED,
    MIRROR_INTENDED,
    MIRROR_WRITTEN,
    MIRROR_SYNCED,
    MIRROR_RESTORED,
}

SYSTEM_KEY = Key("System//log")
"""Stream of facts about the log itself."""
CHECKPOINT_KEY = Key("System//checkpoint")
SIGNING_KEY = Key("System//key")
REDACTION_KEY = Key("System//redaction")
PRUNING_KEY = Key("System//pruning")
ACCESS_KEY = Key("System//access")
EPOCH_KEY = Key("System//epoch")
MIRROR_KEY = Key("System//mirror")


class Event(msgspec.Struct, frozen=True, gc=False):
    """A fact that was decided and is not yet recorded."""

    type: str
    key: Key  # the stream
    ver: int  # version in the stream
    scope: str  # "namespace/zone", either part may be empty; indexed for reads of one zone
    manager: str
    body: bytes  # canonical JSON


class Who(msgspec.Struct, frozen=True, kw_only=True):
    """Who did it, from where, and why. Hashed with its own salt, so that it can be erased."""

    actor: str  # "user:1000", "token:NAME", "system"
    source: str = ""  # how it came in: "cli", "socket", "api 192.0.2.1", ...
    reason: str = ""
    cause: str = ""  # the request, restore or event that led to this
    wall: int = 0  # microseconds UTC as the clock read, even where `ts` was held monotone


class SecretWrite(msgspec.Struct, frozen=True):
    """The secret part of an object, sealed, that is written beside the log together with the
    object's events; None takes it away. It is no part of the chain."""

    key: Key
    sealed: bytes | None


class ChangeSet(msgspec.Struct, frozen=True):
    """Events that become durable together or not at all, with one `who`."""

    events: tuple[Event, ...]
    who: Who
    secrets: tuple[SecretWrite, ...] = ()


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """An event with its place in the log."""

    seq: Position
    txn: Position  # seq of the first event of its change set
    n: int  # how many events its change set has
    ts: int  # microseconds UTC, never less than that of the event before
    type: str
    key: Key
    ver: int
    scope: str
    manager: str
    body: bytes | None  # None: erased by a redaction
    who: bytes | None  # canonical JSON of Who; None: erased
