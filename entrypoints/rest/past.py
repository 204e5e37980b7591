"""The past at length, over HTTP: what differs between two moments, and the log for others."""

import logging
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial

from kudurru.adapters.http_api import CutShort, Stream
from kudurru.domain import targets
from kudurru.domain.errors import Busy, Cause, Invalid, KudurruError
from kudurru.domain.ports import VerifiableLog
from kudurru.entrypoints import exporting
from kudurru.entrypoints.differing import Difference, differing
from kudurru.entrypoints.exporting import Format, Selection, Wanted
from kudurru.entrypoints.rest.calls import Call, Param
from kudurru.entrypoints.rest.naming import zone_named
from kudurru.entrypoints.rest.routes import Route
from kudurru.entrypoints.rest.status import BadRequest

log = logging.getLogger("kudurru")

DIFFERENCES_MAX = 10_000
"""Objects: as many as one change may have. More are asked for zone by zone."""

PART_BYTES = 64 * 1024
"""What is read ahead of the client."""

TYPES = {
    Format.jsonl: "application/x-ndjson",
    Format.k8s: "application/x-ndjson",
    Format.cloudevents: "application/x-ndjson",
    Format.ocsf: "application/x-ndjson",
    Format.csv: "text/csv; charset=utf-8",
}
UNSIGNED = "X-Kudurru-Unsigned"
"""Header: how many of the newest events are left out, since no checkpoint is over them yet."""


def routes() -> Iterator[Route]:
    yield Route(
        method="GET", path="/diff", right="history", handler=diff, tag="log",
        about="Objects that differ between two moments.", reply=list[Difference],
        params=(
            Param("from", "text", "A position, a time, `2h ago`, `mark:NAME`.", is_needed=True),
            Param("to", "text", "Now, when left out."),
            Param("zone", "text", "Of a zone, by object name or DNS name."),
        ),
    )  # fmt: skip
    yield Route(
        method="GET", path="/events/export", right="audit.export", handler=export, tag="log",
        about="The log, or a selection of it, as lines: of `jsonl`, which proves itself (see "
        f"kudurru-verify; {UNSIGNED} says what it leaves out), `k8s`, `cloudevents`, `ocsf` or "
        "`csv`. One that ends without its last chunk is not whole.",
        params=(
            Param("format", "text", "jsonl when left out."),
            Param("since", "text", "Not before."),
            Param("until", "text", "Not after."),
            Param("kind", "text", "Of one kind."),
            Param("zone", "text", "Of one zone."),
            Param("actor", "text", "By whom."),
        ),
        reply={"type": "string"}, reply_types=tuple(dict.fromkeys(TYPES.values())),
        is_endless=True,
    )  # fmt: skip


async def diff(call: Call) -> list[Difference]:
    found: list[Difference] = await call.aside(partial(_differing, call))
    return found


def _differing(call: Call) -> list[Difference]:
    """What may not be seen counts as what is not there."""
    read, now_us = call.context.node.log, call.context.node.clock.now_us()
    first = targets.resolve(call.text("from"), read, now_us)
    last = targets.resolve(call.text("to"), read, now_us) if call.text("to") else read.head().seq
    zone = zone_named(call, call.text("zone"), last, first) if call.text("zone") else None
    return differing(
        read, first, last, zone, sees=call.principal.rights.may_see, most=DIFFERENCES_MAX
    )


async def export(call: Call) -> Stream:
    format_ = _format(call)
    if call.request.method == "HEAD":
        raise BadRequest("request", [Cause("", "not with HEAD: an export is all body")])
    if call.context.exports.locked():
        raise Busy("other exports are under way; try again")
    read: VerifiableLog = call.context.node.log  # type: ignore[assignment]  # every log of ours is
    wanted = Wanted(**{name: call.params.get(name) for name in Wanted.__struct_fields__})
    now_us = call.context.node.clock.now_us()
    selection = await call.aside(partial(exporting.selection_of, wanted, read, now_us))
    headers: tuple[tuple[str, str], ...] = ()
    if format_ is Format.jsonl:
        left_out = await call.aside(partial(exporting.unsigned, read, selection))
        headers = ((UNSIGNED, str(left_out)),)
    call.context.access.acted("audit.export", call.who)
    return Stream(TYPES[format_], _sent(call, read, selection, format_), headers)


def _format(call: Call) -> Format:
    text = call.text("format", Format.jsonl.value)
    if text not in TYPES:
        fault = f"{text!r} is none of {', '.join(TYPES)}"
        raise Invalid("query", [Cause("format", fault)])
    return Format(text)


async def _sent(
    call: Call, read: VerifiableLog, selection: Selection, format_: Format
) -> AsyncIterator[bytes]:
    """Parts of many lines, each read in a thread when the one before it was taken. It ends early,
    and shows it, where the token is revoked or the log cannot be read."""
    context, is_over = call.context, threading.Event()

    def moved(_done: int, _of: int) -> None:
        if is_over.is_set():
            raise CutShort  # a part may be a search through all of the log

    lines = exporting.lines(read, selection, format_, moved)
    async with context.exports:
        try:
            while True:
                if not context.tokens.still_counts(call.principal):
                    raise CutShort
                part = await context.export_threads.run(partial(_part, lines))
                if not part:
                    return
                yield part
        except KudurruError as error:
            log.error("an export of the log ends early: %s", error)  # no fault
            raise CutShort from error
        finally:
            is_over.set()


def _part(lines: Iterator[bytes]) -> bytes:
    """Of as many lines as make PART_BYTES; empty at the end."""
    part = bytearray()
    for line in lines:
        part += line
        if len(part) >= PART_BYTES:
            break
    return bytes(part)
