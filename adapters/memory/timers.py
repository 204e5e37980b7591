"""Timers that run when a test lets time pass."""

import heapq
from collections.abc import Callable
from itertools import count

from kudurru.adapters.memory.clock import ManualClock


class ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualTimers:
    """`Timers` on a clock in the hands of a test."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._due: list[tuple[int, int, ManualTimer]] = []
        self._number = count()

    def call_later(self, delay_us: int, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(callback)
        due_us = self.clock.monotonic_us() + delay_us
        heapq.heappush(self._due, (due_us, next(self._number), timer))
        return timer

    def waits_us(self) -> list[int]:
        """How long until each, the next one first."""
        now_us = self.clock.monotonic_us()
        return sorted(due - now_us for due, _, timer in self._due if timer.callback is not None)

    def advance(self, us: int) -> None:
        """Let time pass; what falls due is called at its time, in order."""
        until_us = self.clock.monotonic_us() + us
        while self._due and self._due[0][0] <= until_us:
            due_us, _, timer = heapq.heappop(self._due)
            if timer.callback is not None:
                self.clock.advance(max(0, due_us - self.clock.monotonic_us()))
                timer.callback()
        self.clock.advance(until_us - self.clock.monotonic_us())
