"""Notices kept in memory."""

from collections import deque

from kudurru.domain.ports import Notice

KEPT_MAX = 1_024


class MemorySink:
    """`EventSink` that keeps the newest."""

    def __init__(self, limit: int = KEPT_MAX) -> None:
        self._kept: deque[Notice] = deque(maxlen=limit)
        self.dropped = 0

    def post(self, notice: Notice) -> None:
        self.dropped += len(self._kept) == self._kept.maxlen
        self._kept.append(notice)

    @property
    def notices(self) -> list[Notice]:
        """In the order of their coming."""
        return list(self._kept)
