"""Work of requests that reads much of the log: in threads, few at a time, and of no token all."""

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

    async def run(self, of: str, work: Callable[[], Any]) -> Any:
        """What work returns or raises, once there is room. `of` is the name of the token."""
        turn = self._turns.setdefault(of, asyncio.Lock())
        self._asked[of] += 1
        try:
            async with turn, self.room:
                return await asyncio.to_thread(work)
        finally:
            self._asked[of] -= 1
            if not self._asked[of]:
                del self._asked[of], self._turns[of]
