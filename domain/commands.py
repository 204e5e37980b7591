"""Commands: orders that the log is asked to record as facts, or refuses."""

from typing import Any

import msgspec

from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.objects import Key

ABSENT = ""
"""As `expected` of an Apply: the object is not there."""


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """Create the object, or replace its spec, labels and annotations."""

    manifest: Manifest
    manager: str
    force: bool = False  # take the whole object over from another manager
    expected: str | None = None  # resourceVersion the caller read, or ABSENT


class UpdateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Replace the status, and nothing else."""

    key: Key
    status: dict[str, Any]
    expected: str  # resourceVersion the status was computed from


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    key: Key
    manager: str | None = None  # None: whoever manages it
    force: bool = False
    expected: str | None = None


class Revert(msgspec.Struct, frozen=True, kw_only=True):
    """Give an object a state that it had before: this spec, these labels and annotations and no
    others. For restore and undo; whether its owner agrees is theirs to ask."""

    key: Key
    spec: msgspec.Raw  # canonical JSON, as it was recorded
    labels: dict[str, str]
    annotations: dict[str, str]
    manager: str  # owner that the object has from then on
    created: str  # creationTimestamp where the object has to be made again


class RecordFact(msgspec.Struct, frozen=True, kw_only=True):
    """Record a fact that changes no object, such as a mark."""

    type: str
    key: Key  # its stream
    ver: int  # version that it has there
    scope: str
    manager: str
    body: bytes  # canonical JSON


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Where in a Kubernetes cluster a version of an object is from: with the object's uid this
    tells it from all others of that cluster."""

    resource_version: str
    field_manager: str = ""  # who wrote it there, where that is known


class Observe(msgspec.Struct, frozen=True, kw_only=True):
    """An object is like this in the cluster that owns it, uid, generation and time of its creation
    included. Whether our rules would have allowed it is not asked: it is there."""

    manifest: Manifest
    manager: str  # its owner from then on
    origin: Origin
    status: dict[str, Any] | None = None  # None: leave what the log has


class ObserveGone(msgspec.Struct, frozen=True, kw_only=True):
    """An object is not in the cluster any more. One that the log has not either is no fault."""

    key: Key
    origin: Origin


Command = Apply | UpdateStatus | Delete | Revert | RecordFact | Observe | ObserveGone
