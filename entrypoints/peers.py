"""What nodes tell each other, on a listener of their own with mutual TLS: which zones are served.

Whoever has a certificate of `tls.internal.ca` is a node and may ask; there are no tokens. A node of
an older version has no such path, or no such listener, and the client says so.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal

import msgspec

from kudurru.adapters.http_api import ApiServer, Application, Reply, Request
from kudurru.adapters.http_ops import Response, failure
from kudurru.adapters.metrics import Sample
from kudurru.adapters.sockets import Bound
from kudurru.domain.dns import names
from kudurru.entrypoints.wiring import Node

if TYPE_CHECKING:
    from kudurru.adapters.certificates import Certificates

ZONES = "/internal/zones"


class ServedZone(msgspec.Struct, frozen=True):
    zone: str  # DNS name
    type: Literal["Primary", "Secondary"]
    serial: int
    records: int  # SOA included


class ServedZones(msgspec.Struct, frozen=True, kw_only=True):
    """Zones that a node answers for, primary and secondary, by name. `zones` is null where it does
    not know yet: its log is being replayed."""

    node: str
    zones: list[ServedZone] | None


def zones_of(node: Node) -> list[ServedZone]:
    found = []
    for zone in node.zones.served:
        state = node.zones.serving(zone.key)
        if state is None or state.spec.type == "Forward":
            continue
        text = names.to_text(zone.key)
        found.append(ServedZone(text, state.spec.type, zone.serial, zone.record_count + 1))
    return sorted(found, key=lambda one: one.zone)


class PeersApp(Application):
    """Implements `adapters.http_api.Application`, for the internal listener."""

    def __init__(self, node: Node, name: str, is_synced: Callable[[], bool]) -> None:
        self._node = node
        self._name = name
        self._is_synced = is_synced
        self._asked: Counter[tuple[str, int]] = Counter()  # by route and code

    def admit(self, request: Request) -> Response | None:
        route, refused = "zones" if request.path == ZONES else "none", None
        if route == "none":
            refused = failure(404, f"there is {ZONES}, and nothing else")
        elif request.method not in ("GET", "HEAD"):
            answer = failure(405, "this path takes GET, HEAD")
            refused = Reply(code=405, body=answer.body, headers=(("Allow", "GET, HEAD"),))
        elif request.has_body:
            refused = failure(400, "this path takes no body")
        self._asked[route, refused.code if refused is not None else HTTPStatus.OK] += 1
        return refused

    async def answer(self, _request: Request) -> Response:
        zones = zones_of(self._node) if self._is_synced() else None
        found = ServedZones(node=self._name, zones=zones)
        return Response(HTTPStatus.OK, msgspec.json.encode(found))

    def overdue(self, _request: Request) -> Response:
        return failure(503, "not answered in time")

    def server(self, bound: Bound, certificates: "Certificates") -> ApiServer:
        return ApiServer(self, bound.sockets, tls=certificates.context("http/1.1"))

    def samples(self) -> Iterable[Sample]:
        for (route, code), count in self._asked.items():
            yield Sample("internal_requests_total", (route, str(code)), count)
