"""Keys of objects and what the log knows of one.

A `Key` names an object for ever: `Kind/namespace/name`, the namespace empty for cluster-scoped
kinds. It is one string because a million of them are held in memory and a string hashes once.
"""

from typing import NewType

import msgspec

Key = NewType("Key", str)


class ObjectRef(msgspec.Struct, frozen=True):
    """The parts of a key."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {where}{self.name}"


def key_of(kind: str, namespace: str, name: str) -> Key:
    """No part may hold a slash: validation of kinds and names guarantees it."""
    return Key(f"{kind}/{namespace}/{name}")


def name_of(key: Key) -> str:
    """As `ref_of`, quicker: also of a key that a hostile log gave another slash."""
    return key.split("/", 2)[2]


def ref_of(key: Key) -> ObjectRef:
    kind, namespace, name = key.split("/", 2)
    return ObjectRef(kind, namespace, name)
