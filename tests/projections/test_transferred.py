"""From transfers to record sets: whatever versions a primary had, what is served is its last."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.domain.commands import UpdateStatus
from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.images import unpack, unpack_records
from kudurru.domain.dns.message_reader import Record
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import CNAME
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.transfer import Differences, Step, Version, Whole
from kudurru.domain.events import Who
from kudurru.domain.reconcile import secondaries
from kudurru.domain.zone_import import group_by_owner
from kudurru.entrypoints.steps import finish
from kudurru.entrypoints.wiring import Change, Node
from kudurru.projections.transferred import Source, command_steps, is_sound, ours_of
from tests.nodes import a_change, commit_as_server, memory_node, rebuilt
from tests.objects import put, zone
from tests.projections.test_pruning import is_kept, keeper_of, pruned_event, views_of

APEX = names.from_text("sec.example.")
ZONE = zone("sec.example", type="Secondary", secondary={"primaries": [{"address": "192.0.2.1"}]})
SOA = Soa(
    mname=names.from_text("ns.sec.example."),
    rname=names.from_text("h.sec.example."),
    refresh=1,
    retry=2,
    expire=3,
    minimum=4,
    ttl=60,
)
Item = tuple[Name, int, bytes]
Content = frozenset[Item]

OWNERS = ["@", "a", "A", "b.a", "*.a", "_x._tcp", "ns", "apex", "wildcard.b", "with\\032space"]
DATA = [
    ("A", "192.0.2.1"), ("A", "192.0.2.2"), ("NS", "ns.sec.example."), ("NS", "ns.example.net."),
    ("TXT", '"t"'), ("MX", "1 mail.sec.example."), ("TYPE65280", "\\# 2 0102"),
]  # fmt: skip


def items() -> st.SearchStrategy[Item]:
    def item(owner: str, data: tuple[str, str]) -> Item:
        rtype = record_types.type_from_text(data[0])
        return (
            names.key(names.from_text(owner, APEX)),
            rtype,
            records.rdata_from_text(rtype, data[1]),
        )

    return st.builds(item, st.sampled_from(OWNERS), st.sampled_from(DATA))


def contents() -> st.SearchStrategy[Content]:
    return st.frozensets(items(), max_size=12)


def version(serial: int) -> Version:
    return Version(serial, SOA)


def whole(serial: int, content: Content) -> Whole:
    owners = group_by_owner((owner, rtype, 60, rdata) for owner, rtype, rdata in sorted(content))
    return Whole(version(serial), owners)


def step(serial: int, old: Content, new: Content) -> Step:
    def listed(some: Content) -> list[Record]:
        return [Record(owner, rtype, 1, 60, rdata) for owner, rtype, rdata in sorted(some)]

    return Step(serial, serial + 1, listed(old - new), listed(new - old))


def take(node: Node, received: Whole | Differences) -> None:
    state = node.zones.state("sec.example")
    assert state is not None
    source = Source(primary="192.0.2.1:53", now_s=1_700_000_000)
    commands = finish(command_steps(received, state, node.objects, source))
    who = Who(actor="secondary:sec.example", source="192.0.2.1:53")
    commit_as_server(node, Change(commands=commands, who=who))


def served(node: Node) -> Content:
    found = node.zones.served.get(APEX)
    assert found is not None
    return frozenset(
        (Name(owner), record.rtype, record.rdata)
        for owner, image in found.nodes.items()
        for rrset in unpack(image)
        for record in unpack_records(rrset.wire)
    )


def a_node() -> Node:
    node = memory_node()
    commit_as_server(node, a_change(put(ZONE)))
    return node


@settings(max_examples=60)
@given(st.lists(contents(), min_size=1, max_size=6), st.integers(0, 2**32))
def test_any_versions_whole_or_by_steps_are_served_as_they_are(
    versions: list[Content], seed: int
) -> None:
    chance, node = random.Random(seed), a_node()
    take(node, whole(1, versions[0]))
    at = 0
    while at < len(versions):
        assert served(node) == versions[at]
        state = node.zones.state("sec.example")
        assert state is not None
        assert ours_of(state) == version(at + 1)
        assert is_sound(state)
        assert len(state.record_sets()) == len({owner for owner, _, _ in versions[at]})
        if at + 1 == len(versions):
            break
        to = chance.randrange(at + 1, len(versions))
        if chance.random() < 0.5:
            take(node, whole(to + 1, versions[to]))
        else:
            steps = [step(i + 1, versions[i], versions[i + 1]) for i in range(at, to)]
            take(node, Differences(version(to + 1), steps))
        at = to
    assert rebuilt(node).views.digests() == node.views.digests()


def test_what_is_unchanged_is_not_written_again() -> None:
    node = a_node()
    content = frozenset(
        {(names.from_text(f"h{i}", APEX), 1, bytes((192, 0, 2, i))) for i in range(50)}
    )
    take(node, whole(1, content))
    before = node.position
    changed = content ^ {(names.from_text("h1", APEX), 1, bytes((192, 0, 2, 1)))}
    take(node, whole(2, changed))
    assert node.position == before + 2  # the record set that went, and the status


@pytest.mark.parametrize("other", ["example.", "a.sec.example."])
def test_zones_above_and_below_share_no_names_of_objects(other: str) -> None:
    node = memory_node()
    name = other.rstrip(".")
    secondary = {"primaries": [{"address": "192.0.2.1"}]}
    spec = zone(name, type="Secondary", secondary=secondary)
    commit_as_server(node, a_change(put(ZONE), put(spec)))
    owner = names.from_text("ns.a.sec.example.")
    content = frozenset({(owner, 1, bytes((192, 0, 2, 1)))})
    for of in ("sec.example", name):
        state = node.zones.state(of)
        assert state is not None
        source = Source(primary="192.0.2.1:53", now_s=1_700_000_000)
        commands = finish(command_steps(whole(1, content), state, node.objects, source))
        commit_as_server(node, Change(commands=commands, who=Who(actor=f"secondary:{of}")))
    assert len(node.objects.keys("DNSRecordSet")) == 2
    assert all(z.record_count == 1 for z in node.zones.served)


def test_a_cname_is_taken_as_one() -> None:
    node = a_node()
    owner = names.from_text("alias", APEX)
    take(node, whole(1, frozenset({(owner, CNAME, names.from_text("a.example."))})))
    assert served(node) == {(owner, CNAME, names.from_text("a.example."))}


def the_status(node: Node, change: object) -> None:
    """Another status of the zone, as `change` makes it of the one before."""
    state = node.zones.state("sec.example")
    assert state is not None
    stored = node.objects.find(state.key)
    assert stored is not None
    status = change(stored.status, 1_700_000_100, generation=1)  # type: ignore[operator]
    command = UpdateStatus(key=state.key, status=status, expected=stored.resource_version)
    commit_as_server(node, a_change(command))


@settings(max_examples=40, deadline=None)
@given(st.lists(contents(), min_size=1, max_size=4), st.integers(0, 2**32))
def test_what_a_pruning_keeps_of_a_secondary_is_what_it_serves(
    versions: list[Content], seed: int
) -> None:
    chance, node = random.Random(seed), a_node()
    for serial, content in enumerate(versions, 1):
        take(node, whole(serial, content))
        match chance.randrange(4):
            case 0:
                the_status(node, secondaries.expired)
            case 1:
                the_status(node, secondaries.expired)
                the_status(node, secondaries.served)
            case 2:  # a primary for a while, and a secondary again
                commit_as_server(node, a_change(put(zone("sec.example"))))
                commit_as_server(node, a_change(put(ZONE)))
    events = list(node.log.read())
    for upto in range(1, len(events) + 1):
        kept = keeper_of(events[:upto]).kept()
        all_of_it = [*events, pruned_event(events[-1], upto)]
        left = [event for event in all_of_it if event.seq > upto or is_kept(kept, event.seq)]
        assert views_of(left, upto).digests() == views_of(all_of_it, 0).digests()
