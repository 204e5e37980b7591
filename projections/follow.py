"""How views follow the log.

A projection holds nothing that the log does not say: it is dropped and rebuilt at will, and a
rebuilt one equals the live one, by digest. Live and replayed events take the same road.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from kudurru.domain.errors import ADVICE, LogDamaged
from kudurru.domain.events import KNOWN_TYPES, Position, Recorded
from kudurru.domain.ports import EventLog


class Projection(Protocol):
    """A view of the log."""

    @property
    def name(self) -> str: ...

    @property
    def position(self) -> Position:
        """Seq of the newest event that is in the view."""
        ...

    def apply(self, event: Recorded) -> None:
        """Take in the next event, the one right after `position`. Never raises for what an event
        says: what was accepted once replays for ever. Raises LogDamaged where an older event is
        gone that it needs."""
        ...

    def advance(self, now_s: int) -> None:
        """Let time pass without an event: what expires before or at `now_s` leaves the view."""
        ...

    def reset(self) -> None:
        """Back to the empty state, at position 0."""
        ...

    def digest(self) -> str:
        """Hex digest of the whole view; equal for equal content, however it came about."""
        ...

    def dump(self) -> Iterator[bytes]:
        """The view at its position, in parts of bounded size. Not inside a change set."""
        ...

    def load(self, parts: Iterator[bytes]) -> None:
        """Become what `dump` told, from the empty state. The position is set last. Raises
        msgspec.MsgspecError, or what Python does, for parts that are not from `dump`."""
        ...


class Follower:
    """Keeps projections in step: each event reaches all of them, in the order given, before the
    next event does. So a later projection may read an earlier one, and the reverse sees the state
    before the event.

    An event type that this version does not know stops the follower there: what is served stays
    right as of that position, and `stopped_at` says why nothing newer comes.
    """

    def __init__(
        self,
        projections: Sequence[Projection],
        oldest: Callable[[], Position] = lambda: Position(0),
    ) -> None:
        """Up to the `oldest` position of a pruned log events are left out."""
        self.projections = tuple(projections)
        self._applies = tuple(projection.apply for projection in projections)
        self._oldest = oldest
        self._pruned_upto = Position(0)  # as far as was asked for
        self._in_step = -1  # position that all were at when an event had reached the last
        self.stopped_at: Recorded | None = None

    @property
    def position(self) -> Position:
        return min((p.position for p in self.projections), default=Position(0))

    def apply(self, event: Recorded) -> None:
        if self.stopped_at is not None:
            return
        if event.type not in KNOWN_TYPES:
            self.stopped_at = event
            return
        seq = event.seq
        if seq == self._in_step + 1 and self.projections[-1].position == self._in_step:
            # As nearly always: nobody is behind, and a million events need not be asked for it.
            self._in_step = -1  # until all have it: one may raise
            for apply in self._applies:
                apply(event)
            self._in_step = seq
            return
        self._apply_where_new(event)

    def _apply_where_new(self, event: Recorded) -> None:
        seq = event.seq
        for projection in self.projections:
            position = projection.position
            if seq > position:
                if seq != position + 1 and not self._is_pruned(seq):
                    message = f"row {position + 1} is missing from the log; {ADVICE}"
                    raise LogDamaged("gap", position + 1, message)
                projection.apply(event)
        if all(projection.position == seq for projection in self.projections):
            self._in_step = seq

    def _is_pruned(self, seq: int) -> bool:
        if seq > self._pruned_upto:
            self._pruned_upto = self._oldest()
        return seq <= self._pruned_upto

    def feed(self, events: Iterable[Recorded]) -> int:
        """Apply events; how many were taken in."""
        count = 0
        for event in events:
            self.apply(event)
            if self.stopped_at is not None:
                break
            count += 1
        return count

    def catch_up(self, log: EventLog, upto: int | None = None) -> int:
        """Read what is new in the log, up to a position when one is given."""
        return self.feed(log.read(self.position, upto))

    def advance(self, now_s: int) -> None:
        for projection in self.projections:
            projection.advance(now_s)

    def reset(self) -> None:
        self.stopped_at, self._in_step = None, -1
        for projection in self.projections:
            projection.reset()
