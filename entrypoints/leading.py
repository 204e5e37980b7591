"""The elector of a node that shares its log with nobody."""

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
