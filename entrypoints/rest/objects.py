"""Objects over HTTP: the routes of every kind, one table for all of them."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from kudurru.domain.kinds.meta import Condition
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE, KINDS, Kind
from kudurru.entrypoints.rest import reading, writing
from kudurru.entrypoints.rest.calls import MERGE_PATCH, Param
from kudurru.entrypoints.rest.naming import AT
from kudurru.entrypoints.rest.routes import Route
from kudurru.entrypoints.rest.status import Status
from kudurru.entrypoints.rest.writing import BATCH_MAX, Batch, BatchReply
from kudurru.entrypoints.service import PAGE_MAX

_WRITE = (
    Param("fieldManager", "text", "Who manages the object; kudurru when left out."),
    Param("force", "switch", "Take it over from another manager. Needs the right objects.force."),
    Param("dryRun", "switch", "Decide, and write nothing."),
    Param("reason", "text", "Why; kept in the log."),
    Param("allowMassChange", "switch", "Change or remove more than 30 % of a zone."),
)
_LIST = (
    Param("labelSelector", "text", "By labels: `a=b,c!=d`."),
    Param("limit", "count", f"Objects of one page, at most {PAGE_MAX}."),
    Param("continue", "text", "The next page, as the one before says."),
    AT,
    Param("watch", "switch", "A stream of changes: JSON lines, or SSE where that is accepted."),
    Param("resourceVersion", "text", "Of a watch: go on after this version, where that can be."),
)


def routes() -> Iterator[Route]:
    for kind in KINDS.values():
        if not kind.is_internal:
            yield from _kind_routes(kind)
    yield Route(
        method="POST", path="/batch", right="objects.write", handler=writing.batch, tag="objects",
        about=f"Apply and delete up to {BATCH_MAX} objects, together or not at all.",
        body=Batch, reply=BatchReply,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="GET", path=f"/{DNS_ZONE.plural}/{{name}}/export", right="zones.export",
        handler=reading.export, about="The zone, by object name or DNS name, as a master file.",
        tag="objects", params=(AT,),
        reply={"type": "string"}, reply_types=("text/dns",),
    )  # fmt: skip
    yield Route(
        method="GET",
        path=f"/namespaces/{{namespace}}/{DNS_RECORD_SET.plural}/{{name}}/problems",
        right="objects.read", handler=reading.problems, tag="objects",
        about="What is wrong with the endpoints of a record set.",
        reply=list[dict[str, Any]],
    )  # fmt: skip


def _kind_routes(kind: Kind) -> Iterator[Route]:
    every = f"/{kind.plural}"
    inside = f"/namespaces/{{namespace}}{every}" if kind.namespaced else every
    one = f"{inside}/{{name}}"
    schema = kind.name
    listed = {"$ref": f"#/components/schemas/{schema}List"}
    single = {"$ref": f"#/components/schemas/{schema}"}
    for path in dict.fromkeys((every, inside)):
        yield Route(
            method="GET", path=path, right="objects.read", handler=partial(reading.list_, kind),
            about=f"{kind.name} objects, or a watch of them.", tag=kind.plural,
            params=_LIST, reply=listed, is_endless=True,
        )  # fmt: skip
    yield Route(
        method="GET", path=one, right="objects.read", handler=partial(reading.get, kind),
        about=f"One {kind.name}.", tag=kind.plural, params=(AT,), reply=single,
    )  # fmt: skip
    yield Route(
        method="GET", path=f"{one}/conditions", right="objects.read",
        handler=partial(reading.conditions, kind), tag=kind.plural,
        about="What is to be said of it now, whether its status says so already or not.",
        reply=list[Condition],
    )  # fmt: skip
    yield Route(
        method="PUT", path=one, right="objects.write", handler=partial(writing.put, kind),
        prepare=partial(writing.prepared_put, kind),
        about=f"Apply a {kind.name}: make it, or replace spec, labels and annotations.",
        tag=kind.plural, params=_WRITE, body=single, reply=single, more_codes=(201,),
        is_conditional=True,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="PATCH", path=one, right="objects.write", handler=partial(writing.patch, kind),
        about=f"Change parts of a {kind.name} (RFC 7396). Annotations that belong to people may be "
        "changed by anyone who may write it, whoever manages it.",
        tag=kind.plural, params=_WRITE, body={"type": "object"}, body_types=(MERGE_PATCH,),
        reply=single, is_conditional=True,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="DELETE", path=one, right="objects.write", handler=partial(writing.delete, kind),
        about=f"Delete a {kind.name}.", tag=kind.plural, params=_WRITE, reply=Status,
        is_conditional=True,
        is_leaders=True,
    )  # fmt: skip
