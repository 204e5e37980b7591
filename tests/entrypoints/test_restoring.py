"""Restore and undo on a node: any history, any target."""

import msgspec
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain import restore
from kudurru.domain.dns import names
from kudurru.domain.dns.serials import is_newer
from kudurru.domain.errors import Conflict, Invalid, MassChange, NotFound
from kudurru.domain.events import OBJECT_APPLIED, OBJECT_STATUS, RESTORE_BEGUN, RESTORE_DONE, Who
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.object_store import decode_body, decode_status
from kudurru.domain.objects import Key
from kudurru.domain.restore import Scope, state_digest
from kudurru.entrypoints import restoring
from kudurru.entrypoints.local_service import LocalService
from kudurru.entrypoints.restoring import Carried, RestoreRequest, UndoRequest
from kudurru.entrypoints.service import MarkRequest
from kudurru.entrypoints.wiring import Change, Node, Result
from kudurru.projections import as_of
from tests.histories import KEYS, histories, operations, run, targets_of
from tests.nodes import TESTER, a_change, memory_node, rebuilt
from tests.objects import WWW_KEY, ZONE_KEY, drop, endpoint, put, record_set, www, zone

ALL = Scope(everything=True)
SCOPES = [
    ALL,
    Scope(kind="DNSRecordSet"),
    Scope(namespace="team"),
    Scope(zone="east"),
    Scope(zone="west", namespace="default"),
    Scope(keys=(KEYS[0], KEYS[2])),
]
few = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def service(node: Node) -> LocalService:
    return LocalService(node, TESTER)


def restored(node: Node, target: int, scope: Scope = ALL, **how) -> Carried:
    request = RestoreRequest(target=target, scope=scope, **{"force": True, **how})
    return service(node).restore(request)


def undone(node: Node, what: object, **how) -> Carried:
    return service(node).undo(UndoRequest(what=str(what), allow_mass_change=True, **how))


def content(node: Node, scope: Scope = ALL, upto: int | None = None) -> str:
    """Digest of what people wrote."""
    found = as_of.objects(node.log, scope, node.log.head().seq if upto is None else upto)
    return state_digest(found.values())


def owners(node: Node) -> dict[Key, str]:
    found = as_of.objects(node.log, ALL, node.log.head().seq)
    return {key: stored.manager for key, stored in found.items()}


def live(node: Node) -> str:
    """The same digest, from the view."""
    stored = [s for kind in ("DNSZone", "DNSRecordSet") for s in node.objects.list(kind).objects]
    return state_digest(stored)


# --- any history, any target ----------------------------------------------------------------


@few
@given(histories(), st.sampled_from(SCOPES), st.data())
def test_a_restore_gives_the_state_of_its_target_and_its_undo_what_was_before(
    node: Node, scope: Scope, data: st.DataObject
) -> None:
    target = data.draw(st.sampled_from(targets_of(node)))
    before, owned = content(node), owners(node)
    then = content(node, scope, target)
    carried = restored(node, target, scope)
    event("restored" if carried.seq else "nothing to do")
    assert carried.plan["skipped"] == []
    assert content(node, scope) == then
    assert live(node) == content(node)
    assert rebuilt(node).views.digests() == node.views.digests()
    head = node.log.head().seq
    assert restored(node, target, scope).seq == 0, "restoring twice is a no-op"
    assert node.log.head().seq == head
    if carried.seq:
        undone(node, carried.id)
        assert content(node) == before
        assert owners(node) == owned


@few
@given(histories(), st.data())
def test_any_change_is_undone_whole_and_gives_objects_back_to_their_owners(
    node: Node, data: st.DataObject
) -> None:
    before, owned = content(node), owners(node)
    head = node.log.head().seq
    run(node, data.draw(operations())[:1])
    changed = node.log.get(head + 1)
    assume(changed is not None)
    assert changed is not None
    try:
        undone(node, changed.seq)
    except Invalid as error:
        assert "no object was changed" in str(error)  # noqa: PT017  a stamp alone
    assert content(node) == before
    assert owners(node) == owned


