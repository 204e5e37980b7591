"""The zone view, case by case; `test_views` tries random histories."""

from typing import Any

import pytest

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.domain import codec
from kudurru.domain.commands import UpdateStatus
from kudurru.domain.dns import names
from kudurru.domain.dns.images import find_rrset, unpack
from kudurru.domain.dns.names import Name, from_text
from kudurru.domain.dns.record_types import A, type_to_text
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_tree import Delta, Zone
from kudurru.domain.errors import KudurruError, LogDamaged
from kudurru.domain.events import OBJECT_APPLIED, ChangeSet, Event, Position, Who
from kudurru.domain.object_store import AppliedBody
from kudurru.domain.ports import Origins
from kudurru.entrypoints.wiring import Node
from kudurru.projections import zone_history
from kudurru.projections.zone_history import ZoneHistory
from tests.nodes import a_change, brittle_log, memory_node, rebuilt
from tests.objects import WWW_KEY, ZONE_KEY, drop, endpoint, manifest, put, record_set, www, zone

SECOND = 1_000_000
APEX = from_text("example.org.")
OWNER = from_text("www.example.org.")


@pytest.fixture
def node() -> Node:
    return memory_node(ManualClock())


def do(node: Node, *commands: Any) -> None:
    node.commit(a_change(*commands))


def served(node: Node, apex: Name = APEX) -> Zone:
    found = node.zones.served.get(names.key(apex))
    assert found is not None
    return found


def test_a_group_of_changes_is_told_once_when_all_of_it_is_served() -> None:
    told: list[tuple[int, Origins]] = []
    nodes: list[Node] = []
    clock = ManualClock()
    node = Node(
        brittle_log(clock),
        clock,
        SeededEntropy(4),
        lambda changed: told.extend((served_names(node), changed) for node in nodes),
    )
    nodes.append(node)
    do(node, put(zone()))
    names_before = served_names(node)
    changes = [
        a_change(put(record_set(f"r{i}", endpoint(f"r{i}.example.org", "A", "192.0.2.1"))))
        for i in range(3)
    ]
    decided = node.decide(changes, clock.now_us())
    sets = []
    for one in decided:
        assert not isinstance(one, KudurruError)
        sets.append(ChangeSet(tuple(one.events), Who(actor="x")))
    recorded = node.append(sets, clock.now_us())
    told.clear()
    node.take_in(recorded)
    assert told == [(names_before + 3, {from_text("example.org")})]  # and of what zone
    node.take_in([])
    assert len(told) == 1


def test_what_ends_with_an_exception_is_told_too() -> None:
    told: list[Origins] = []
    clock = ManualClock()
    node = Node(brittle_log(clock), clock, SeededEntropy(4), told.append)
    view = node.zones
    told.clear()
    with pytest.raises(RuntimeError, match="in the middle"), view.told_once():
        raise RuntimeError("in the middle of a change")
    assert told == [None]
    with view.told_once():
        pass
    assert told == [None]


def served_names(node: Node) -> int:
    return sum(zone.name_count for zone in node.zones.served)


def types(node: Node, owner: Name = OWNER) -> list[str]:
    return [type_to_text(rrset.rtype) for rrset in unpack(served(node).nodes.get(owner, b""))]


def reasons(node: Node, key: Any = WWW_KEY) -> list[str]:
    return [problem.reason for problem in node.zones.problems(key)]


def record(node: Node, *commands: Any) -> None:
    """As a server does first: without the stamp."""
    now_us = node.clock.now_us()
    (decided,) = node.decide([a_change(*commands)], now_us)
    node.take_in(node.append([ChangeSet(tuple(decided.events), decided.change.who)], now_us))


# Zones and their first serial


def test_a_zone_is_served_from_its_first_serial_on(node: Node) -> None:
    record(node, put(zone()), put(www()))
    assert len(node.zones.served) == 0
    assert [state.name for state in node.zones.unstamped()] == ["example.org"]
    record(node, *node.stamps())
    assert served(node).serial > 0
    assert types(node) == ["A"]


