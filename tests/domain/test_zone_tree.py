import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names, records
from kudurru.domain.dns.images import EMPTY, RRset, find_rrset, pack, unpack, unpack_records
from kudurru.domain.dns.names import from_text
from kudurru.domain.dns.record_types import CNAME, DNAME, DS, MX, NS, TXT, A
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone

GOLDEN = Path(__file__).parent / "golden" / "zone_digest.json"

SOA_VALUE = Soa(
    mname=from_text("ns.home.example."),
    rname=from_text("host.home.example."),
    refresh=3600,
    retry=600,
    expire=86400,
    minimum=300,
    ttl=900,
)


def rrset(rtype: int, *texts: str, ttl: int = 300, expires_at_s: int | None = None) -> RRset:
    rdatas = tuple(records.rdata_from_text(rtype, text) for text in texts)
    return RRset(rtype, ttl, rdatas, expires_at_s)


def zone_of(**owners: list[RRset]) -> Zone:
    zone = Zone(from_text("home.example."), SOA_VALUE)
    for label, rrsets in owners.items():
        zone.replace(under(label.replace("__", ".")), rrsets)
    return zone


def under(relative: str) -> names.Name:
    return from_text(relative, from_text("home.example."))


# Images


def test_an_image_holds_records_as_they_are_sent() -> None:
    image = pack([rrset(A, "192.0.2.2", "192.0.2.1")])
    found = find_rrset(image, A)
    assert found == (
        2,
        bytes.fromhex(
            "c00c 0001 0001 0000012c 0004 c0000201 c00c 0001 0001 0000012c 0004 c0000202"
        ),
    )


def test_types_stand_in_order_and_a_missing_one_is_none() -> None:
    image = pack([rrset(TXT, '"x"'), rrset(A, "192.0.2.1"), rrset(MX, "1 a.")])
    assert [found.rtype for found in unpack(image)] == [A, MX, TXT]
    assert find_rrset(image, NS) is None
    assert find_rrset(EMPTY, A) is None


def test_duplicates_go_whatever_their_letter_case_and_the_smallest_ttl_counts() -> None:
    image = pack([rrset(MX, "1 Mail.", "2 b.", ttl=60), rrset(MX, "1 mail.", ttl=30)])
    found = find_rrset(image, MX)
    assert found is not None
    assert [(r.ttl, records.rdata_to_text(MX, r.rdata)) for r in unpack_records(found[1])] == [
        (30, "1 Mail."),
        (30, "2 b."),
    ]


def test_nothing_packs_to_nothing() -> None:
    assert pack([]) == EMPTY
    assert pack([RRset(A, 5, ()), RRset(TXT, 5, ())]) == EMPTY


# One zone


def test_empty_non_terminals_exist_while_something_is_below_them() -> None:
    zone = zone_of(a__b__c=[rrset(A, "192.0.2.1")], x__b__c=[rrset(A, "192.0.2.1")])
    for name in ("b.c", "c"):
        assert zone.has_name(under(name))
        assert under(name) not in zone.nodes
    zone.replace(under("a.b.c"), [])
    assert zone.has_name(under("b.c"))
    zone.replace(under("x.b.c"), [])
    assert not zone.has_name(under("b.c"))
    assert not zone.has_name(under("c"))
    assert zone.children == {}


def test_the_apex_exists_without_records() -> None:
    zone = zone_of()
    assert zone.has_name(zone.key)
    assert zone.closest_encloser(under("a.b")) == zone.key


def test_an_owner_keeps_its_letter_case_and_is_known_by_any() -> None:
    zone = zone_of(SamBa=[rrset(A, "192.0.2.1")])
    assert zone.cased == {under("samba"): under("SamBa")}
    assert under("samba") in zone.nodes
    zone.replace(under("samba"), [rrset(A, "192.0.2.1")])
    assert zone.cased == {}


def test_counts_follow_every_change() -> None:
    zone = zone_of(a=[rrset(A, "192.0.2.1", "192.0.2.2"), rrset(TXT, '"x"')])
    assert (zone.name_count, zone.record_count) == (1, 3)
    zone.replace(under("a"), [rrset(A, "192.0.2.1")])
    assert (zone.name_count, zone.record_count) == (1, 1)
    zone.replace(under("a"), [])
    assert (zone.name_count, zone.record_count) == (0, 0)


def test_cuts_are_below_the_apex_and_dnames_anywhere() -> None:
    zone = zone_of(sub=[rrset(NS, "ns.sub.home.example.")], d=[rrset(DNAME, "t.")])
    zone.replace(zone.apex, [rrset(NS, "ns.home.example."), rrset(DNAME, "t.")])
    assert zone.cuts == {under("sub")}
    assert zone.dnames == {under("d"), zone.key}
    zone.replace(under("sub"), [])
    assert zone.cuts == set()