@few
@given(histories(), st.data())
def test_a_secondary_that_follows_the_versions_ends_with_what_is_served(
    node: Node, data: st.DataObject
) -> None:
    """And no serial ever goes back, also across a wrap and across delete and create."""
    secondary = Secondary()
    secondary.follow(node)
    for _ in range(2):
        restored(node, data.draw(st.sampled_from(targets_of(node))))
        secondary.follow(node)
        run(node, data.draw(operations())[:4])
        secondary.follow(node)
    secondary.check(node)
    check_serials(node)


class Secondary:
    """Zones as somebody else has them: by differences where there are any, whole otherwise."""

    def __init__(self) -> None:
        self.zones: dict[bytes, tuple[int, dict[bytes, bytes]]] = {}

    def follow(self, node: Node) -> None:
        for served in node.zones.served:
            serial, nodes = self.zones.get(served.key, (None, {}))
            versions = node.zones.history.versions(names.Name(served.key))
            known = [i for i, version in enumerate(versions) if version.serial == serial]
            newer = versions[known[0] + 1 :] if known else ()
            if not known or any(version.delta is None for version in newer):
                nodes = {names.key(names.Name(o)): image for o, image in served.stamped_nodes()}
                newer = ()
            for version in newer:
                for owner, (_, image) in version.delta.changes.items() if version.delta else ():
                    nodes.pop(owner, None)
                    if image:
                        nodes[owner] = image
            if served.stamped_soa is not None:
                assert serial in (None, served.serial) or is_newer(served.serial, serial)
                self.zones[served.key] = served.serial, nodes

    def check(self, node: Node) -> None:
        for served in node.zones.served:
            if served.stamped_soa is not None:
                nodes = {names.key(names.Name(o)): image for o, image in served.stamped_nodes()}
                assert self.zones[served.key] == (served.serial, nodes)


def check_serials(node: Node) -> None:
    apexes: dict[Key, str] = {}
    highest: dict[str, int] = {}
    for found in node.log.read():
        if not found.key.startswith("DNSZone/") or found.body is None:
            continue
        if found.type == OBJECT_APPLIED:
            spec = msgspec.json.decode(decode_body(found.body).spec, type=DNSZoneSpec)
            apexes[found.key] = spec.zone_name
        elif found.type == OBJECT_STATUS:
            serial = decode_status(found.body).get("serial")
            apex = apexes[found.key]
            if serial in (None, highest.get(apex)):
                continue  # it is no stamp
            assert apex not in highest or is_newer(serial, highest[apex])
            highest[apex] = serial


# --- one case after the other ---------------------------------------------------------------


@pytest.fixture
def node() -> Node:
    """A zone with one record set, at position 3; then the record set is another, at 5."""
    node = memory_node(ManualClock())
    node.commit(a_change(put(zone()), put(www("192.0.2.1"))))
    tick(node)
    node.commit(a_change(put(www("192.0.2.2"))))
    tick(node)
    return node


def tick(node: Node) -> None:
    assert isinstance(node.clock, ManualClock)
    node.clock.advance(10_000_000)


def addresses(node: Node) -> list[str]:
    found = as_of.find(node.log, WWW_KEY, node.log.head().seq)
    assert found is not None
    spec = msgspec.json.decode(found.stored(1).body.spec)
    return [target for one in spec["endpoints"] for target in one["targets"]]


def test_a_restore_stands_between_its_begin_and_its_end_and_names_itself_as_the_cause(node) -> None:
    base = node.log.head().seq
    carried = restored(node, 3, Scope(zone="example.org"), reason="the old address")
    events = list(node.log.read(base))
    assert [found.type for found in events] == [
        RESTORE_BEGUN, OBJECT_APPLIED, RESTORE_DONE, OBJECT_STATUS,
    ]  # fmt: skip
    who = [msgspec.json.decode(found.who, type=Who) for found in events]
    assert {one.cause for one in who} == {f"restore:{carried.id}"}
    assert {one.reason for one in who} == {"the old address"}
    assert len({found.txn for found in events}) == 1
    begun = msgspec.json.decode(events[0].body, type=restore.Begun)
    assert (begun.target, begun.base, begun.objects) == ("3", base, 1)
    assert begun.plan_digest == carried.plan["digest"]
    assert addresses(node) == ["192.0.2.1"]


