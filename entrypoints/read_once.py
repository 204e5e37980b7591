"""What is made of objects, once for every event of theirs."""

from collections.abc import Callable
from typing import Generic, TypeVar

from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key
from kudurru.entrypoints.wiring import Node

T = TypeVar("T")


class ReadOnce(Generic[T]):
    """By key, as the newest events have it. Only of objects that are there something is kept, so
    that a flood of unknown names reads nothing and takes no room."""

    def __init__(self, node: Node, make: Callable[[StoredObject, int], T]) -> None:
        """`make` is given an object and the seq of the event that it is of."""
        self._objects = node.objects
        self._make = make
        self._made: dict[Key, tuple[int, T]] = {}

    def find(self, key: Key) -> T | None:
        """Raises what `make` does, and tries again the next time."""
        entry, made = self._objects.entry(key), self._made.get(key)
        if entry is None:
            self._made.pop(key, None)
            return None
        if made is None or made[0] != entry.applied:
            stored = self._objects.find(key)
            assert stored is not None
            made = self._made[key] = entry.applied, self._make(stored, entry.applied)
        return made[1]
