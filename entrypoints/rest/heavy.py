"""Work of requests that would hold up the loop: in threads, few at a time, and of no token all."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from kudurru.entrypoints.waiting import Threads

HEAVY_MAX = 2
"""At once: each holds a thread, and the disk. Of one token one, so that who asks for much makes
nobody else wait for more than that."""


class Heavy:
    """Of one node, on one event loop. What takes long and what does not are not in one of these:
    or who reads the past could write no large body meanwhile."""

    def __init__(self, name: str) -> None:
        self._threads = Threads(HEAVY_MAX, f"kudurru-{name}")
        self.room = asyncio.Semaphore(HEAVY_MAX)
        self._turns: dict[str, asyncio.Lock] = {}  # of those who have asked for something
        self._asked = Counter[str]()

    async def run(self, of: str, work: Callable[[], Any]) -> Any:
        """What work returns or raises, once there is room. `of` is the name of the token."""
        turn = self._turns.setdefault(of, asyncio.Lock())
        self._asked[of] += 1
        try:
            async with turn, self.room:
                return await self._threads.run(work)
        finally:
            self._asked[of] -= 1
            if not self._asked[of]:
                del self._asked[of], self._turns[of]