def test_what_was_served_stays_until_the_first_serial_of_what_takes_its_place(
    node: Node,
) -> None:
    do(node, put(zone()), put(www()))
    do(node, put(manifest("DNSZone", "later", {"zoneName": "example.org"})))
    before = served(node)
    record(node, drop(ZONE_KEY))
    assert served(node) is before
    record(node, *node.stamps())
    assert served(node) is not before
    assert served(node).serial > before.serial
    record(node, drop("DNSZone//later"))
    assert len(node.zones.served) == 0


def test_a_zone_that_cannot_be_given_a_serial_is_served_all_the_same(node: Node) -> None:
    record(node, put(zone()), put(www()))
    node.zones.show_unstamped()
    assert types(node) == ["A"]
    record(node, *node.stamps())
    assert served(node).serial > 0
    record(node, put(manifest("DNSZone", "other", {"zoneName": "example.net"})))
    assert len(node.zones.served) == 1


# Logs of other versions, and damaged ones


def test_what_a_laxer_version_accepted_is_served_on(node: Node) -> None:
    """A TTL above today's bound, and a field that is gone."""
    do(node, put(zone()), put(www()))
    spec = {
        "zoneRef": {"name": "example.org", "was": 1},
        "endpoints": [
            {"dnsName": "www.example.org", "recordType": "A", "targets": ["192.0.2.9"]}
            | {"recordTTL": 2**31, "weight": 5}
        ],
    }
    body = AppliedBody(uid="u", generation=2, creation_timestamp="2026-01-01T00:00:00Z", spec=spec)
    event = Event(
        *(OBJECT_APPLIED, WWW_KEY, node.objects.version(WWW_KEY) + 1, "default/example.org", "m"),
        codec.canonical(body),
    )
    change_set = ChangeSet((event,), Who(actor="older"))
    node.take_in(node.log.append([change_set], node.clock.now_us()))
    assert find_rrset(served(node).nodes[OWNER], A)[1].endswith(bytes((192, 0, 2, 9)))
    do(node, drop(WWW_KEY))
    assert OWNER not in served(node).nodes


def test_a_content_that_is_missing_in_the_log_is_told(node: Node) -> None:
    do(node, put(zone()), put(www()))
    node.objects._read_event = lambda seq: None
    node.objects._cache.clear()
    with pytest.raises(LogDamaged, match="the content of DNSRecordSet/default/www is missing"):
        node.objects.find(WWW_KEY)


# Record sets and their zone


def test_record_sets_may_come_before_their_zone_and_wait_for_it(node: Node) -> None:
    do(node, put(www()))
    assert len(node.zones.served) == 0
    assert reasons(node) == ["ZoneNotFound"]
    do(node, put(zone()))
    assert types(node) == ["A"]
    assert reasons(node) == []


def test_a_zone_that_is_deleted_and_made_again_finds_its_record_sets(node: Node) -> None:
    do(node, put(zone()), put(www()))
    do(node, drop(ZONE_KEY))
    assert len(node.zones.served) == 0
    assert reasons(node) == ["ZoneNotFound"]
    do(node, put(zone()))
    assert types(node) == ["A"]


def test_a_record_set_that_changes_its_zone_leaves_the_first_and_joins_the_other(
    node: Node,
) -> None:
    do(node, put(zone()), put(zone("example.net")), put(www()))
    there = record_set("www", endpoint("www.example.net", "A", "192.0.2.1"), zone="example.net")
    do(node, put(there))
    assert types(node) == []
    assert served(node, from_text("example.net.")).record_count == 1


def test_a_zone_selects_by_namespace_and_says_so_where_it_does_not(node: Node) -> None:
    do(node, put(zone(allowedNamespaces=["team"])), put(www()))
    assert types(node) == []
    assert reasons(node) == ["NotSelected"]
    do(node, put(zone()))
    assert types(node) == ["A"]
    assert reasons(node) == []
    do(node, put(zone(allowedNamespaces=[])))
    assert reasons(node) == ["NotSelected"]


