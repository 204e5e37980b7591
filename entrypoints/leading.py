"""Work that one node of those that share a log does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from kudurru.domain.ports import Elector


async def lead(elector: Elector, work: Callable[[], Awaitable[NoReturn]]) -> NoReturn:
    """Do the work whenever this node leads, until it is cancelled. Raises what the work does."""
    try:
        while True:
            await elector.campaign()
            working = asyncio.ensure_future(work())
            lost = asyncio.ensure_future(elector.lost())
            try:
                await asyncio.wait({working, lost}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    working.result()  # raises: it ends by a fault only
            finally:
                await _end(working, lost)
    finally:
        await elector.resign()


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
