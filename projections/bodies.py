"""Bodies of the objects that there are, held in memory.

The other views hold positions and read bodies from the log when they need one. Where the log is on
another machine, a read may take long or fail, and DNS must go on: there this view holds what can be
asked for, some hundred octets an object beside its body. It comes first in a follower, so that the
others find what they are about to apply.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec

from kudurru.domain.events import (
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_STATUS,
    Position,
    Recorded,
)
from kudurru.projections.objects_view import ObjectsView

PART_EVENTS = 1_000


class Bodies:
    """Implements `projections.follow.Projection`."""

    name = "bodies"

    def __init__(self, objects: ObjectsView) -> None:
        self._objects = objects
        self.reset()

    def reset(self) -> None:
        self.position = Position(0)
        self._events: dict[int, Recorded] = {}
        self._superseded: list[int] = []

    def apply(self, event: Recorded) -> None:
        self.position = event.seq
        # What the event before this one replaced was still asked for while it was applied.
        for seq in self._superseded:
            self._events.pop(seq, None)
        self._superseded.clear()
        entry = self._objects.entry(event.key)
        if event.type in (OBJECT_APPLIED, OBJECT_STATUS):
            self._events[event.seq] = msgspec.structs.replace(event, who=None)
        if entry is None:
            return
        if event.type in (OBJECT_APPLIED, OBJECT_DELETED):
            self._superseded.append(entry.applied)
        if event.type in (OBJECT_STATUS, OBJECT_DELETED) and entry.status:
            self._superseded.append(entry.status)

    def advance(self, now_s: int) -> None:
        """Bodies do not expire."""

    def find(self, seq: int) -> Recorded | None:
        return self._events.get(seq)

    def __len__(self) -> int:
        """How many the objects of now have."""
        return len(self._events) - len(self._superseded)

    def digest(self) -> str:
        return f"{len(self):x}"

    def dump(self) -> Iterator[bytes]:
        yield msgspec.msgpack.encode((self.position, len(self._events), self._superseded))
        events = iter(self._events.values())
        while some := list(islice(events, PART_EVENTS)):
            yield msgspec.msgpack.encode(some)

    def load(self, parts: Iterator[bytes]) -> None:
        kind = tuple[Position, int, list[int]]
        position, count, superseded = msgspec.msgpack.decode(next(parts), type=kind)
        while len(self._events) < count:
            for event in msgspec.msgpack.decode(next(parts), type=list[Recorded]):
                self._events[event.seq] = event
        self._superseded, self.position = superseded, position