@pytest.mark.parametrize("allowed", [None, ["team"]])
def test_a_record_set_without_records_has_the_same_problems(node: Node, allowed: Any) -> None:
    do(node, put(record_set("www")))
    assert reasons(node) == ["ZoneNotFound"]
    do(node, put(zone(**({} if allowed is None else {"allowedNamespaces": allowed}))))
    assert reasons(node) == ([] if allowed is None else ["NotSelected"])
    do(node, drop(ZONE_KEY))
    assert reasons(node) == ["ZoneNotFound"]


def test_records_outside_a_zone_that_came_later_are_a_problem_and_the_rest_is_served(
    node: Node,
) -> None:
    mixed = record_set(
        "www",
        endpoint("www.example.org", "A", "192.0.2.1"),
        endpoint("www.example.net", "A", "192.0.2.1"),
    )
    do(node, put(mixed))
    do(node, put(zone()))
    assert types(node) == ["A"]
    (problem,) = node.zones.problems(WWW_KEY)
    assert (problem.reason, problem.dns_name) == ("OutsideZone", "www.example.net.")


def test_the_later_of_two_record_sets_has_the_problem_until_the_earlier_goes(node: Node) -> None:
    second = record_set("later", endpoint("WWW.example.org.", "A", "192.0.2.2"))
    do(node, put(zone()), put(www()))
    node.clock.advance(SECOND)  # type: ignore[attr-defined]  # a ManualClock
    do(node, put(second))
    assert reasons(node, second.key) == ["Duplicated"]
    do(node, drop(WWW_KEY))
    assert reasons(node, second.key) == []
    assert types(node) == ["A"]
    assert served(node).cased == {OWNER: from_text("WWW.example.org.")}


# Zones


def test_of_two_zones_with_one_name_the_earlier_serves_and_the_later_steps_in(node: Node) -> None:
    later = manifest("DNSZone", "a-later", {"zoneName": "EXAMPLE.org"})
    theirs = record_set("x", endpoint("x.example.org", "A", "192.0.2.1"), zone="a-later")
    do(node, put(zone()), put(www()))
    node.clock.advance(SECOND)  # type: ignore[attr-defined]
    do(node, put(later), put(theirs))
    assert types(node) == ["A"]
    assert node.zones.find("a-later") is not None
    assert reasons(node, theirs.key) == ["ZoneNotFound"]
    assert "an earlier one has the name" in node.zones.problems(theirs.key)[0].message
    before = served(node).serial
    do(node, drop(ZONE_KEY))
    assert types(node) == []
    assert types(node, from_text("x.example.org.")) == ["A"]
    assert served(node).serial == before + 1
    do(node, put(zone()))
    assert types(node) == []


def test_zones_of_one_second_are_ordered_by_name(node: Node) -> None:
    do(node, put(manifest("DNSZone", "b", {"zoneName": "example.org"})))
    do(node, put(manifest("DNSZone", "a", {"zoneName": "example.org"})))
    state = node.zones.find("example.org.")
    assert state is not None
    assert state.name == "a"


def test_a_forward_zone_is_not_served_and_holds_its_name(node: Node) -> None:
    forward = {"type": "Forward", "forward": {"upstreams": ["udp://192.0.2.53"]}}
    do(node, put(zone(**forward)), put(www()))
    assert len(node.zones.served) == 0
    assert node.stamps() == []
    assert "takes no record sets" in node.zones.problems(WWW_KEY)[0].message
    do(node, put(manifest("DNSZone", "later", {"zoneName": "example.org"})))
    assert len(node.zones.served) == 0
    do(node, put(zone()))
    assert types(node) == ["A"]
    do(node, put(zone(**forward)))
    assert len(node.zones.served) == 0
    do(node, drop(ZONE_KEY))
    assert len(node.zones.served) == 1