def test_a_deleted_object_comes_back_with_its_age_and_owner_and_a_new_uid(node) -> None:
    node.commit(a_change(put(www("192.0.2.3"), "external-dns", force=True)))
    target = node.log.head().seq
    old = node.objects.find(WWW_KEY)
    node.commit(a_change(drop(WWW_KEY)))
    tick(node)
    restored(node, target, force=False)
    new = node.objects.find(WWW_KEY)
    assert new.body.creation_timestamp == old.body.creation_timestamp
    assert new.manager == "external-dns"
    assert new.body.uid != old.body.uid
    assert new.body.generation == 1


def test_an_object_that_was_there_all_the_time_keeps_uid_and_age_and_counts_on(node) -> None:
    old = node.objects.find(WWW_KEY)
    restored(node, 3)
    new = node.objects.find(WWW_KEY)
    assert (new.body.uid, new.body.creation_timestamp) == (
        old.body.uid,
        old.body.creation_timestamp,
    )
    assert new.body.generation == old.body.generation + 1


def test_a_plan_that_was_agreed_to_happens_or_nothing_does(node) -> None:
    request = RestoreRequest(target=3, scope=Scope(zone="example.org"))
    digest = restoring.plan_restore(node.log, request).digest()
    node.commit(a_change(put(record_set("elsewhere", zone="other"))))
    node.commit(a_change(put(www("192.0.2.9"))))
    head = node.log.head().seq
    with pytest.raises(Conflict, match="stale"):
        restored(node, 3, request.scope, plan_digest=digest, force=False)
    assert node.log.head().seq == head
    node.commit(a_change(put(www("192.0.2.2"))))
    assert restored(node, 3, request.scope, plan_digest=digest, force=False).seq


def test_a_change_between_plan_and_decision_is_a_conflict(node) -> None:
    """Also one of the same group, which the log does not hold yet."""
    request = RestoreRequest(target=3, scope=Scope(zone="example.org"))
    (change,) = restoring.prepare_restore(node.log, request, "r-1", TESTER).changes
    others = {
        "its object": put(www("192.0.2.9")),
        "another of its zone": put(
            record_set("new", endpoint("new.example.org", "A", "192.0.2.1"))
        ),
    }
    for what, command in others.items():
        decided = node.decide([a_change(command), change], node.clock.now_us())
        assert isinstance(decided[1], Conflict), what
        assert "plan again" in str(decided[1])
    elsewhere = a_change(put(record_set("elsewhere", zone="other")))
    assert not isinstance(node.decide([elsewhere, change], node.clock.now_us())[1], Conflict)
    node.commit(a_change(others["its object"]))
    with pytest.raises(Conflict, match="plan again"):
        node.commit(change)


def test_an_owner_that_came_since_is_asked_by_force_only(node) -> None:
    node.commit(a_change(put(www("192.0.2.7"), "external-dns", force=True)))
    carried = restored(node, 3, force=False)
    assert carried.seq == 0
    assert "external-dns" in carried.plan["skipped"][0]["reason"]
    carried = restored(node, 3, force=True)
    (step,) = carried.plan["steps"]
    assert (step["owner"], step["ownerThen"]) == ("external-dns", "kudurru")
    assert addresses(node) == ["192.0.2.1"]


def test_a_serial_goes_on_after_the_highest_that_its_zone_ever_had(node) -> None:
    node.commit(a_change(put(www("192.0.2.3")), imported_serials={"example.org": 3_000_000_000}))
    before = node.zones.state("example.org").zone.serial
    assert before == 3_000_000_000
    node.commit(a_change(drop(WWW_KEY), drop(ZONE_KEY)))
    carried = restored(node, 3)
    after = node.zones.state("example.org").zone.serial
    assert is_newer(after, before)
    assert carried.plan["zones"][0]["serial"] == before
    assert carried.plan["zones"][0]["nextSerial"] == after


def test_an_undo_with_conflicts_does_nothing_unless_they_are_skipped(node) -> None:
    other = record_set("other", endpoint("other.example.org", "A", "192.0.2.1"))
    seq = node.commit(a_change(put(other), put(www("192.0.2.5")))).seq
    node.commit(a_change(put(www("192.0.2.6"))))
    last = node.objects.entry(WWW_KEY).applied
    with pytest.raises(Conflict, match=rf"www: changed since, last at position {last}\n--skip"):
        undone(node, seq)
    assert node.objects.find(other.key) is not None
    undone(node, seq, skip_conflicts=True)
    assert node.objects.find(other.key) is None
    assert addresses(node) == ["192.0.2.6"]


