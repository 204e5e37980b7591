"""Commands: orders that the log is asked to record as facts, or refuses."""

from typing import Any

import msgspec

from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.objects import Key


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """Create the object, or replace its spec, labels and annotations."""

    manifest: Manifest
    manager: str
    force: bool = False  # take the whole object over from another manager
    expected: str | None = None  # resourceVersion the caller read


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


Command = Apply | UpdateStatus | Delete