def test_a_forward_zone_says_where_its_names_go(node: Node) -> None:
    apex = names.key(names.from_text("example.org."))
    forward = {"type": "Forward", "forward": {"upstreams": ["192.0.2.53"]}}
    do(node, put(zone(**forward)))
    assert node.zones.forwards == {apex: ("192.0.2.53",)}
    before = node.zones.forwards
    other = {"type": "Forward", "forward": {"upstreams": ["192.0.2.54"]}}
    do(node, put(manifest("DNSZone", "later", {"zoneName": "example.org", **other})))
    assert node.zones.forwards is before  # the name is taken
    do(node, drop(ZONE_KEY))
    assert node.zones.forwards == {apex: ("192.0.2.54",)}
    do(node, put(manifest("DNSZone", "later", {"zoneName": "example.org"})))
    assert node.zones.forwards == {}


def test_a_forward_zone_takes_its_names_from_the_zone_above_with_a_whole_change(
    node: Node,
) -> None:
    record_sets = record_set("www", endpoint("www.sub.example.org", "A", "192.0.2.1"))
    do(node, put(zone()), put(record_sets))
    inner = from_text("www.sub.example.org.")
    forward = {"type": "Forward", "forward": {"upstreams": ["192.0.2.53"]}}
    with node.zones.as_one():
        do(node, put(manifest("DNSZone", "sub", {"zoneName": "sub.example.org", **forward})))
        assert node.zones.forwards == {}
        assert node.zones.served.find(inner) is served(node)
    assert list(node.zones.forwards) == [from_text("sub.example.org.")]
    assert node.zones.served.find(inner) is None
    assert served(node).has_name(inner)  # a transfer has it all the same
    do(node, drop("DNSZone//sub"))
    assert node.zones.served.find(inner) is served(node)


def test_a_refresh_that_finds_no_other_version_is_no_change_of_what_is_served() -> None:
    told: list[Origins] = []
    clock = ManualClock()
    node = Node(brittle_log(clock), clock, SeededEntropy(4), told.append)
    secondary = {"primaries": [{"address": "192.0.2.99"}]}
    do(node, put(zone(type="Secondary", secondary=secondary)))
    soa = {
        "mname": "ns.example.org.", "rname": "h.example.org.",
        "refresh": 1, "retry": 1, "expire": 5, "minimum": 5, "ttl": 60,
    }  # fmt: skip

    def told_by(**status: Any) -> list[Origins]:
        told.clear()
        stored = node.objects.find(ZONE_KEY)
        assert stored is not None
        whole = {"soa": soa, **status}
        expected = stored.resource_version
        do(node, UpdateStatus(key=ZONE_KEY, status=whole, expected=expected))
        return [what for what in told if what is None or APEX in what]

    assert told_by(serial=5)
    assert served(node).is_available
    assert not told_by(serial=5, refreshedAt="2025-10-09T08:00:00Z")
    assert told == []
    node.zones.withhold("example.org")
    assert not served(node).is_available
    assert told_by(serial=5, refreshedAt="2025-10-09T08:10:00Z") == [{APEX}]
    assert served(node).is_available
    assert told_by(serial=6) == [{APEX}]
    assert told_by(serial=6, expired=True)
    assert not served(node).is_available


def test_a_zone_is_found_by_object_name_and_by_dns_name(node: Node) -> None:
    do(node, put(manifest("DNSZone", "mine", {"zoneName": "example.org"})))
    for name in ("mine", "example.org", "EXAMPLE.ORG."):
        state = node.zones.find(name)
        assert state is not None
        assert state.name == "mine"
    assert node.zones.find("example.net") is None
    assert node.zones.find("a..b") is None


def test_the_ttl_of_the_zone_reaches_every_record_that_has_none(node: Node) -> None:
    own = record_set("own", endpoint("own.example.org", "A", "192.0.2.1", recordTTL=5))
    do(node, put(zone(nameservers=["ns.example."])), put(www()), put(own))
    before = served(node).serial
    do(node, put(zone(nameservers=["ns.example."], defaultTTL=77)))
    ttls = {
        names.to_text(owner): int.from_bytes(unpack(image)[0].wire[6:10], "big")
        for owner, image in served(node).nodes.items()
    }
    assert ttls == {"example.org.": 77, "www.example.org.": 77, "own.example.org.": 5}
    assert served(node).soa.ttl == 77
    assert served(node).serial == before + 1


# What moves a serial