def test_undo_names_a_change_by_any_of_its_positions(node) -> None:
    base = node.log.head().seq
    node.commit(a_change(put(www("192.0.2.5")), put(record_set("other"))))
    undone(node, base + 2)
    assert addresses(node) == ["192.0.2.2"]
    who = msgspec.json.decode(node.log.get(node.log.head().seq).who, type=Who)
    assert who.cause == f"undo:{base + 1}"


def test_an_undo_is_undone_like_any_change(node) -> None:
    seq = undone(node, 4).seq
    assert addresses(node) == ["192.0.2.1"]
    undone(node, seq)
    assert addresses(node) == ["192.0.2.2"]


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [("99", NotFound, "position 99"), ("r-1", NotFound, "no restore 'r-1'"),
     ("yesterday", NotFound, "no restore")],
)  # fmt: skip
def test_what_is_not_there_is_not_undone(node, what, error, message) -> None:
    with pytest.raises(error, match=message):
        undone(node, what)


def test_a_mark_is_no_change_of_an_object(node) -> None:
    position = service(node).mark(MarkRequest(name="here"))
    with pytest.raises(Invalid, match="no object was changed"):
        undone(node, position)
    with pytest.raises(Conflict, match="is there already"):
        service(node).mark(MarkRequest(name="here"))


# --- a restore that was cut off -------------------------------------------------------------


@pytest.fixture
def cut_off(node, monkeypatch) -> tuple[Node, str]:
    """A restore of two zones, one transaction each, that died after the first."""
    monkeypatch.setattr(restore, "ONE_TRANSACTION_MAX", 1)
    second = [zone("b.example"), record_set("b", endpoint("b.example", "A", "192.0.2.1"),
                                            zone="b.example")]  # fmt: skip
    node.commit(a_change(*map(put, second)))
    target = node.log.head().seq
    node.commit(a_change(put(www("192.0.2.8")), drop(second[1].key)))
    request = RestoreRequest(target=target, scope=ALL)
    undertaking = restoring.prepare_restore(node.log, request, "r-cut", TESTER)
    assert len(undertaking.changes) == 4
    for change in undertaking.changes[:2]:
        node.commit(change)
    assert node.objects.find(second[1].key) is not None
    assert addresses(node) == ["192.0.2.8"]
    return node, "r-cut"


def test_a_restore_that_was_cut_off_is_known(cut_off) -> None:
    node, id_ = cut_off
    assert restoring.unfinished(node.objects.facts) == [id_]
    assert restoring.unfinished(rebuilt(node).objects.facts) == [id_]


def test_a_restore_that_was_cut_off_goes_on(cut_off) -> None:
    node, id_ = cut_off
    carried = service(node).restore(RestoreRequest(resume=id_))
    assert carried.id == id_
    assert addresses(node) == ["192.0.2.2"]
    assert restoring.unfinished(node.objects.facts) == []
    with pytest.raises(Conflict, match="is finished"):
        service(node).restore(RestoreRequest(resume=id_))
    undone(node, id_)
    assert addresses(node) == ["192.0.2.8"]


def test_a_restore_that_goes_on_leaves_what_others_changed_meanwhile(cut_off) -> None:
    node, id_ = cut_off
    node.commit(a_change(put(www("192.0.2.77"))))
    carried = service(node).restore(RestoreRequest(resume=id_))
    assert "changed since the restore began" in carried.plan["skipped"][0]["reason"]
    assert addresses(node) == ["192.0.2.77"]
    assert restoring.unfinished(node.objects.facts) == []


def test_a_restore_that_was_cut_off_is_taken_back(cut_off) -> None:
    node, id_ = cut_off
    undone(node, id_)
    assert restoring.unfinished(node.objects.facts) == []
    assert node.objects.find(Key("DNSRecordSet/default/b")) is None
    assert addresses(node) == ["192.0.2.8"]
    with pytest.raises(Conflict, match="is finished"):
        service(node).restore(RestoreRequest(resume=id_))


