"""Turns of the loop, shared among connections.

A connection may bring a millisecond of work with each read, and there may be a thousand of them:
one after the other they would keep the loop from everybody else, DNS over UDP first of all. So all
connections of a node have TURN_S of each turn of the loop between them, and who comes later stands
in line.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

TURN_S = 0.002  # as long as a batch of datagrams may take


class Turns:
    """Belongs to one loop. A piece of work should take less than a millisecond: it is not cut."""

    def __init__(self, now_s: Callable[[], float] = perf_counter) -> None:
        self._now_s = now_s
        self._line: deque[Callable[[], None]] = deque()
        self._spent_s = 0.0  # of this turn of the loop
        self._is_begun = False

    def take(self, work: Callable[[], None]) -> None:
        """Do a piece of work: at once where this turn has time, else in line."""
        if self._line or self._spent_s >= TURN_S:
            self.wait(work)
        else:
            self._do(work)

    def wait(self, work: Callable[[], None]) -> None:
        """Do a piece of work when it is its turn: for who has had one already."""
        self._line.append(work)
        self._begin()

    def _do(self, work: Callable[[], None]) -> None:
        self._begin()
        started_s = self._now_s()
        try:
            work()
        finally:
            self._spent_s += self._now_s() - started_s

    def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_begun = False
        self._spent_s = 0.0
        while self._line:
            self._do(self._line.popleft())
            if self._spent_s >= TURN_S:
                break
        if self._line:
            self._begin()
