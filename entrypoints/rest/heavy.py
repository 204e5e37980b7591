"""Work of requests that reads much of the log: in threads, few at a time, and of no token all.

A thread cannot be stopped. So its place is taken until it has ended, whether the caller still waits
or went away: or who asks and goes, again and again, would have all threads of this process.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

HEAVY_MAX = 2
"""At once: each holds a thread, and the disk. Of one token one, so that who asks for much makes
nobody else wait for more than that."""


class Heavy:
    """Of one node, on one event loop."""

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(HEAVY_MAX)
        self._turns: dict[str, asyncio.Lock] = {}  # of those who have asked for something
        self._asked = Counter[str]()
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, of: str, work: Callable[[], Any]) -> Any:
        """What work returns or raises, once there is room. `of` is the name of the token."""
        has_begun = False
        turn = self._turns.setdefault(of, asyncio.Lock())
        self._asked[of] += 1

        async def done() -> Any:
            nonlocal has_begun
            async with turn, self.room:
                has_begun = True
                return await asyncio.to_thread(work)

        def over(task: asyncio.Task[Any]) -> None:
            self._running.discard(task)
            self._asked[of] -= 1
            if not self._asked[of]:
                del self._asked[of], self._turns[of]
            if not task.cancelled():
                task.exception()  # whoever asked for it may be gone

        running = asyncio.create_task(done())
        self._running.add(running)
        running.add_done_callback(over)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not has_begun:
                running.cancel()
            raise
