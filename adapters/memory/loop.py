"""An event loop whose time is in the hands of a test."""

import asyncio
import selectors
from collections.abc import Coroutine
from math import ceil
from typing import Any, TypeVar

from kudurru.adapters.memory.clock import ManualClock

T = TypeVar("T")

TURNS_MAX = 1_000_000
"""Of the loop in one test: some ten seconds, and more than any should need. A test that never ends
would otherwise go through years in no time, and a time limit cannot break into a callback."""


class ManualLoop(asyncio.SelectorEventLoop):
    """Runs on a `ManualClock`: when there is nothing to do, the clock goes on to what is due next,
    at once. For code that waits for nothing but timers and itself; sockets and threads would
    have to hurry."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(_Hasty(clock))
        self._manual = clock

    def time(self) -> float:
        return self._manual.monotonic_us() / 1e6


class _Hasty(selectors.DefaultSelector):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise RuntimeError("this goes on for ever")
        if ready := super().select(0):
            return ready
        if timeout is None:
            raise RuntimeError("everything waits for something that will never come")
        self._clock.advance(ceil(timeout * 1e6))
        return []


def run_manually(main: Coroutine[Any, Any, T], clock: ManualClock) -> T:
    """As `asyncio.run`, on a `ManualLoop`."""
    with asyncio.Runner(loop_factory=lambda: ManualLoop(clock)) as runner:
        return runner.run(main)
