"""Waiting by `Timers`, so that a test lets a day pass in no time."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from kudurru.domain.ports import Timers

T = TypeVar("T")


async def pause(timers: Timers, delay_us: int) -> None:
    """Wait so many microseconds."""
    over = _over()
    timer = timers.call_later(delay_us, lambda: _end(over))
    try:
        await over
    finally:
        timer.cancel()


async def alone(fn: Callable[[], T], name: str) -> T:
    """What `fn` returns or raises in a thread of its own. As `asyncio.to_thread`, except that the
    end of the loop and of the process do not wait for a thread that is wanted no more."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: None if done.done() else settle())

    def work() -> None:
        try:
            result = fn()
        except Exception as error:
            fault = error
            tell(lambda: done.set_exception(fault))
        else:
            tell(lambda: done.set_result(result))

    threading.Thread(target=work, name=name, daemon=True).start()
    return await done


class Threads:
    """A few of their own, for what takes long: what else a node does in threads, its writes too,
    never waits for it. A thread cannot be stopped, and one that nobody waits for any more is in use
    until it has ended."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, name)

    async def run(self, fn: Callable[[], T]) -> T:
        """What `fn` returns or raises, once a thread is free."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, fn)


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
