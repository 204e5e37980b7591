"""An event loop that says when there is nothing left to do.

A test lets time pass when all that can happen without it has happened, threads included: then
nothing depends on how fast the machine is. To turn the loop again and again in order to see does
depend on it, and takes the interpreter away from the very threads it waits for.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class IdleLoop(asyncio.SelectorEventLoop):
    """As asyncio's own. Timers of the loop itself, and sockets, are not waited for."""

    def __init__(self) -> None:
        self._watch = _Watch()
        super().__init__(self._watch)

    async def idle(self) -> None:
        """Until no callback is ready and no thread of `to_thread` works. For one at a time."""
        assert self._watch.waiter is None, "two wait for the same moment"
        self._watch.waiter = waiter = self.create_future()
        try:
            await waiter
        finally:
            self._watch.waiter = None

    def run_in_executor(  # type: ignore[override]  # typeshed has the arguments as a TypeVarTuple
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        future = super().run_in_executor(executor, func, *args)
        self._watch.threads += 1
        future.add_done_callback(self._watch.ended)
        return future


class _Watch(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.threads = 0
        self.waiter: asyncio.Future[None] | None = None

    def ended(self, _: "asyncio.Future[Any]") -> None:
        self.threads -= 1

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        has_nothing_to_do = timeout is None or timeout > 0
        if has_nothing_to_do and self.waiter is not None and not self.threads:
            if ready := super().select(0):
                return ready
            if not self.waiter.done():
                self.waiter.set_result(None)
            return []
        return super().select(timeout)


def run_idle(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on an `IdleLoop`."""
    with asyncio.Runner(loop_factory=IdleLoop) as runner:
        return runner.run(main)
