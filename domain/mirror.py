"""What the log and a Kubernetes cluster tell each other, as facts in the log.

With the cluster as owner a write is three steps: `mirror.intended` says who wants what and why, the
API server is asked, `mirror.written` says which versions came of it; what a crash leaves open is
settled by reading the objects. `mirror.synced` says up to which version of each kind the log has
followed, and with it which cluster the log is of; `mirror.restored` that the cluster was set back.

All are in one stream. Its newest event names the cluster that a log belongs to.
"""

from collections.abc import Iterable

import msgspec

from kudurru.domain.codec import canonical
from kudurru.domain.commands import Apply, Command, Delete, Observe, RecordFact, Revert
from kudurru.domain.events import (
    MIRROR_INTENDED,
    MIRROR_KEY,
    MIRROR_RESTORED,
    MIRROR_SYNCED,
    MIRROR_WRITTEN,
    Recorded,
)
from kudurru.domain.kinds.registry import KINDS
from kudurru.domain.object_store import CONTROLLER, manager_faults
from kudurru.domain.objects import Key

LOCAL_MANAGERS = ("secondary:", "catalog:")
"""Whose objects are each node's own: what it fetched from a primary."""

MIRRORED = tuple(kind for kind in KINDS.values() if not kind.is_internal)
_MIRRORED_NAMES = frozenset(kind.name for kind in MIRRORED)

COPY_PREFIX = "mirror:"
"""Manager, in the cluster, of what is copied there from a log; the log's name follows."""


class Aim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One object of an intent."""

    verb: str  # "apply" or "delete"
    key: Key
    made: str = ""  # digest of what is to be there: tells the intent's own work from another's


class Intended(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Payload of mirror.intended.v1."""

    cluster: str  # uid of kube-system; "" where that may not be read
    aims: list[Aim]


class Version(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of one object, as the API server answered; both empty for one that is gone."""

    key: Key
    uid: str
    resource_version: str


class Written(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Payload of mirror.written.v1."""

    cluster: str
    intent: int = 0  # its position; 0: the objects of the log are the intent
    versions: list[Version]
    refused: str = ""  # why not all of it was done
    is_settled: bool = False  # by reading, after an answer was lost


class Synced(msgspec.Struct, frozen=True, kw_only=True):
    """Payload of mirror.synced.v1: the list that the log has all of, by kind."""

    cluster: str
    versions: dict[str, str]


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """Payload of mirror.restored.v1: the cluster was at `seen` and is at `now`."""

    cluster: str
    kind: str
    seen: str
    now: str


class _OfCluster(msgspec.Struct, frozen=True):
    cluster: str


Body = Intended | Written | Synced | Restored
_TYPES: dict[type, str] = {
    Intended: MIRROR_INTENDED,
    Written: MIRROR_WRITTEN,
    Synced: MIRROR_SYNCED,
    Restored: MIRROR_RESTORED,
}


def fact(body: Body, version: int) -> RecordFact:
    """Order to record it. `version` is that of the stream now."""
    return RecordFact(
        type=_TYPES[type(body)],
        key=MIRROR_KEY,
        ver=version + 1,
        scope="/",
        manager=CONTROLLER,
        body=canonical(body),
    )


def is_mirrored(key: Key, manager: str | None) -> bool:
    """Whether an object is in the cluster too."""
    is_local = (manager or "").startswith(LOCAL_MANAGERS)
    return key.partition("/")[0] in _MIRRORED_NAMES and not is_local


def manager_fault(manager: str) -> str:
    """Why no object of the cluster may be of a manager; "" where it may. One of a node's own would
    take it out of the node's comparison with the cluster."""
    if manager.startswith(LOCAL_MANAGERS):
        return f"{manager!r} is reserved: a node's own objects are in no cluster"
    return "; ".join(fault.message for fault in manager_faults(manager, from_outside=False))


def key_of_command(command: Command) -> Key:
    return command.manifest.key if isinstance(command, Apply | Observe) else command.key


def is_for_cluster(command: Command) -> bool:
    """Whether a command is the cluster's to carry out, as far as itself says."""
    match command:
        case Apply() | Revert():
            return is_mirrored(key_of_command(command), command.manager)
        case Delete():
            return is_mirrored(command.key, None)
        case _:
            return False


def cluster_of(event: Recorded) -> str:
    """The cluster that an event of the stream is about; "" where it is not known."""
    return msgspec.json.decode(event.body, type=_OfCluster).cluster if event.body else ""


def open_intent(newest_first: Iterable[Recorded]) -> Recorded | None:
    """The intent without an outcome. They are carried out one by one, so only the newest can be."""
    for event in newest_first:
        if event.type == MIRROR_WRITTEN:
            return None
        if event.type == MIRROR_INTENDED:
            return event
    return None


def newest_synced(newest_first: Iterable[Recorded]) -> Synced | None:
    for event in newest_first:
        if event.type == MIRROR_SYNCED and event.body is not None:
            return msgspec.json.decode(event.body, type=Synced)
    return None


def followed(newest_first: Iterable[Recorded]) -> dict[str, str]:
    """By kind, the version up to which the log has followed the cluster, which may have been set
    back since that was noted."""
    set_back: dict[str, str] = {}
    for event in newest_first:
        if event.body is None:
            continue
        if event.type == MIRROR_SYNCED:
            return msgspec.json.decode(event.body, type=Synced).versions | set_back
        if event.type == MIRROR_RESTORED:
            restored = msgspec.json.decode(event.body, type=Restored)
            set_back.setdefault(restored.kind, restored.now)
    return set_back


def version_number(version: str) -> int:
    """Versions of one resource are ordered as integers (KEP-5504); 0 for what is none."""
    return int(version) if version.isdecimal() else 0
