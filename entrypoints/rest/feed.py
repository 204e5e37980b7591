"""The log for other nodes: what it is, and its rows as they come, for those that follow.

Rows go out under a checkpoint only, see `domain.replica`. As followers would wait for the next one,
what is not signed yet is signed SIGN_AFTER_S after it came, as long as anybody follows.
"""

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial

from kudurru.adapters.http_api import CutShort, Stream
from kudurru.domain import lineage, replica
from kudurru.domain.errors import Busy, Cause, KudurruError, NotFound
from kudurru.domain.events import Recorded, Who
from kudurru.domain.lineage import LogAbout, Place
from kudurru.domain.ports import StoredCheckpoint, VerifiableLog
from kudurru.domain.replica import Frame, Pulse
from kudurru.entrypoints.rest.calls import Call, Param
from kudurru.entrypoints.rest.routes import Route
from kudurru.entrypoints.rest.status import BadRequest
from kudurru.entrypoints.standing import Standing

log = logging.getLogger("kudurru.follow")

FOLLOWERS_MAX = 16
"""Each holds a stream, and a thread while it reads. More follow one of the followers."""

SIGN_AFTER_S = 0.5
"""Longer than the coalescing of serials, so that a change and its serial are signed as one."""

PULSE_S = 5.0
"""Between two signs of life when nothing happens."""

FRAMES = "application/x-kudurru-log"
LENGTH = struct.Struct(">I")
"""Before each frame: how many octets it has."""

_ME = Who(actor="system", source="follow", reason="for followers")


def routes() -> Iterator[Route]:
    yield Route(
        method="GET", path="/log", right="log.follow", handler=about, tag="log",
        about="Which log this node has, how far, and whether it writes.", reply=LogAbout,
        params=(Param("at", "count", "With the head of the chain at this position."),),
    )  # fmt: skip
    yield Route(
        method="GET", path="/log/rows", right="log.follow", handler=rows, tag="log",
        about="Rows that a checkpoint covers, with proofs, and more as they come: frames of "
        "MessagePack with their length before them. For nodes that follow, see docs/ha.md.",
        params=(Param("after", "count", "Only those after this position."),),
        reply={"type": "string", "format": "binary"}, reply_types=(FRAMES,), is_endless=True,
    )  # fmt: skip


async def about(call: Call) -> LogAbout:
    found: LogAbout = await call.briefly(
        partial(about_log, _log(call), call.context.standing, call.count("at", 0))
    )
    return found


def about_log(read: VerifiableLog, standing: Standing, at: int = 0) -> LogAbout:
    first, now = lineage.names_of(read)
    head, newest = read.head(), read.newest_checkpoint()
    state, why = standing.state()
    return LogAbout(
        node=standing.name,
        instances=standing.instances(),
        state=state,
        why=why,
        log_id=read.log_id,
        first_origin=first,
        origin=now,
        newest=Place(position=head.seq, head=head.hash.hex()),
        signed=newest.size if newest is not None else 0,
        epochs=lineage.began(read),
        at=lineage.place_at(read, at),
    )


async def rows(call: Call) -> Stream:
    if call.request.method == "HEAD":
        raise BadRequest("request", [Cause("", "not with HEAD: a stream is all body")])
    if call.context.followers >= FOLLOWERS_MAX:
        raise Busy(f"{FOLLOWERS_MAX} nodes follow this one: follow one of them")
    if await call.briefly(_log(call).newest_checkpoint) is None:
        with suppress(KudurruError):
            await call.context.operate("checkpoint", None, _ME)
        if await call.briefly(_log(call).newest_checkpoint) is None:
            raise NotFound("this node has signed nothing yet, and only what is signed is sent")
    return Stream(FRAMES, _sent(call, call.count("after", 0)))


def _log(call: Call) -> VerifiableLog:
    return call.context.node.log  # type: ignore[return-value]  # every log of ours is


async def _sent(call: Call, after: int) -> AsyncIterator[bytes]:
    """Ends early, and shows it, where the token is revoked or the log cannot be read."""
    context, read, wake = call.context, _log(call), asyncio.Event()

    def came(_recorded: list[Recorded]) -> None:
        wake.set()

    context.followers += 1
    context.writer.listeners.append(came)
    aimed = -1
    try:
        while context.tokens.still_counts(call.principal):
            wake.clear()
            newest = await asyncio.to_thread(read.newest_checkpoint)
            if newest is not None and newest.size > aimed:
                aimed = newest.size
                frames = _frames(read, after, newest)
                while frame := await asyncio.to_thread(_next, frames):
                    yield frame
                    if not context.tokens.still_counts(call.principal):
                        raise CutShort
                after = max(after, aimed)
            yield _framed(Pulse(head=int(context.node.position)))
            await _news(call, wake, aimed)
        raise CutShort
    except KudurruError as error:
        log.error("a follower is sent no more: %s", error)  # no fault of this program
        raise CutShort from error
    finally:
        context.writer.listeners.remove(came)
        context.followers -= 1


async def _news(call: Call, wake: asyncio.Event, signed: int) -> None:
    """Wait for something, or for the time of a sign of life; what came is signed."""
    context = call.context
    if context.node.position <= signed:
        # Not wait_for: in Python 3.11 that loses a cancellation that comes with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(PULSE_S):
                await wake.wait()
    if context.node.position > signed:
        await asyncio.sleep(SIGN_AFTER_S)
        with suppress(KudurruError):  # another node signs, or it is tried again
            await context.operate("checkpoint", None, _ME)


def _frames(read: VerifiableLog, after: int, newest: StoredCheckpoint) -> Iterator[Frame]:
    yield replica.target_of(read, after, newest)
    yield from replica.pages(read, after, newest.size)


def _next(frames: Iterator[Frame]) -> bytes:
    """Empty at the end."""
    frame = next(frames, None)
    return _framed(frame) if frame is not None else b""


def _framed(frame: Frame) -> bytes:
    octets = replica.encode_frame(frame)
    return LENGTH.pack(len(octets)) + octets
