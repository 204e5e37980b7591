"""One leader per name among those who share a log in memory."""

import asyncio


class MemoryElector:
    """See `Elector`."""

    def __init__(self, leader: asyncio.Lock) -> None:
        self._leader = leader  # held by who leads
        self._is_held = False
        self._lost = asyncio.Event()
        self._lost.set()

    async def campaign(self) -> None:
        if not self._is_held:
            await self._leader.acquire()
            self._is_held = True
        self._lost.clear()

    async def lost(self) -> None:
        await self._lost.wait()

    def revoke(self) -> None:
        """Lose the term, as over a network. Nobody leads until this one resigned."""
        self._lost.set()

    async def resign(self) -> None:
        self._lost.set()
        if self._is_held:
            self._is_held = False
            self._leader.release()