def test_the_topmost_cut_hides_what_is_under_it() -> None:
    zone = zone_of(sub=[rrset(NS, "ns.")], inner__sub=[rrset(NS, "ns.")])
    assert zone.occluder(under("x.inner.sub"), cut_counts=True) == under("sub")
    assert zone.occluder(under("sub"), cut_counts=True) == under("sub")
    assert zone.occluder(under("sub"), cut_counts=False) is None
    assert zone.occluder(under("other"), cut_counts=True) is None


def test_an_owner_outside_the_zone_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="outside"):
        zone_of().replace(from_text("other.example."), [])


def test_expiry_is_known_per_owner_and_type_and_goes_with_the_record() -> None:
    zone = zone_of(a=[rrset(A, "192.0.2.1", expires_at_s=50), rrset(A, "192.0.2.2")])
    zone.replace(under("b"), [rrset(TXT, '"x"', expires_at_s=40)])
    assert zone.expiring == {(under("a"), A): 50, (under("b"), TXT): 40}
    assert zone.next_expiry_s() == 40
    zone.replace(under("b"), [rrset(TXT, '"x"')])
    zone.replace(under("a"), [])
    assert zone.next_expiry_s() is None


# Versions


def test_a_zone_that_was_never_stamped_has_changes_and_no_stamped_nodes() -> None:
    zone = zone_of(a=[rrset(A, "192.0.2.1")])
    assert zone.has_unstamped_changes()
    assert list(zone.stamped_nodes()) == []
    delta = zone.stamp(7)
    assert (delta.from_serial, delta.to_serial, delta.changes) == (None, 7, {})
    assert not zone.has_unstamped_changes()


def test_the_soa_shows_the_stamped_version_while_newer_content_is_held() -> None:
    zone = zone_of()
    zone.stamp(7)
    shown = zone.soa_wire
    changed = Soa(**{name: getattr(SOA_VALUE, name) for name in Soa.__struct_fields__} | {"ttl": 5})
    zone.set_soa(changed)
    assert zone.soa_wire == shown
    assert zone.has_unstamped_changes()
    delta = zone.stamp(8)
    assert (delta.old_soa, delta.new_soa) == (SOA_VALUE, changed)
    assert next(unpack_records(zone.soa_wire)).rdata[-20:-16] == (8).to_bytes(4, "big")


def test_a_change_that_was_taken_back_is_no_change() -> None:
    zone = zone_of(a=[rrset(A, "192.0.2.1")])
    zone.stamp(7)
    zone.replace(under("a"), [rrset(A, "192.0.2.2")])
    zone.replace(under("b"), [rrset(A, "192.0.2.2")])
    zone.replace(under("b"), [])
    assert zone.has_unstamped_changes()
    zone.replace(under("a"), [rrset(A, "192.0.2.1")])
    assert not zone.has_unstamped_changes()
    assert zone.stamp(8).changes == {}


def test_letter_case_of_an_owner_is_no_content() -> None:
    zone = zone_of(a=[rrset(A, "192.0.2.1")])
    zone.stamp(7)
    digest = zone.digest()
    zone.replace(under("A"), [rrset(A, "192.0.2.1")])
    assert zone.digest() == digest
    assert not zone.has_unstamped_changes()


LABELS = st.sampled_from(["a", "b", "*", "A"])
OWNERS = st.lists(LABELS, min_size=1, max_size=3).map(lambda labels: under(".".join(labels)))
RRSETS = st.lists(
    st.sampled_from(
        [
            rrset(A, "192.0.2.1"),
            rrset(A, "192.0.2.2", ttl=60),
            rrset(A, "192.0.2.3", expires_at_s=99),
            rrset(TXT, '"x"'),
            rrset(NS, "ns.home.example."),
            rrset(CNAME, "a.home.example."),
            rrset(DNAME, "other.example."),
        ]
    ),
    max_size=3,
)
CHANGES = st.lists(st.tuples(OWNERS, RRSETS), max_size=25)


@given(CHANGES, st.randoms(use_true_random=False))
def test_a_zone_changed_in_any_order_equals_one_built_anew(changes, random) -> None:
    changed = zone_of()
    final: dict[bytes, tuple[names.Name, list[RRset]]] = {}
    for owner, rrsets in changes:
        changed.replace(owner, rrsets)
        final[names.key(owner)] = (owner, rrsets)
    order = list(final.values())
    random.shuffle(order)
    built = zone_of()
    for owner, rrsets in order:
        built.replace(owner, rrsets)
    assert state_of(changed) == state_of(built)
    parents = {names.parent(key) for key in [*built.nodes, *built.children]} - {
        names.parent(built.key)
    }
    assert set(built.children) == parents


