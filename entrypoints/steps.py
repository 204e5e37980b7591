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


LOOK_AGAIN_S = 10.0
"""After a large change, when what it was made of is gone."""

_large = 0  # changes under way


@contextmanager
def no_collections() -> Iterator[None]:
    """A large change makes objects that stay or go by themselves. To look for garbage among them
    takes ever longer, at one of the steps; so they are never looked at, and at the end frozen: the
    next look would come while they are all there. On a running loop."""
    global _large
    _large += 1
    gc.disable()
    try:
        yield
    finally:
        _large -= 1
        if not _large:
            gc.freeze()
            gc.enable()
            asyncio.get_running_loop().call_later(LOOK_AGAIN_S, look_again)


def look_again() -> None:
    """Collect what was frozen and only happened to be there: connections of that moment would stay
    for ever. What is left is few objects, some milliseconds even with a million records."""
    if not _large:  # else the end of that one comes back to it
        gc.unfreeze()
        gc.collect()
        gc.freeze()


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
