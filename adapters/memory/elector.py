"""One leader per name among those who share a log in memory."""

import asyncio


class MemoryElector:
    """See `Elector`."""

    def __init__(self, leader: asyncio.Lock) -> None:
        self._leader = leader  # held by who leads
        self._resigned = asyncio.Event()
        self._resigned.set()

    async def campaign(self) -> None:
        if self._resigned.is_set():
            await self._leader.acquire()
            self._resigned.clear()

    async def lost(self) -> None:
        await self._resigned.wait()

    async def resign(self) -> None:
        if not self._resigned.is_set():
            self._resigned.set()
            self._leader.release()
