"""Objects over HTTP: read, one, many, or as they were."""

from functools import partial
from typing import Any

from kudurru.adapters.http_ops import Response
from kudurru.domain import targets
from kudurru.domain.errors import NotFound, Redacted
from kudurru.domain.kinds.meta import API_VERSION
from kudurru.domain.kinds.registry import DNS_RECORD_SET, Kind
from kudurru.domain.object_store import StoredObject, resource_version, to_encodable
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.restore import Scope
from kudurru.entrypoints import answering
from kudurru.entrypoints.rest import watching
from kudurru.entrypoints.rest.calls import Answer, Call
from kudurru.entrypoints.rest.naming import (
    check_names,
    document_reply,
    key_in,
    may_see,
    settled,
    zone_named,
)
from kudurru.entrypoints.service import PAGE_MAX, export_zone, read_conditions, read_problems
from kudurru.projections import as_of


async def get(kind: Kind, call: Call) -> Answer:
    key = key_in(kind, call)
    if "at" in call.params:
        stored = await call.aside(partial(_find_as_of, call, key))
    else:
        await settled(call)
        stored = call.context.node.objects.find(key)
    if stored is None or not may_see(call, stored):
        # The same for what is not there and for what may not be seen.
        raise NotFound(f"{ref_of(key)} does not exist")
    return document_reply(to_encodable(stored))


def _find_as_of(call: Call, key: Key) -> StoredObject | None:
    log, now_us = call.context.node.log, call.context.node.clock.now_us()
    known = as_of.find(log, key, targets.resolve(call.text("at"), log, now_us))
    if known is None or not call.principal.rights.may_see(key, known.applied.scope):
        return None
    if known.erased:
        raise Redacted(f"{ref_of(key)} cannot be shown: {known.erased}")
    return known.stored(log.epoch)


async def list_(kind: Kind, call: Call) -> Any:
    namespace = call.names.get("namespace")
    if namespace is not None:
        check_names(kind, call.names | {"name": "any"})
    selector = call.text("labelSelector")
    limit = min(call.count("limit", PAGE_MAX) or PAGE_MAX, PAGE_MAX)
    if call.has("watch"):
        return await watching.watch(call, kind, namespace)
    if "at" in call.params:
        return await call.aside(partial(_list_as_of, kind, call, namespace, limit))
    page = await call.context.store.list(
        kind.name,
        namespace,
        selector,
        limit=limit,
        continue_=call.text("continue"),
        may_see=partial(may_see, call),
    )
    return _list_document(kind, page.items, page.resource_version, page.continue_)


def _list_as_of(kind: Kind, call: Call, namespace: str | None, limit: int) -> dict[str, Any]:
    log, now_us = call.context.node.log, call.context.node.clock.now_us()
    upto = targets.resolve(call.text("at"), log, now_us)
    scope = Scope(kind=kind.name, namespace=namespace or "", selector=call.text("labelSelector"))
    start = call.text("continue")
    found = [
        stored
        for key, stored in as_of.objects(log, scope, upto).items()
        if key >= start and may_see(call, stored)
    ]
    more = found[limit].key if len(found) > limit else ""
    items = [to_encodable(stored) for stored in found[:limit]]
    return _list_document(kind, items, resource_version(log.epoch, upto), more)


def _list_document(kind: Kind, items: list[Any], version: str, more: str) -> dict[str, Any]:
    meta = {"resourceVersion": version}
    if more:
        meta["continue"] = more
    return {
        "apiVersion": API_VERSION, "kind": f"{kind.name}List", "metadata": meta, "items": items,
    }  # fmt: skip


async def export(call: Call) -> Response:
    await settled(call)
    lines = await call.aside(partial(_exported, call))
    return Response(200, "".join(lines).encode(), "text/dns")


def _exported(call: Call) -> list[str]:
    """By object name or DNS name. Raises: NotFound."""
    node, name = call.context.node, call.names["name"]
    if "at" not in call.params:
        state = node.zones.find(name)
        rights = call.principal.rights
        if state is not None and rights.may_see(state.key, f"/{state.name}"):
            if state.zone is None and rights.is_limited:  # else it is told which zones are served
                raise NotFound(f"zone {name!r} is not served here")
            return list(export_zone(node, name))
        raise NotFound(f"there is no zone {name!r} here")
    now_us = node.clock.now_us()
    upto = targets.resolve(call.text("at"), node.log, now_us)
    return answering.export_as_of(node.log, upto, zone_named(call, name, upto))


async def problems(call: Call) -> Any:
    key = key_in(DNS_RECORD_SET, call)
    await settled(call)
    stored = call.context.node.objects.find(key)
    if stored is None or not may_see(call, stored):
        raise NotFound(f"{ref_of(key)} does not exist")
    return read_problems(call.context.node, key)


async def conditions(kind: Kind, call: Call) -> Any:
    key = key_in(kind, call)
    await settled(call)
    stored = call.context.node.objects.find(key)
    if stored is None or not may_see(call, stored):
        raise NotFound(f"{ref_of(key)} does not exist")
    return read_conditions(call.context.node, key)
