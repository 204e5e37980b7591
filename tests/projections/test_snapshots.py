"""A view that was dumped and loaded is the view: it shows the same, and goes on in the same way."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.domain.commands import UpdateStatus
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.errors import NotFound
from kudurru.domain.kinds.registry import KINDS
from kudurru.entrypoints.filtering import BlockingRequest, to_blocking
from kudurru.entrypoints.wiring import Node
from kudurru.projections import objects_view, zone_history, zone_state
from kudurru.projections.bodies import Bodies
from kudurru.projections.follow import Follower
from kudurru.projections.objects_view import ObjectsView
from tests.histories import CLOCKS_S, SECOND, Operation, histories, operations, others, run
from tests.nodes import TESTER, a_change, memory_node, rebuilt
from tests.objects import ZONE_KEY, put, www, zone

few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def copied(node: Node) -> Node:
    """A node whose views come from a dump."""
    other = Node(node.log, node.clock, SeededEntropy(4))
    for projection in reversed(other.views.follower.projections):
        (twin,) = [p for p in node.views.follower.projections if p.name == projection.name]
        parts = twin.dump()
        projection.load(parts)
        assert next(parts, None) is None, "a part was not read"
    return other


def shown(node: Node) -> dict[str, Any]:
    """All that views hold, also what no digest tells."""
    zones, objects = node.zones, node.objects
    states = list(zones.states())
    return {
        "digests": node.views.digests(),
        "position": node.position,
        "now": zones.now_s,
        "objects": [objects.list(kind).objects for kind in KINDS],
        "counts": [objects.count(kind) for kind in KINDS],
        "versions": {key: objects.version(key) for key in versions_of(node)},
        "state": objects.state(),
        "states": [(s.name, s.created, s.spec, s.sources, s.unselected) for s in states],
        "zones": [attributes(state.zone) for state in states if state.zone is not None],
        "served": {zone.key for zone in zones.served},
        "problems": [zones.problems(key) for key in objects.keys("DNSRecordSet")],
        "expiry": zones.next_expiry_s(),
        "unstamped": [state.name for state in zones.unstamped()],
        "histories": [zones.history.versions(state.apex) for state in states],
        "highest": [zones.history.highest(state.apex) for state in states],
        "trusted": node.views.clock.is_trusted,
        "forwards": zones.forwards,
        "policies": policies_of(node),
        "lists": (node.views.lists.lists, node.views.lists.disabled),
    }


def policies_of(node: Node) -> Any:
    view = node.views.policies
    names = [policy.name for policy in view.filters.policies]
    return names, view.pauses, list(view.diagnoses())


def versions_of(node: Node) -> list[Any]:
    return sorted({event.key for event in node.log.read()})


def attributes(zone: Zone) -> dict[str, Any]:
    shown = (zone.digest(), zone.soa_wire, zone.negative_wire, zone.negative_parts)
    assert all(shown), "made when asked for"
    return {name: getattr(zone, name) for name in Zone.__slots__}


@few
@given(histories())
def test_views_of_a_dump_show_the_same(node: Node) -> None:
    assert shown(copied(node)) == shown(node)


@few
@given(histories(), st.integers(1, 5))
def test_views_that_a_long_replay_rebuilds_show_the_same(node: Node, step: int) -> None:
    other = Node(node.log, node.clock, SeededEntropy(3))
    with other.objects.rebuilding():
        other.views.follower.feed(node.log.read())
    while other.objects.settle_some(step):
        pass
    other.views.follower.advance(node.zones.now_s)
    assert shown(other) == shown(node)


@few
@given(histories(), operations(), st.integers(0, 3))
def test_digests_that_are_brought_up_by_and_by_are_the_same(
    node: Node, more: list[Operation], step: int
) -> None:
    for one in more:
        run(node, [one])
        node.settle_some(step)
    assert node.views.digests() == rebuilt(node).views.digests()


@few
@given(histories(), operations(), st.data())
def test_a_checkpoint_in_the_middle_of_a_replay_says_what_it_said(
    node: Node, more: list[Operation], data: st.DataObject
) -> None:
    state, upto = node.objects.state(), node.position
    run(node, more)
    other = Node(node.log, node.clock, SeededEntropy(3))
    with other.objects.rebuilding():
        other.views.follower.feed(node.log.read(0, upto))
        assert other.objects.state_differences(state) == []
        other.objects.settle_some(data.draw(st.integers(0, 3)))
        other.views.follower.feed(node.log.read(upto))
    assert other.objects.digest() == node.objects.digest()


@few
@given(histories(), operations())
def test_views_of_a_dump_go_on_as_the_others(node: Node, more: list[Operation]) -> None:
    half = copied(node)
    run(node, more)
    half.views.follower.catch_up(node.log)
    half.views.follower.advance(node.zones.now_s)
    assert shown(half) == shown(rebuilt(node)) == shown(node)


@few
@given(st.integers(1, 3), operations())
def test_large_views_are_dumped_in_several_parts(size: int, history: list[Operation]) -> None:
    node = memory_node(ManualClock(CLOCKS_S[0] * SECOND))
    run(node, history)
    sizes = (objects_view.PART_ENTRIES, zone_state.PART_NODES, zone_history.PART_VERSIONS)
    objects_view.PART_ENTRIES = zone_state.PART_NODES = zone_history.PART_VERSIONS = size
    try:
        assert shown(copied(node)) == shown(node)
    finally:
        objects_view.PART_ENTRIES, zone_state.PART_NODES, zone_history.PART_VERSIONS = sizes


@few
@given(histories())
def test_bodies_that_are_held_are_in_a_dump(node: Node) -> None:
    def views() -> tuple[ObjectsView, Bodies]:
        objects = ObjectsView(node.log.get, 1)
        return objects, Bodies(objects)

    objects, bodies = views()
    Follower([bodies, objects]).catch_up(node.log)
    others = views()
    others[0].load(objects.dump())
    others[1].load(bodies.dump())
    assert others[1].digest() == bodies.digest()
    for seq in range(1, node.log.head().seq + 1):
        assert others[1].find(seq) == bodies.find(seq)


@few
@given(histories(), st.lists(others(), max_size=12), st.booleans())
def test_what_filters_is_in_a_dump(node: Node, more: list[Operation], pauses: bool) -> None:
    run(node, more)
    if pauses:
        for group, for_s in (("", 60), ("x", None)):
            request = BlockingRequest(blocks=False, group=group, for_s=for_s)
            with suppress(NotFound):  # there may be no such group
                node.commit(to_blocking(node, request, TESTER))
        assert isinstance(node.clock, ManualClock)
        node.clock.advance(30 * SECOND)
    assert shown(copied(node)) == shown(node)
    run(node, more)
    half, later_s = copied(node), node.zones.now_s + 120
    for one in (node, half):
        one.views.follower.advance(later_s)
    assert shown(half) == shown(node)


SOA = {"mname": "ns.", "rname": "h.", "refresh": 1, "retry": 1, "expire": 1, "minimum": 1, "ttl": 1}


@pytest.mark.parametrize(
    "statuses",
    [
        [],
        [{"serial": 7, "soa": SOA}],
        [{"serial": 7, "soa": SOA}, {"serial": 8, "soa": SOA}],
        [{"serial": 7, "soa": SOA}, {"serial": 7, "soa": SOA, "expired": True}],
    ],
    ids=["not transferred", "transferred", "followed", "expired"],
)
def test_a_secondary_zone_is_in_a_dump_as_it_is(statuses: list[dict[str, Any]]) -> None:
    node = memory_node()
    primaries = {"primaries": [{"address": "192.0.2.53"}]}
    fetched = put(www(), "secondary:example.org")
    node.commit(a_change(put(zone(type="Secondary", secondary=primaries)), fetched))
    for status in statuses:
        stored = node.objects.find(ZONE_KEY)
        assert stored is not None
        order = UpdateStatus(key=ZONE_KEY, status=status, expected=stored.resource_version)
        node.commit(a_change(order))
    assert shown(copied(node)) == shown(node)
    assert shown(node)["served"]
