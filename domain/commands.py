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


Command = Apply | UpdateStatus | Delete | Revert | RecordFact
