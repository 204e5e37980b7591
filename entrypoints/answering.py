"""The pipeline of a node, and what it answers to one message, now or at a position."""

from typing import TYPE_CHECKING, Any

from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.memory.neighbours import FixedNeighbours
from kudurru.domain import zone_export
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.errors import Cause, Invalid, NotFound
from kudurru.domain.later import Later
from kudurru.domain.ports import Clock, EventLog
from kudurru.entrypoints.filtering import checked_client
from kudurru.entrypoints.service import LOOPBACK
from kudurru.entrypoints.wiring import Node
from kudurru.projections import as_of

if TYPE_CHECKING:
    from kudurru.projections.pipeline.pipeline import Pipeline

MESSAGE_MIN = 12
"""Octets of the header of a DNS message (RFC 1035 section 4.1.1)."""


def pipeline_of(node: Node, **options: Any) -> "Pipeline":
    """The pipeline over a node's zones; `options` as the server sets them."""
    from kudurru.projections.pipeline.policy import Policy

    neighbours = options.pop("neighbours", None) or FixedNeighbours()
    policy = Policy(lambda: node.views.policies.filters, neighbours)
    return _pipeline(node.zones.served, node.clock, policy=policy, **options)


def _pipeline(zones: ZoneSet, clock: Clock, **options: Any) -> "Pipeline":
    from kudurru.projections.pipeline.ingress import Identity
    from kudurru.projections.pipeline.pipeline import Pipeline  # large, and few commands answer

    return Pipeline(
        zones,
        options.get("is_synced", lambda: True),
        clock=clock,
        identity=options.get("identity", Identity()),
        is_lameduck=options.get("is_lameduck", lambda: False),
        on_exception=options.get("on_exception", _raise),
        cookies=options.get("cookies"),
        policy=options.get("policy"),
        resolver=options.get("resolver"),
        route_of=options.get("route_of", lambda _upstreams: None),
        notes=options.get("notes"),
        signatures=options.get("signatures"),
        transfers=options.get("transfers"),
        control=options.get("control"),
    )


def _raise(error: Exception) -> None:
    raise error


def answer(node: Node, packet: bytes, client: str = LOOPBACK) -> bytes:
    """What the node answers a client, as over TCP; a drop is SERVFAIL. Raises: Invalid for what is
    too short to be a query, and for a client without an address."""
    return _reply(pipeline_of(node), packet, checked_client(client))


def answer_as_of(log: EventLog, upto: int, packet: bytes) -> bytes:
    """What the zones answered at a position, read from the log. Time stands still there."""
    from kudurru.projections.zones_as_of import ZonesAsOf

    zones = ZonesAsOf(log, upto)
    return _reply(_pipeline(zones, ManualClock(zones.now_s * 1_000_000)), packet)


def export_as_of(log: EventLog, upto: int, zone: str) -> list[str]:
    """Lines of a master file of a zone as its serial named it at a position. Raises NotFound for a
    zone that was not served."""
    from kudurru.projections.zones_as_of import ZonesAsOf

    name = as_of.zone_named(log, zone, upto)
    zones = ZonesAsOf(log, upto)
    state = zones.load(name)
    if state.zone is None or not zones.is_elected(state.apex, name):
        raise NotFound(f"zone {zone!r} was not served here at position {upto}")
    return list(zone_export.lines(state.zone))


def _reply(pipeline: "Pipeline", packet: bytes, client: str = LOOPBACK) -> bytes:
    if len(packet) < MESSAGE_MIN:
        raise Invalid("query", [Cause("", f"{len(packet)} octets are no DNS message")])
    reply = pipeline.handle(packet, client, "tcp")
    assert not isinstance(reply, Later)  # without a resolver nothing is waited for
    if reply is None:
        return packet[:2] + b"\x80\x02" + packet[4:]
    return reply.wire
