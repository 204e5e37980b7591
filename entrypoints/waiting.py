"""Waiting by `Timers`, so that a test lets a day pass in no time."""

import asyncio
from collections.abc import Iterable
from typing import Any

from kudurru.domain.ports import Timers


async def pause(timers: Timers, delay_us: int) -> None:
    """Wait so many microseconds."""
    over = _over()
    timer = timers.call_later(delay_us, lambda: _end(over))
    try:
        await over
    finally:
        timer.cancel()


async def unfinished(
    tasks: Iterable["asyncio.Task[Any]"], timers: Timers, delay_us: int
) -> set["asyncio.Task[Any]"]:
    """Wait until all tasks are done, and no longer than that; those that are not."""
    over = _over()
    timer = timers.call_later(delay_us, lambda: _end(over))
    left = {task for task in tasks if not task.done()}
    try:
        while left and not over.done():
            await asyncio.wait({*left, over}, return_when=asyncio.FIRST_COMPLETED)
            left = {task for task in left if not task.done()}
    finally:
        timer.cancel()
        over.cancel()
    return left


def _over() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


def _end(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)