def state_of(zone: Zone) -> tuple:
    return (
        zone.nodes,
        zone.children,
        zone.cuts,
        zone.dnames,
        zone.cased,
        zone.expiring,
        zone.record_count,
        zone.digest(),
    )


@given(st.lists(st.tuples(OWNERS, RRSETS) | st.just("stamp"), max_size=25))
def test_the_stamped_version_stays_as_it_was_stamped(steps) -> None:
    zone = zone_of()
    snapshot: dict[bytes, bytes] | None = None
    for serial, step in enumerate(steps, 1):
        if step == "stamp":
            delta = zone.stamp(serial)
            before, snapshot = snapshot, dict(zone.nodes)
            if before is not None:
                assert delta.changes == {
                    key: (before.get(key, EMPTY), snapshot.get(key, EMPTY))
                    for key in before.keys() | snapshot.keys()
                    if before.get(key) != snapshot.get(key)
                }
        else:
            zone.replace(*step)
        stamped = [(names.key(owner), image) for owner, image in zone.stamped_nodes()]
        assert len(stamped) == len(dict(stamped))
        assert dict(stamped) == (snapshot or {})
        assert zone.has_unstamped_changes() == (zone.nodes != snapshot)


# The digest


def test_the_content_digest_is_pinned() -> None:
    zone = zone_of(
        www=[rrset(A, "192.0.2.1", "192.0.2.2"), rrset(TXT, '"x"')],
        Mail=[rrset(MX, "10 www.home.example.", ttl=60)],
    )
    zone.replace(zone.apex, [rrset(NS, "ns.home.example.")])
    assert zone.digest() == json.loads(GOLDEN.read_text())["digest"]


def test_the_digest_moves_with_content_and_not_with_the_serial() -> None:
    zone = zone_of(a=[rrset(A, "192.0.2.1")])
    digest = zone.digest()
    zone.stamp(7)
    assert zone.digest() == digest
    zone.replace(under("a"), [rrset(A, "192.0.2.1", ttl=301)])
    assert zone.digest() != digest


@given(st.lists(st.tuples(OWNERS, RRSETS) | st.integers(0, 3), max_size=25))
def test_a_digest_that_is_brought_up_by_and_by_is_the_same(steps) -> None:
    zone, other = zone_of(), zone_of()
    for step in steps:
        if isinstance(step, int):
            waiting = len(zone._unsettled)
            assert zone.settle_some(step) == min(step, waiting)
        else:
            zone.replace(*step)
            other.replace(*step)
    assert zone.digest() == other.digest()


# Several zones


def test_the_closest_zone_is_found_and_ds_belongs_to_the_parent() -> None:
    parent = Zone(from_text("example."), SOA_VALUE)
    child = Zone(from_text("Home.Example."), SOA_VALUE)
    zones = ZoneSet([parent, child])
    assert zones.find(from_text("a.home.example.")) is child
    assert zones.find(from_text("athome.example.")) is parent
    assert zones.find(from_text("other.")) is None
    assert zones.find_for(from_text("home.example."), DS) is parent
    assert zones.find_for(from_text("home.example."), A) is child
    assert zones.find_for(from_text("example."), DS) is parent
    zones.remove(child.key)
    assert zones.find(from_text("a.home.example.")) is parent
    assert list(zones) == [parent]


def test_statistics_tell_what_is_served() -> None:
    zone = zone_of(a=[rrset(A, "192.0.2.1", "192.0.2.2")])
    zone.stamp(7)
    found = ZoneSet([zone]).statistics()
    assert (found.names, found.records, found.serials) == (1, 2, {"home.example.": 7})


def test_a_root_zone_encloses_everything() -> None:
    root = Zone(names.ROOT, SOA_VALUE)
    root.replace(from_text("a.b."), [rrset(A, "192.0.2.1")])
    assert root.has_name(from_text("b."))
    assert ZoneSet([root]).find(from_text("x.y.")) is root
    assert root.closest_encloser(from_text("x.b.")) == from_text("b.")


def test_a_snapshot_keeps_whether_a_zone_may_be_answered_from() -> None:
    zone = Zone(names.from_text("example."), SOA_VALUE)
    for is_available in (False, True):
        zone.is_available = is_available
        assert Zone.of(zone.frame(), {}).is_available is is_available


def test_what_a_zone_will_be_begins_with_what_it_is_now() -> None:
    zone = zone_of(www=[rrset(A, "192.0.2.1")])
    zone.digest()
    zone.replace(under("www"), [rrset(A, "192.0.2.2")])
    assert zone.foresee(zone.soa).digest() == zone.digest()
