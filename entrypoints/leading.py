"""The electors of a node that shares its log with nobody, and of one that follows."""

import asyncio
from typing import NoReturn


class AlwaysLeader:
    """See `Elector`. One term, from the start to the end: no other node could have it."""

    async def campaign(self) -> None:
        """Won already."""

    async def lost(self) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def resign(self) -> None:
        """Nobody waits for it."""


class LeaderAfter:
    """See `Elector`, `NamesLeader`. A node that follows: it leads once it was promoted."""

    def __init__(self, promoted: asyncio.Event, leader: str) -> None:
        self._promoted = promoted
        self._leader = leader
        self.node_name = ""

    async def campaign(self) -> None:
        await self._promoted.wait()

    async def lost(self) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def resign(self) -> None:
        """Nobody waits for it."""

    async def leader(self) -> str | None:
        return self._leader