def test_a_restore_that_is_refused_half_way_says_how_to_end_it(node, monkeypatch) -> None:
    monkeypatch.setattr(restore, "ONE_TRANSACTION_MAX", 1)
    node.commit(a_change(put(zone("b.example"))))
    target = node.log.head().seq
    node.commit(a_change(drop(WWW_KEY), drop(Key("DNSZone//b.example"))))
    commit = node.commit
    seen: list[Change] = []

    def commit_beside_others(change: Change) -> Result:
        seen.append(change)
        if len(seen) == 3:
            commit(a_change(put(www("192.0.2.66"))))
        return commit(change)

    monkeypatch.setattr(node, "commit", commit_beside_others)
    with pytest.raises(
        Conflict, match=r"plan again\nrestore r-\w+ is unfinished: `kudurru restore"
    ):
        restored(node, target)
    monkeypatch.undo()
    assert node.objects.find(Key("DNSZone//b.example")) is not None
    (id_,) = restoring.unfinished(node.objects.facts)
    service(node).restore(RestoreRequest(resume=id_))
    assert addresses(node) == ["192.0.2.66"]


@pytest.mark.parametrize("ends_by_undo", [True, False])
def test_a_large_undo_that_was_cut_off_is_ended_too(node, monkeypatch, ends_by_undo) -> None:
    monkeypatch.setattr(restore, "ONE_TRANSACTION_MAX", 1)
    other = record_set("b", endpoint("b.example", "A", "192.0.2.1"), zone="b.example")
    seq = node.commit(a_change(put(www("192.0.2.8")), put(other))).seq
    undertaking = restoring.prepare_undo(node.log, UndoRequest(what=str(seq)), "r-undo", TESTER)
    assert len(undertaking.changes) == 4
    for change in undertaking.changes[:2]:
        node.commit(change)
    assert node.objects.find(other.key) is None
    assert addresses(node) == ["192.0.2.8"]
    if ends_by_undo:
        undone(node, "r-undo")
    else:
        service(node).restore(RestoreRequest(resume="r-undo"))
    assert restoring.unfinished(node.objects.facts) == []
    assert (node.objects.find(other.key) is not None) == ends_by_undo
    assert addresses(node) == ["192.0.2.8" if ends_by_undo else "192.0.2.2"]


def test_zones_of_a_large_restore_are_changed_whole(node, monkeypatch) -> None:
    monkeypatch.setattr(restore, "ONE_TRANSACTION_MAX", 1)
    other = record_set("b", endpoint("b.example", "A", "192.0.2.1"), zone="b.example")
    node.commit(a_change(put(other)))
    base = node.log.head().seq
    node.commit(a_change(drop(WWW_KEY), drop(other.key)))
    carried = restored(node, base)
    own = [e for e in node.log.read(base) if as_of.cause_of(e) == f"restore:{carried.id}"]
    assert [e.type for e in own if e.type != OBJECT_STATUS] == [
        RESTORE_BEGUN, OBJECT_APPLIED, OBJECT_APPLIED, RESTORE_DONE,
    ]  # fmt: skip
    zones: dict[int, set[str]] = {}
    for found in own:
        zones.setdefault(found.txn, set()).add(found.scope.partition("/")[2])
    assert list(zones.values()) == [{""}, {"b.example"}, {"example.org"}, {""}]


# --- the guard against mass changes ---------------------------------------------------------


@pytest.fixture
def large() -> Node:
    """A zone of ten records in ten record sets, and one of its name server, in one change."""
    node = memory_node(ManualClock())
    node.commit(a_change(put(zone(nameservers=["ns.example.net"])), *map(put, hosts())))
    return node


def hosts(address: str = "192.0.2.1", count: int = 10, **how):
    return [
        record_set(f"h{i}", endpoint(f"h{i}.example.org", "A", address, **how))
        for i in range(count)
    ]


def keys(count: int) -> list[Key]:
    return [made.key for made in hosts(count=count)]


