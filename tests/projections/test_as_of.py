"""What is read as of a position is what a replay up to there gives."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kudurru.adapters.memory.clock import SeededEntropy
from kudurru.domain import zone_export
from kudurru.domain.dns.lookup import lookup
from kudurru.domain.dns.names import from_text
from kudurru.domain.errors import NotFound
from kudurru.domain.object_store import StoredObject
from kudurru.domain.restore import Scope
from kudurru.entrypoints.wiring import Node
from kudurru.projections import as_of
from kudurru.projections.zones_as_of import ZonesAsOf
from tests.histories import APEXES, KEYS, ZONES, histories, targets_of
from tests.nodes import a_change, memory_node
from tests.objects import drop, endpoint, put, record_set, www, zone

SCOPES = [
    Scope(everything=True),
    Scope(kind="DNSZone"),
    Scope(selector="team=x"),
    Scope(namespace="team"),
    Scope(keys=tuple(KEYS[:3])),
    *(Scope(zone=name) for name in ZONES),
    Scope(zone="east", namespace="default"),
]
few = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


def replayed(node: Node, upto: int) -> Node:
    other = Node(node.log, node.clock, SeededEntropy(3))
    other.views.follower.catch_up(other.log, upto)
    return other


def selected(node: Node, scope: Scope) -> dict[str, StoredObject]:
    found = {}
    for kind in ("DNSRecordSet", "DNSZone"):
        for stored in node.objects.list(kind).objects:
            is_labelled = not scope.selector or stored.body.labels.get("team") == "x"
            if scope.covers(stored.key, stored.scope) and is_labelled:
                found[stored.key] = stored
    return found


@few
@given(histories(), st.data())
def test_objects_are_those_of_a_replay(node: Node, data: st.DataObject) -> None:
    first, last = sorted(data.draw(st.sampled_from(targets_of(node))) for _ in range(2))
    then, now = replayed(node, first), replayed(node, last)
    for scope in SCOPES:
        # The status of an object that came from another zone is another scope's matter.
        expected = selected(then, scope)
        found = as_of.objects(node.log, scope, first)
        assert [(s.key, s.manager, s.body) for s in found.values()] == [
            (s.key, s.manager, s.body) for _, s in sorted(expected.items())
        ]
        both = as_of.between(node.log, scope, first, last)
        wanted = expected.keys() | selected(now, scope).keys()
        assert both.then.keys() | both.now.keys() == wanted
        for side, view in ((both.then, then), (both.now, now)):
            objects = {key: view.objects.find(key) for key in wanted}
            assert {key: stored.body for key, stored in side.items()} == {
                key: stored.body for key, stored in objects.items() if stored
            }
    for key in KEYS:
        known = as_of.find(node.log, key, first)
        assert (known.stored(node.log.epoch) if known else None) == then.objects.find(key)


@few
@given(histories(), st.data())
def test_zones_are_those_of_a_replay(node: Node, data: st.DataObject) -> None:
    upto = data.draw(st.sampled_from(targets_of(node)))
    view = replayed(node, upto).zones
    view.show_unstamped()  # a position may lie between a zone and its first serial
    zones = ZonesAsOf(node.log, upto)
    for state in view.states():
        loaded = zones.load(state.name)
        is_served = zones.is_elected(state.apex, state.name) and loaded.zone is not None
        assert is_served == (state.zone is not None)
        if state.zone is not None and loaded.zone is not None:
            assert loaded.zone.digest() == state.zone.digest()
            assert list(zone_export.lines(loaded.zone)) == list(zone_export.lines(state.zone))
    for apex in (*APEXES, "test.", "other."):
        for owner in ("", "www.", "mail.", "z.apps.", "y.", "nope."):
            for rtype in (1, 6):
                question = from_text(owner + apex), rtype
                answers = [lookup(of, *question, view.now_s) for of in (zones, view.served)]
                assert answers[0] == answers[1]


def test_what_was_forwarded_is_not_answered_from_the_zone_above() -> None:
    node = memory_node()
    forward = {"type": "Forward", "forward": {"upstreams": ["192.0.2.53"]}}
    inner, outer = from_text("www.sub.example.org."), zone("example.org")
    www = record_set("www", endpoint("www.sub.example.org", "A", "192.0.2.1"))
    node.commit(a_change(put(outer), put(www)))
    heads = [node.log.head().seq]
    node.commit(a_change(put(zone("sub.example.org", zoneName="sub.example.org.", **forward))))
    heads.append(node.log.head().seq)
    node.commit(a_change(drop("DNSZone//sub.example.org")))
    heads.append(node.log.head().seq)
    found = [ZonesAsOf(node.log, upto).find(inner) for upto in heads]
    assert [one is not None for one in found] == [True, False, True]


def test_a_zone_is_named_by_its_object_or_its_dns_name_also_when_it_is_gone() -> None:
    node = memory_node()
    node.commit(a_change(put(zone("home", zoneName="Example.ORG."))))
    there = node.log.head().seq
    node.commit(a_change(drop(KEYS[0].replace("east", "home"))))
    gone = node.log.head().seq
    for text in ("home", "example.org", "EXAMPLE.org."):
        assert as_of.zone_named(node.log, text, gone, there) == "home"
        with pytest.raises(NotFound, match="get zone"):
            as_of.zone_named(node.log, text, gone)


def test_the_last_serial_is_known_when_the_zone_is_gone() -> None:
    node = memory_node()
    key = zone().key
    assert as_of.last_serial(node.log, key) is None
    node.commit(a_change(put(zone()), imported_serials={"example.org": 4_000_000_000}))
    node.commit(a_change(drop(key)))
    assert as_of.last_serial(node.log, key) == 4_000_000_000


def test_a_scope_moves_by_content_and_not_by_stamps_or_its_own_restore() -> None:
    node = memory_node()
    node.commit(a_change(put(zone())))
    base = node.log.head().seq
    scope = Scope(zone="example.org")
    assert as_of.moved_since(node.log, scope, base, but_by="restore:1") is None
    other = record_set("other", zone="elsewhere")
    node.commit(a_change(put(other)))
    assert as_of.moved_since(node.log, scope, base, but_by="restore:1") is None
    node.commit(a_change(put(www())))
    moved = as_of.moved_since(node.log, scope, base, but_by="restore:1")
    assert moved is not None
    assert moved.key == www().key
