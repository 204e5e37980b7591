"""Reminders after one of a few delays, nearly all of which are taken back before they fall due.

A timer of the loop for each would cost more than the query that it guards, and a finished query
that is remembered until its time-out would hold its memory for so long. So what waits for the same
delay is in one dictionary, in the order it falls due, under one timer.
"""

from functools import partial
from itertools import takewhile
from typing import Protocol

from kudurru.domain.ports import Clock, Timers

DELAYS_MAX = 8
"""Different delays that are looked after together: two of the time-out that is set, and of those
that were. Others get timers of their own."""


class Reminded(Protocol):
    """Known by its identity."""

    def fall_due(self) -> None: ...


class Queue(dict[Reminded, int]):
    """What waits, and the monotonic time when it falls due. To take a reminder back, pop it."""

    __slots__ = ("is_armed",)

    def __init__(self) -> None:
        super().__init__()
        self.is_armed = False


class Delays:
    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self._queues: dict[int, Queue] = {}

    def remind(self, one: Reminded, delay_us: int, now_us: int) -> Queue:
        """Have `fall_due` called after so many microseconds; where it waits until then. It must
        not wait for the same delay already."""
        queue = self._queues.get(delay_us)
        if queue is None:
            queue = Queue()
            if len(self._queues) < DELAYS_MAX:
                self._queues[delay_us] = queue
        if not queue.is_armed:
            self._arm(queue, delay_us)
        queue[one] = now_us + delay_us
        return queue

    def _arm(self, queue: Queue, delay_us: int) -> None:
        queue.is_armed = True
        self._timers.call_later(delay_us, partial(self._call_due, queue))

    def _call_due(self, queue: Queue) -> None:
        now_us = self._clock.monotonic_us()
        due = [one for one, _ in takewhile(lambda item: item[1] <= now_us, queue.items())]
        try:
            for one in due:
                # One that was called before may have taken it back.
                if queue.pop(one, None) is not None:
                    one.fall_due()
        finally:  # one that fails must not take the reminders of all others with it
            queue.is_armed = False
            if queue:
                first_us = next(iter(queue.values()))
                self._arm(queue, max(0, first_us - now_us))