@pytest.mark.parametrize(
    ("commands", "count"),
    [
        ([drop(key) for key in keys(4)], 4),
        ([put(made) for made in hosts("192.0.2.2", 4)], 4),
        ([put(made) for made in hosts(count=4, recordTTL=60)], 4),
        ([put(made) for made in hosts(count=4, disabled=True)], 4),
        ([put(zone(nameservers=["ns.example.net"], defaultTTL=60))], 10),
        ([put(zone(nameservers=["ns.example.net"], allowedNamespaces=["team"]))], 10),
        ([drop(ZONE_KEY)], 11),
        ([put(made, force=True) for made in
          [record_set(f"h{i}", zone="elsewhere") for i in range(5)]], 5),
    ],
)  # fmt: skip
def test_a_mass_change_is_refused_with_both_numbers(large: Node, commands, count: int) -> None:
    head = large.log.head().seq
    for dry_run in (True, False):
        with pytest.raises(MassChange, match=f"{count} of the 11 records of example.org"):
            large.commit(a_change(*commands, allow_mass_change=False, dry_run=dry_run))
    assert large.log.head().seq == head
    assert large.commit(a_change(*commands)).seq


@pytest.mark.parametrize(
    "commands",
    [
        [drop(key) for key in keys(3)],
        [put(made) for made in hosts("192.0.2.2", 3)],
        [put(made) for made in hosts(count=10, recordTTL=300)],
        [put(made) for made in hosts(count=30)],
        [put(zone(nameservers=["ns2.example.net"]))],
        [put(zone(soa={"refresh": 1}))],
    ],
)
def test_a_small_change_is_none(large: Node, commands) -> None:
    assert large.commit(a_change(*commands, allow_mass_change=False)).seq


NAMED = {"nameservers": ["ns.example.net"]}


@pytest.mark.parametrize(
    ("commands", "changed", "added"),
    [
        ([put(zone(**NAMED, defaultTTL=60))], 10, 10),
        ([put(zone(**NAMED, defaultTTL=60)), put(hosts(count=1, recordTTL=300)[0])], 9, 9),
        ([put(zone(**NAMED, defaultTTL=60)), *map(put, hosts(count=12)[10:])], 12, 10),
        ([put(zone(**NAMED, allowedNamespaces=["team"]))], 0, 10),
        ([put(zone(nameservers=["ns2.example.net"]))], 1, 1),
        ([put(made) for made in hosts("192.0.2.2", 2)], 2, 2),
        ([drop(ZONE_KEY)], 0, 11),
        ([drop(ZONE_KEY), *map(drop, keys(10))], 0, 11),
        ([put(made) for made in hosts(count=12)[10:]], 2, 0),
    ],
)
def test_a_plan_counts_what_the_guard_counts(large: Node, commands, changed, added) -> None:
    """Also where the zone itself is a step: all of it may be another then."""
    target = large.log.head().seq
    seq = large.commit(a_change(*commands)).seq
    plans = [
        restoring.plan_undo(large.log, str(seq)),
        restoring.plan_restore(large.log, RestoreRequest(target=target, scope=ALL, force=True)),
    ]
    for plan in plans:
        (found,) = restoring.describe(large.log, plan, 0)["zones"]
        assert (found["zone"], found["recordsChanged"]) == ("example.org.", changed)
        assert found["recordsAdded"] == added
    if changed > 3:
        with pytest.raises(MassChange, match=f"{changed} of the "):
            service(large).undo(UndoRequest(what=str(seq)))


def test_a_plan_that_takes_a_zone_away_counts_all_its_records() -> None:
    node = memory_node(ManualClock())
    node.commit(a_change(*map(put, hosts())))
    seq = node.commit(a_change(put(zone(defaultTTL=60)))).seq
    plan = restoring.plan_undo(node.log, str(seq))
    (found,) = restoring.describe(node.log, plan, 0)["zones"]
    assert (found["recordsChanged"], found["recordsAdded"]) == (10, 0)
    with pytest.raises(MassChange, match="10 of the 10"):
        service(node).undo(UndoRequest(what=str(seq)))
    carried = undone(node, seq)
    assert carried.plan["zones"] == [found]


def test_a_restore_is_guarded_and_force_implies_the_permission(large: Node) -> None:
    target = large.log.head().seq
    large.commit(a_change(*(put(made) for made in hosts("192.0.2.2", 5))))
    with pytest.raises(MassChange):
        restored(large, target, force=False)
    assert restored(large, target, force=True).seq
    large.commit(a_change(*(put(made) for made in hosts("192.0.2.2", 5))))
    assert restored(large, target, force=False, allow_mass_change=True).seq
