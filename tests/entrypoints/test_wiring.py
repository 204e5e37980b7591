"""The road from a command to an event: `Node`, with a log in memory."""

import re
from uuid import UUID

import msgspec
import pytest

from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.commands import Apply, UpdateStatus
from kudurru.domain.dns.serials import CLOCK_LEAP_MAX_S
from kudurru.domain.errors import (
    Invalid,
    KudurruError,
    LogDamaged,
    ManagedBy,
    MassChange,
    StorageFailed,
)
from kudurru.domain.events import CLOCK_STEPPED, ChangeSet, Who
from kudurru.domain.object_store import resource_version
from kudurru.domain.reconcile.conditions import condition
from kudurru.entrypoints.wiring import Change, Node, Result
from tests.nodes import BrittleLog, a_change, commit_as_server, memory_node, rebuilt
from tests.objects import WWW_KEY, ZONE_KEY, drop, endpoint, manifest, put, record_set, www, zone

SECOND = 1_000_000
YEAR_US = 365 * 86_400 * SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def node(clock: ManualClock) -> Node:
    return memory_node(clock)


def write_group(node: Node, *changes: Change) -> list[Result | KudurruError]:
    """Changes in one transaction, as a server's writer commits a group."""
    now_us = node.clock.now_us()
    decided = node.decide(changes, now_us)
    sets = [
        ChangeSet(tuple(one.events), one.change.who)
        for one in decided
        if not isinstance(one, KudurruError) and one.events
    ]
    recorded = node.log.append(sets, now_us) if sets else []
    node.take_in(recorded)
    return node.results(decided, recorded)


def serial(node: Node) -> int:
    (only,) = node.zones.served
    return only.serial


# Results


def test_a_commit_says_what_became_of_each_command_and_where_it_is(node: Node) -> None:
    result = node.commit(a_change(put(zone()), put(www())))
    assert result.seq == 2, "as of its last event the log has all of it"
    assert [(o.verb, o.key) for o in result.outcomes] == [
        ("created", ZONE_KEY),
        ("created", WWW_KEY),
    ]
    for outcome in result.outcomes:
        stored = node.objects.find(outcome.key)
        assert stored is not None
        assert outcome.resource_version == stored.resource_version


def test_change_and_stamp_are_one_change_set(node: Node) -> None:
    node.commit(a_change(put(zone()), put(www())))
    events = list(node.log.read())
    assert [event.type for event in events] == ["obj.applied.v1", "obj.applied.v1", "obj.status.v1"]
    assert {(event.txn, event.n) for event in events} == {(1, 3)}


def test_an_apply_that_changes_nothing_writes_nothing_and_says_the_version(node: Node) -> None:
    node.commit(a_change(put(zone())))
    head = node.log.head()
    result = node.commit(a_change(put(zone())))
    assert node.log.head() == head
    assert result.seq == 0
    stored = node.objects.find(ZONE_KEY)
    assert stored is not None
    assert result.outcomes[0].resource_version == stored.resource_version


def test_in_a_group_each_change_sees_the_earlier_ones_and_a_refused_one_hurts_nobody(
    node: Node,
) -> None:
    results = write_group(
        node,
        a_change(put(www("192.0.2.1"), manager="alice")),
        a_change(put(www("192.0.2.2"), manager="bob"), put(zone())),
        a_change(put(www("192.0.2.3"), manager="alice")),
    )
    assert isinstance(results[0], Result)
    assert isinstance(results[1], ManagedBy)
    assert isinstance(results[2], Result)
    assert results[2].outcomes[0].resource_version == resource_version(1, 2)
    assert node.objects.find(ZONE_KEY) is None
    assert node.log.head().seq == 2


def test_unchanged_since_an_earlier_change_of_the_group_has_the_version_of_that_one(
    node: Node,
) -> None:
    results = write_group(
        node, a_change(put(www())), a_change(put(www())), a_change(put(www("192.0.2.2")))
    )
    found = [r.outcomes[0] for r in results if isinstance(r, Result)]
    assert [(o.verb, o.resource_version) for o in found] == [
        ("created", resource_version(1, 1)),
        ("unchanged", resource_version(1, 1)),
        ("configured", resource_version(1, 2)),
    ]


def test_of_eight_managers_in_one_group_one_creates_and_seven_are_told_who(node: Node) -> None:
    results = write_group(
        node, *(a_change(put(www(f"192.0.2.{i}"), manager=f"m{i}")) for i in range(8))
    )
    assert isinstance(results[0], Result)
    assert [r.owner for r in results[1:] if isinstance(r, ManagedBy)] == ["m0"] * 7


