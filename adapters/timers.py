"""Timers of the event loop."""

import asyncio
from collections.abc import Callable

from kudurru.domain.ports import Timer


class LoopTimers:
    """`Timers` of the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def call_later(self, delay_us: int, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_us / 1_000_000, callback)
