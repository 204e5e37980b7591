"""How views follow the log.

A projection holds nothing that the log does not say: it is dropped and rebuilt at will, and a
rebuilt one equals the live one, by digest. Live and replayed events take the same road.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

from kudurru.domain.events import Position, Recorded
from kudurru.domain.ports import EventLog

BATCH = 1_000
"""Events handed over at once when a view catches up."""


class Projection(Protocol):
    """A view of the log."""

    @property
    def name(self) -> str: ...

    @property
    def position(self) -> Position:
        """Seq of the newest event that is in the view."""
        ...

    def apply(self, events: Sequence[Recorded]) -> None:
        """Take in the next events: those right after `position`, in order. Never raises for what
        an event says: what was accepted once replays for ever."""
        ...

    def reset(self) -> None:
        """Back to the empty state, at position 0."""
        ...

    def digest(self) -> str:
        """Hex digest of the whole view; equal for equal content, however it came about."""
        ...


class Follower:
    """Keeps projections in step: each event reaches all of them, in the order given."""

    def __init__(self, projections: Sequence[Projection]) -> None:
        self.projections = tuple(projections)

    @property
    def position(self) -> Position:
        return min((p.position for p in self.projections), default=Position(0))

    def apply(self, events: Sequence[Recorded]) -> None:
        for projection in self.projections:
            fresh = events
            if events and events[0].seq <= projection.position:
                fresh = [event for event in events if event.seq > projection.position]
            if fresh:
                assert fresh[0].seq == projection.position + 1, "a projection was handed a gap"
                projection.apply(fresh)

    def catch_up(self, log: EventLog, upto: int | None = None) -> int:
        """Read what is new in the log; the number of events taken in."""
        return self.feed(log.read(self.position, upto))

    def feed(self, events: Iterable[Recorded]) -> int:
        count = 0
        source = iter(events)
        while batch := list(islice(source, BATCH)):
            self.apply(batch)
            count += len(batch)
        return count

    def reset(self) -> None:
        for projection in self.projections:
            projection.reset()
