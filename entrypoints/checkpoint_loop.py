"""The task of a server that has its checkpoints made in time, and lets them go out."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import NoReturn

from kudurru.domain.errors import KudurruError
from kudurru.domain.ports import Clock
from kudurru.entrypoints.checkpoints import ZONE_INTERVAL_US, Checkpointer
from kudurru.entrypoints.writer import Writer


async def keep_checkpoints(writer: Writer, checkpointer: Checkpointer, clock: Clock) -> NoReturn:
    """Sign what happens: after so many events, or so long after the first of them. Then let it go
    out to zones, as often as those may get one."""
    loop = asyncio.get_running_loop()
    since: float | None = None  # when the first of what is not signed happened, or was tried last
    zones_due = loop.time()
    while True:
        policy = checkpointer.policy
        if checkpointer.activity and since is None:
            since = loop.time()
        due = None if since is None else since + policy.interval_s
        if due is not None and (loop.time() >= due or checkpointer.activity >= policy.events):
            is_signed = await _attempt(checkpointer, "the log", writer.checkpoint())
            since = None if is_signed else loop.time()
            due = None if since is None else since + policy.interval_s
            zones_due = loop.time()
        if loop.time() >= zones_due:
            wait_us = await _publish_in_zones(writer, checkpointer, clock.now_us())
            zones_due = loop.time() + wait_us / 1_000_000
        next_due = zones_due if due is None else min(due, zones_due)
        # Not wait_for: in Python 3.11 that loses a cancellation that comes with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(next_due):
                await writer.on_recorded.wait()
        writer.on_recorded.clear()


async def _publish_in_zones(writer: Writer, checkpointer: Checkpointer, now_us: int) -> int:
    """Microseconds until there may be something to publish again."""
    waits = [ZONE_INTERVAL_US]
    for target in checkpointer.zone_targets():
        wait_us = checkpointer.zone_wait_us(target, now_us)
        change = checkpointer.zone_change(target) if wait_us == 0 else None
        if change is not None:
            await _attempt(checkpointer, target, writer.submit(change))
        elif wait_us is not None:
            waits.append(wait_us)
    return min(waits)


async def _attempt(checkpointer: Checkpointer, target: str, doing: Awaitable[object]) -> bool:
    """Whether it worked. What fails is tried again at the next occasion: nobody waits for it."""
    try:
        await doing
    except KudurruError as error:
        checkpointer.complain(target, error)
        return False
    checkpointer.cleared(target)
    return True
