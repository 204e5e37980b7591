from kudurru.domain.dns import names
from kudurru.domain.dns.images import RRset
from kudurru.domain.dns.lookup import lookup
from kudurru.domain.dns.record_types import CNAME, NS, TXT, A
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone
from tests.zone_files import zone_from_text

TEXT = "z. 60 IN SOA ns.z. host.z. 1 3600 600 86400 300\nz. 60 IN NS ns.z.\nA.z. 60 IN A 192.0.2.1"


def name(text: str) -> names.Name:
    return names.from_text(text)


def answers(zones: ZoneSet) -> list[object]:
    """Everything that a lookup can see of a zone."""
    questions = [("z.", 6), ("a.z.", A), ("b.a.z.", A), ("b.z.", TXT), ("x.c.z.", A), ("y.", A)]
    return [lookup(zones, name(text), rtype, 0) for text, rtype in questions]


def change(zones: ZoneSet, zone: Zone) -> None:
    zones.before_change(zone)
    zone.replace(name("b.A.z."), [RRset(A, 60, (bytes(4),))])
    zone.replace(name("b.z."), [RRset(TXT, 60, (b"\1x",), expires_at_s=100)])
    zone.replace(name("c.z."), [RRset(NS, 60, (name("ns.c.z."),))])
    zone.replace(name("A.z."), [RRset(CNAME, 60, (name("b.z."),))])
    zone.stamp(2)


def test_nobody_sees_a_part_of_what_is_held_and_all_of_it_is_shown_at_once() -> None:
    zone = zone_from_text(TEXT, "z.")
    zones = ZoneSet([zone])
    before = answers(zones)
    zones.hold()
    change(zones, zone)
    new = zone_from_text(TEXT.replace("z.", "y."), "y.")
    zones.add(new)
    assert answers(zones) == before
    assert [one.key for one in zones] == [b"\1z\0"]
    zones.show()
    expected = zone_from_text(TEXT, "z.")
    change(ZoneSet(), expected)
    assert answers(zones) == answers(ZoneSet([expected, new])) != before


def test_a_zone_that_goes_while_held_is_served_until_it_is_shown() -> None:
    zone = zone_from_text(TEXT, "z.")
    zones = ZoneSet([zone])
    zones.hold()
    zones.before_change(zone)
    zones.remove(zone.key)
    assert lookup(zones, name("a.z."), A, 0).answer
    zones.show()
    assert not zones


def test_what_is_forwarded_while_held_is_so_when_it_is_shown() -> None:
    apex, other = name("a.z."), name("b.z.")
    zones = ZoneSet([zone_from_text(TEXT, "z.")])
    assert zones.forward(other, ("192.0.2.53",))
    zones.changes()
    before, forwards = answers(zones), zones.forwards
    zones.hold()
    assert zones.forward(apex, ("192.0.2.54",))
    assert not zones.forward(apex, ("192.0.2.54",))
    assert zones.forward(other, None)
    assert answers(zones) == before
    assert zones.forwards is forwards
    zones.show()
    assert zones.forwards == {apex: ("192.0.2.54",)}
    assert zones.changes() is None  # anybody may be answered otherwise
    assert zones.find(name("b.a.z.")) is None
    assert zones.find(name("x.b.z.")) is zones.get(name("z."))


def test_without_a_hold_changes_are_seen_as_they_are_made() -> None:
    zone = zone_from_text(TEXT, "z.")
    zones = ZoneSet([zone])
    change(zones, zone)
    assert zones.get(zone.key) is zone
    assert lookup(zones, name("b.z."), TXT, 0).answer
