"""Which object a request is about, whether its token may see it, and how it is shown."""

from typing import Any

from kudurru.adapters.http_api import Reply
from kudurru.domain.errors import Cause
from kudurru.domain.kinds.meta import (
    ObjectMeta,
    is_dns_label,
    is_dns_subdomain,
    metadata_faults,
)
from kudurru.domain.kinds.registry import DNS_ZONE, Kind
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key, key_of
from kudurru.entrypoints.rest.calls import Call, Param
from kudurru.entrypoints.rest.status import BadRequest, encoded
from kudurru.projections import as_of

AT = Param("at", "text", "As it was: a position, a time, `2h ago`, `checkpoint:SIZE`, `mark:NAME`.")


def key_in(kind: Kind, call: Call) -> Key:
    """The key that a path names. Raises: BadRequest for names that no object has."""
    return check_names(kind, call.names)


def check_names(kind: Kind, given: dict[str, str]) -> Key:
    namespace = given.get("namespace", "") if kind.namespaced else ""
    if is_dns_subdomain(given["name"]) and (not kind.namespaced or is_dns_label(namespace)):
        return key_of(kind.name, namespace, given["name"])
    meta = ObjectMeta(name=given["name"], namespace=namespace)
    causes = list(metadata_faults(meta, namespaced=kind.namespaced))
    if kind.namespaced and not namespace:
        causes.append(Cause("metadata.namespace", "missing"))
    stripped = [Cause(c.field.removeprefix("metadata."), c.message) for c in causes]
    raise BadRequest(kind.name, stripped)


def may_see(call: Call, stored: StoredObject) -> bool:
    return call.principal.rights.may_see(stored.key, stored.scope)


def zone_named(call: Call, name: str, *positions: int) -> str:
    """As `as_of.zone_named`, and what may not be seen is as what is not there. Raises: NotFound."""
    found = as_of.zone_named(call.context.node.log, name, *positions)
    if not call.principal.rights.may_see(key_of(DNS_ZONE.name, "", found), f"/{found}"):
        raise as_of.no_zone(name)
    return found


async def settled(call: Call) -> None:
    """What is read next is no part of a change."""
    async with call.context.writer.applying:
        pass


def document_reply(
    document: dict[str, Any], code: int = 200, headers: tuple[tuple[str, str], ...] = ()
) -> Reply:
    version = document["metadata"].get("resourceVersion", "")
    tag = (("ETag", f'"{version}"'),) if version else ()
    return Reply(code=code, body=encoded(document), headers=(*tag, *headers))