def test_a_change_is_all_or_nothing(node: Node) -> None:
    stray = record_set("stray", endpoint("www.example.net", "A", "192.0.2.1"))
    with pytest.raises(Invalid):
        node.commit(a_change(put(zone()), put(www()), put(stray)))
    assert node.log.head().seq == 0
    assert len(node.objects) == 0
    assert len(node.zones.served) == 0


def test_a_dry_run_says_what_would_be_and_does_nothing(node: Node) -> None:
    digests = node.views.digests()
    result = node.commit(a_change(put(zone()), put(www()), dry_run=True))
    assert [o.verb for o in result.outcomes] == ["created", "created"]
    assert result.seq == 0
    assert node.log.head().seq == 0
    assert node.views.digests() == digests


OTHER = put(record_set("other", endpoint("other.example.org", "A", "192.0.2.1")))


@pytest.mark.parametrize("also", [(), (OTHER,)], ids=["of one command", "of several"])
def test_what_is_tried_or_refused_is_not_there_for_the_next_change_of_the_group(
    node: Node, also: tuple[Apply, ...]
) -> None:
    many = [endpoint(f"h{i}.example.org", "A", "192.0.2.1") for i in range(20)]
    node.commit(a_change(put(zone()), put(record_set("many", *many))))
    tried, refused, *others = write_group(
        node,
        a_change(put(www()), *also, dry_run=True),
        a_change(put(record_set("many", many[0])), *also, allow_mass_change=False),
        a_change(put(record_set("many", *many))),
        a_change(put(www())),
    )
    assert isinstance(tried, Result)
    assert isinstance(refused, MassChange)
    assert [one.outcomes[0].verb for one in others if isinstance(one, Result)] == [
        "unchanged",
        "created",
    ]
    assert len(node.objects) == 3


def test_who_did_it_stands_in_every_event_with_what_the_clock_said(
    node: Node, clock: ManualClock
) -> None:
    node.commit(Change(commands=(put(zone()),), who=Who(actor="token:ci", reason="because")))
    for event in node.log.read():
        assert event.who is not None
        who = msgspec.json.decode(event.who, type=Who)
        assert (who.actor, who.reason, who.wall) == ("token:ci", "because", clock.now_us())


def test_a_uid_is_a_random_uuid(node: Node) -> None:
    node.commit(a_change(put(zone()), put(www())))
    uids = []
    for key in (ZONE_KEY, WWW_KEY):
        stored = node.objects.find(key)
        assert stored is not None
        uids.append(UUID(stored.body.uid))
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", stored.body.uid)
    assert {uid.version for uid in uids} == {4}
    assert len(set(uids)) == 2


# Serials


@pytest.mark.parametrize("commit", [Node.commit, commit_as_server])
def test_a_burst_within_a_second_steps_by_one_and_then_catches_up_with_the_clock(
    node: Node, clock: ManualClock, commit
) -> None:
    commit(node, a_change(put(zone())))
    first = serial(node)
    assert first == clock.now_us() // SECOND
    for i in range(3):
        commit(node, a_change(put(www(f"192.0.2.{i}"))))
        assert serial(node) == first + 1 + i
    clock.advance(60 * SECOND)
    commit(node, a_change(put(www("192.0.2.9"))))
    assert serial(node) == first + 60


def test_a_clock_an_hour_back_keeps_the_serial_rising(node: Node, clock: ManualClock) -> None:
    node.commit(a_change(put(zone())))
    before = serial(node)
    clock.step_wall(-3600 * SECOND)
    node.commit(a_change(put(www())))
    assert serial(node) == before + 1


def test_a_clock_that_leaps_is_recorded_and_serials_do_not_follow_it(
    node: Node, clock: ManualClock
) -> None:
    node.commit(a_change(put(zone())))
    before = serial(node)
    clock.step_wall((CLOCK_LEAP_MAX_S + 3600) * SECOND)
    node.commit(a_change(put(www())))
    assert CLOCK_STEPPED in [event.type for event in node.log.read()]
    assert serial(node) == before + 1
    assert rebuilt(node).views.digests() == node.views.digests()


def test_a_clock_that_stepped_is_normal_at_its_new_place(node: Node, clock: ManualClock) -> None:
    node.commit(a_change(put(zone())))
    clock.step_wall(YEAR_US)
    for i in range(3):
        clock.advance(SECOND)
        node.commit(a_change(put(www(f"192.0.2.{i}"))))
    assert [event.type for event in node.log.read()].count(CLOCK_STEPPED) == 1


def test_a_step_of_the_clock_is_not_forgotten_when_the_write_fails(
    node: Node, clock: ManualClock
) -> None:
    node.commit(a_change(put(zone())))
    before = serial(node)
    clock.step_wall(YEAR_US)
    log = node.log
    assert isinstance(log, BrittleLog)
    log.fails_next = True
    with pytest.raises(StorageFailed):
        node.commit(a_change(put(www())))
    node.commit(a_change(put(www())))
    assert CLOCK_STEPPED in [event.type for event in node.log.read()]
    assert serial(node) == before + 1


