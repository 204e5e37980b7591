"""A log in memory that several nodes share, as they share one in PostgreSQL."""

from collections.abc import Callable, Sequence

from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain.errors import StorageFailed
from kudurru.domain.events import ChangeSet, Recorded


class SharedMemoryLog(MemoryEventLog):
    """Wakes its followers after each append. `get` fails: whoever shares a log holds the bodies
    of what it has, and asks nobody for them."""

    wakes: list[Callable[[], None]]

    @property
    def is_shared(self) -> bool:
        return True

    def get(self, seq: int) -> Recorded | None:
        if seq == self.head().seq:
            return super().get(seq)  # the clock of the newest event, asked for once
        raise StorageFailed("a body was read over the network")

    def follow(self, wake: Callable[[], None]) -> None:
        self.__dict__.setdefault("wakes", []).append(wake)

    def append(
        self, change_sets: Sequence[ChangeSet], now_us: int, *, head_seq: int | None = None
    ) -> list[Recorded]:
        recorded = super().append(change_sets, now_us, head_seq=head_seq)
        for wake in self.__dict__.get("wakes", ()):
            wake()
        return recorded
