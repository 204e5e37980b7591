"""Watches over HTTP: JSON lines, or server-sent events (text/event-stream) where those are
accepted. Types are those of Kubernetes; a BOOKMARK says where a later watch may resume, at first
and then every BOOKMARK_S when nothing happens, which also keeps proxies from giving up.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from kudurru.adapters.http_api import Stream
from kudurru.domain.errors import Busy, Cause, Closed
from kudurru.domain.kinds.meta import API_VERSION
from kudurru.domain.kinds.registry import Kind
from kudurru.domain.objects import key_of
from kudurru.domain.ports import WatchEvent
from kudurru.entrypoints.rest.calls import Call
from kudurru.entrypoints.rest.context import Context
from kudurru.entrypoints.rest.status import BadRequest, TooMany
from kudurru.entrypoints.watches import LogWatch

WATCHES_MAX = 256
WATCHES_PER_TOKEN_MAX = 64
"""A quarter: one token that leaves its watches open takes them from no other."""

BOOKMARK_S = 20.0

JSON_LINES = "application/x-ndjson"
SSE = "text/event-stream"


async def watch(call: Call, kind: Kind, namespace: str | None) -> Stream:
    """Nothing is open before the first part is asked for: a stream that nobody begins to read is
    never closed either. Raises: BadRequest for what makes no sense together, Busy when all are
    taken, TooMany when the token has its share."""
    unfit = [name for name in ("at", "labelSelector", "limit", "continue") if name in call.params]
    if unfit:
        raise BadRequest("query", [Cause(name, "not together with watch") for name in unfit])
    if call.request.method == "HEAD":
        raise BadRequest("query", [Cause("watch", "not with HEAD: a stream is all body")])
    _check_room(call.context, call.principal.name)
    is_sse = SSE in call.request.headers.get("accept", "")
    return Stream(SSE if is_sse else JSON_LINES, _opened(call, kind, namespace, is_sse=is_sse))


def _check_room(context: Context, name: str) -> None:
    if context.watches[name] >= WATCHES_PER_TOKEN_MAX:
        raise TooMany(f"{WATCHES_PER_TOKEN_MAX} watches of this token are open; close some")
    if context.watches.total() >= WATCHES_MAX:
        raise Busy(f"{WATCHES_MAX} watches are open; try again")


async def _opened(
    call: Call, kind: Kind, namespace: str | None, *, is_sse: bool
) -> AsyncIterator[bytes]:
    """Ends at once where others took the last places, or the store was closed, since `watch`."""
    context, name = call.context, call.principal.name
    try:
        _check_room(context, name)
    except (Busy, TooMany):
        return
    context.watches[name] += 1
    try:
        found = await context.store.watch(kind.name, namespace, call.text("resourceVersion"))
        assert isinstance(found, LogWatch)
        async with aclosing(_parts(call, kind, found, is_sse=is_sse)) as parts:
            async for part in parts:
                yield part
    except Closed:
        return
    finally:
        context.watches[name] -= 1
        if not context.watches[name]:
            del context.watches[name]


async def _parts(
    call: Call, kind: Kind, found: LogWatch, *, is_sse: bool
) -> AsyncGenerator[bytes, None]:
    context, principal = call.context, call.principal
    coming: asyncio.Task[WatchEvent] | None = None
    try:
        while context.tokens.still_counts(principal):
            coming = coming or asyncio.ensure_future(anext(found))
            await asyncio.wait([coming], timeout=BOOKMARK_S)
            if not context.tokens.still_counts(principal):
                return  # it may have been revoked by the very change that comes
            event: WatchEvent | None
            if coming.done():
                try:
                    event, coming = coming.result(), None
                except StopAsyncIteration:
                    return
            else:
                event = found.bookmark()
            document = _document(call, kind, event) if event is not None else None
            if document is not None:
                line = msgspec.json.encode(document)
                yield b"data: " + line + b"\n\n" if is_sse else line + b"\n"
    finally:
        if coming is not None:
            coming.cancel()
        await found.stop()


def _document(call: Call, kind: Kind, event: WatchEvent) -> dict[str, Any] | None:
    """None for what may not be seen. An object that leaves what a token is limited to is gone for
    it, also where it left since the version that a watch goes on from."""
    if event.object is None:
        meta = {"resourceVersion": event.resource_version}
        bookmark = {"apiVersion": API_VERSION, "kind": kind.name, "metadata": meta}
        return {"type": "BOOKMARK", "object": bookmark}
    rights = call.principal.rights
    if not rights.is_limited:
        return {"type": event.type.upper(), "object": event.object}
    meta = event.object["metadata"]
    key = key_of(kind.name, meta.get("namespace", ""), meta["name"])
    if rights.may_see(key, _scope(kind, event.object)):
        return {"type": event.type.upper(), "object": event.object}
    if not event.was_in or not rights.may_see(key, event.was_in):
        return None
    names = {name: meta[name] for name in ("name", "namespace", "uid") if name in meta}
    gone = {**names, "resourceVersion": event.resource_version}
    return {
        "type": "DELETED",
        "object": {"apiVersion": API_VERSION, "kind": kind.name, "metadata": gone},
    }


def _scope(kind: Kind, document: dict[str, Any]) -> str:
    """As `object_store.scope_of` has it."""
    meta = document["metadata"]
    if not kind.namespaced:
        return f"/{meta['name']}"
    zone = document["spec"].get("zoneRef", {}).get("name", "")
    return f"{meta['namespace']}/{zone}"
