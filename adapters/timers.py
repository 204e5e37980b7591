"""Timers of the event loop, and waiting on any timers."""

import asyncio
from collections.abc import Callable

from kudurru.domain.ports import Timer, Timers


class LoopTimers:
    """`Timers` of the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def call_later(self, delay_us: int, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_us / 1_000_000, callback)


async def sleep(timers: Timers, delay_us: int) -> None:
    """Until so much time has passed on these timers."""
    over = asyncio.Event()
    timer = timers.call_later(delay_us, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()
