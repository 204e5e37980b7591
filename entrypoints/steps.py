"""Long work in short steps, so that DNS is answered between them.

Heavy work must not block the event loop, and in a thread it would take the interpreter from it all
the same. So it is a generator that yields every so often: a command runs it to its end, the server
lets the loop have its turn at each step.
"""

import asyncio
import gc
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]

PER_STEP = 100
"""Commands decided or events taken in at a time: a few milliseconds."""


@contextmanager
def no_collections() -> Iterator[None]:
    """A large change makes objects that stay or go by themselves. To look for garbage among them
    takes ever longer, at one of the steps; so they are never looked at."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def finish(steps: Steps[T]) -> T:
    """The result, without a break."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


async def unhurried(steps: Steps[T]) -> T:
    """The result; others have their turn between the steps."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)