def test_an_imported_serial_is_kept_and_the_next_is_its_successor(
    node: Node, clock: ManualClock
) -> None:
    node.commit(a_change(put(zone()), imported_serials={"example.org": 2026112901}))
    assert serial(node) == 2026112901
    node.commit(a_change(put(www())))
    assert serial(node) == 2026112902


def test_a_zone_made_again_goes_on_from_the_highest_serial_of_its_name(node: Node) -> None:
    node.commit(a_change(put(zone()), imported_serials={"example.org": 4_000_000_000}))
    node.commit(a_change(drop(ZONE_KEY)))
    again = manifest("DNSZone", "other", {"zoneName": "EXAMPLE.org"})
    node.commit(a_change(put(again), imported_serials={"other": 5}))
    assert serial(node) == 5  # 5 is newer than 4,000,000,000: RFC 1982
    node.commit(a_change(drop(again.key)))
    node.commit(a_change(put(zone()), imported_serials={"example.org": 4}))
    assert serial(node) == node.clock.now_us() // SECOND


def test_the_status_of_a_stamp_keeps_what_others_wrote(node: Node) -> None:
    node.commit(a_change(put(zone())))
    stored = node.objects.find(ZONE_KEY)
    assert stored is not None
    assert stored.status is not None
    status = {**stored.status, "conditions": [{"type": "SecondariesTold"}]}
    node.commit(
        a_change(UpdateStatus(key=ZONE_KEY, status=status, expected=stored.resource_version))
    )
    node.commit(a_change(put(www())))
    after = node.objects.find(ZONE_KEY)
    assert after is not None
    assert after.status is not None
    assert condition(after.status, "SecondariesTold") == {"type": "SecondariesTold"}
    assert after.status["serial"] == serial(node)
    assert after.status["recordCount"] == 2  # with the SOA


def test_an_expired_record_leaves_on_time_and_moves_the_serial(
    node: Node, clock: ManualClock
) -> None:
    soon = record_set(
        "soon", endpoint("a.example.org", "A", "192.0.2.1", expiresAt="2023-11-14T22:14:20Z")
    )
    node.commit(a_change(put(zone()), put(soon)))
    (served,) = node.zones.served
    before = served.serial, served.digest()
    assert node.zones.next_expiry_s() == 1_700_000_060
    clock.advance(59 * SECOND)
    node.advance()
    assert served.record_count == 1
    clock.advance(SECOND)
    node.advance()
    assert served.record_count == 0
    assert served.digest() != before[1]
    assert node.zones.next_expiry_s() is None
    assert [command.key for command in node.stamps()] == [ZONE_KEY]


def test_an_expiry_is_awaited_once_however_often_its_record_set_is_written(
    node: Node, clock: ManualClock
) -> None:
    node.commit(a_change(put(zone())))
    for i in range(20):
        one = endpoint("a.example.org", "A", f"192.0.2.{i}", expiresAt="2023-11-14T22:14:20Z")
        node.commit(a_change(put(record_set("soon", one))))
    assert len(node.zones._expiries) == 1


# What stops writing


def test_a_node_that_may_not_write_refuses_every_change_with_the_reason(node: Node) -> None:
    node.commit(a_change(put(zone())))
    node.why_not_writable = LogDamaged("payload", 1, "the payload of position 1 was changed")
    with pytest.raises(LogDamaged):
        node.commit(a_change(put(www())))
    assert node.log.head().seq == 2


def test_what_had_expired_stays_away_after_a_failed_write(node: Node, clock: ManualClock) -> None:
    soon = record_set(
        "soon", endpoint("a.example.org", "A", "192.0.2.1", expiresAt="2023-11-14T22:14:20Z")
    )
    node.commit(a_change(put(zone()), put(soon)))
    clock.advance(120 * SECOND)
    node.advance()
    log = node.log
    assert isinstance(log, BrittleLog)
    log.fails_next = True
    with pytest.raises(StorageFailed):
        node.commit(a_change(put(www())))
    (served,) = node.zones.served
    assert served.record_count == 0


def test_time_that_has_passed_stays_passed_when_a_write_fails_and_the_clock_went_back() -> None:
    node = memory_node()
    log, clock = node.log, node.clock
    assert isinstance(log, BrittleLog)
    assert isinstance(clock, ManualClock)
    node.commit(a_change(put(zone())))
    clock.step_wall(3600 * 1_000_000)
    node.advance()
    passed_s = node.zones.now_s
    clock.step_wall(-3600 * 1_000_000)
    log.fails_next = True
    with pytest.raises(StorageFailed):
        node.commit(a_change(put(www())))
    assert node.zones.now_s == passed_s