@pytest.mark.parametrize(
    "again",
    [
        www("192.0.2.1", "192.0.2.2"),
        www("192.0.2.1", "192.0.2.2", labels={"a": "b"}),
        www("192.0.2.2", "192.0.2.1"),
        www("192.0.2.1", "192.0.2.2", "192.0.2.2"),
        record_set("www", endpoint("WWW.EXAMPLE.ORG.", "A", "192.0.2.1", "192.0.2.2")),
        record_set(
            "www",
            endpoint("www.example.org", "A", "192.0.2.2", recordTTL=300),
            endpoint("www.example.org", "A", "192.0.2.1", setIdentifier="b"),
            endpoint("off.example.org", "A", "192.0.2.1", disabled=True),
        ),
    ],
    ids=["the same", "labels", "order", "a duplicate", "letter case", "other words"],
)
def test_what_is_no_content_moves_no_serial(node: Node, again: Any) -> None:
    do(node, put(zone()), put(www("192.0.2.1", "192.0.2.2")))
    before = served(node).serial
    do(node, put(again))
    assert served(node).serial == before


def test_the_next_query_never_sees_a_name_without_its_records(node: Node) -> None:
    """A record set that changes is swapped in one step: the answers are dropped when the new
    ones are there, and there is no moment without any."""
    do(node, put(zone()), put(www()))
    seen = []

    def look(_changed: Origins) -> None:
        seen.append(find_rrset(served(node).nodes[OWNER], A))

    node.zones._on_change = look
    do(node, put(www("192.0.2.2")))
    assert seen
    assert None not in seen


def test_a_status_of_any_shape_leaves_the_zone_served(node: Node) -> None:
    do(node, put(zone()), put(www()))
    before = served(node).serial
    odd = [{}, *({"serial": value} for value in (None, "7", 0, 2**32, True, [1]))]
    for status in [*odd, {"conditions": [{"type": "Ready"}], "recordCount": "x"}]:
        stored = node.objects.find(ZONE_KEY)
        assert stored is not None
        do(node, UpdateStatus(key=ZONE_KEY, status=status, expected=stored.resource_version))
        assert served(node).serial == before
    assert rebuilt(node).views.digests() == node.views.digests()


# History


def delta(number: int, changes: int = 1) -> Delta:
    soa = Soa(mname=APEX, rname=APEX, refresh=1, retry=1, expire=1, minimum=1, ttl=1)
    return Delta(
        from_serial=number - 1,
        to_serial=number,
        old_soa=soa,
        new_soa=soa,
        changes={b"%d" % i: (b"", b"x") for i in range(changes)},
    )


def test_history_keeps_so_many_versions_and_so_many_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zone_history, "VERSIONS_MAX", 3)
    monkeypatch.setattr(zone_history, "CHANGES_MAX", 10)
    history = ZoneHistory()
    for number in range(2, 7):
        history.add(APEX, delta(number), Position(number), number)
    assert [version.serial for version in history.versions(APEX)] == [4, 5, 6]
    history.add(APEX, delta(7, changes=9), Position(7), 7)
    assert [version.serial for version in history.versions(APEX)] == [6, 7]
    history.add(APEX, delta(8, changes=11), Position(8), 8)
    assert history.versions(APEX)[-1].delta is None  # too large to keep: fetch the whole zone
    assert history.highest(APEX) == 8


def test_a_dropped_version_leaves_no_trace_in_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zone_history, "VERSIONS_MAX", 2)
    long, short = ZoneHistory(), ZoneHistory()
    for number in range(2, 9):
        long.add(APEX, delta(number), Position(number), number)
    for number in (7, 8):
        short.add(APEX, delta(number), Position(number), number)
    assert long.digest() == short.digest()


def test_the_highest_serial_of_a_name_outlives_its_zone() -> None:
    history = ZoneHistory()
    history.add(APEX, delta(9), Position(1), 1)
    history.forget(APEX)
    assert history.versions(APEX) == ()
    assert history.highest(APEX) == 9
    history.add(APEX, delta(5), Position(2), 2)
    assert history.highest(APEX) == 9
