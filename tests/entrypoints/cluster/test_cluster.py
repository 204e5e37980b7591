"""A node and its cluster: what comes from there, who leads, and what is told there."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kudurru.adapters.clock import SystemClock
from kudurru.domain.commands import Delete
from kudurru.domain.errors import LogDamaged
from kudurru.domain.events import (
    MIRROR_WRITTEN,
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_STATUS,
)
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.objects import key_of
from kudurru.domain.ports import Notice
from kudurru.entrypoints.history import who_of
from tests.adapters.kubernetes.test_endpoints import SLICES, endpoint_slice
from tests.blackbox.program import kudurru, serve_arguments
from tests.clusters import (
    ALICE,
    KEY,
    PATIENCE_S,
    Kube,
    Member,
    a_set,
    a_zone,
    an_apply,
    changes,
    in_cluster,
    path_of,
    spec_of,
    status_of,
    told,
    until,
)


def test_what_is_applied_in_the_cluster_is_in_the_log_with_its_field_manager() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            made = await kube.apply(a_zone(), "kubectl-client-side-apply")
            await kube.apply(a_set("www", "192.0.2.1"), "gitops")
            await until(lambda: member.names("lab.example"))
            (first, second) = member.events(OBJECT_APPLIED)
            assert member.actors(OBJECT_APPLIED) == [
                "kubernetes:kubectl-client-side-apply",
                "kubernetes:gitops",
            ]
            assert first.manager == "kubectl-client-side-apply"
            stored = member.node.objects.find(first.key)
            assert stored is not None
            assert stored.body.uid == made["metadata"]["uid"]
            origin = msgspec.json.decode(first.body or b"")["origin"]
            assert origin["fieldManager"] == "kubectl-client-side-apply"
            assert int(origin["resourceVersion"]) >= int(made["metadata"]["resourceVersion"])
            await kube.delete(a_set("www", ""))
            await until(lambda: member.events(OBJECT_DELETED))
            assert not member.node.objects.find(second.key)

    in_cluster(case)


def test_the_leader_gives_serials_and_writes_them_into_the_cluster() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_zone())
            serial = await until(lambda: member.serial("lab.example"))

            def shown() -> Any:
                return kube.api.objects("dnszones")["lab.example"].get("status", {}).get("serial")

            await until(lambda: shown() == serial)
            await kube.apply(a_set("www", "192.0.2.1"))
            await until(lambda: shown() not in (None, serial))
            assert shown() == member.serial("lab.example")
        assert not [a for a in member.actors(OBJECT_STATUS) if a != "system"]

    in_cluster(case)


def test_one_of_two_nodes_gives_serials_and_both_have_them() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        one, two = Member(kube, name="node-1"), Member(kube, name="node-2")
        async with one.running(), two.running():
            await kube.apply(a_zone())
            for i in range(3):
                await kube.apply(a_set("www", f"192.0.2.{i}"))
                await until(lambda: one.names("lab.example") and two.names("lab.example"))
            await until(lambda: one.serial("lab.example"))
            await until(lambda: one.serial("lab.example") == two.serial("lab.example"))
            leaders = [member.runner.status().is_leader for member in (one, two)]
            assert sorted(leaders) == [False, True]
            follower = (one, two)[leaders.index(False)]
            stamped = follower.actors(OBJECT_STATUS)
            assert stamped
            assert set(stamped) == {"kubernetes:kudurru-controller"}

    in_cluster(case)


class Ahead(SystemClock):
    """A clock that is wrong by so much."""

    def __init__(self, off_us: int) -> None:
        self._off_us = off_us

    def now_us(self) -> int:
        return super().now_us() + self._off_us


@pytest.mark.parametrize("hours", [-1, 1])
def test_two_nodes_whose_clocks_are_an_hour_apart_are_in_step_and_serials_only_rise(
    hours: int,
) -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        one = Member(kube, name="node-1", clock=Ahead(hours * 3_600_000_000))
        two = Member(kube, name="node-2")
        serials: list[int] = []

        async def both_have(target: str) -> None:
            await until(lambda: target.encode() in spec_of(one) and target.encode() in spec_of(two))
            await until(lambda: two.serial("lab.example") not in (None, *serials))
            await until(lambda: status_of(kube).get("serial") == two.serial("lab.example"))
            serials.append(two.serial("lab.example") or 0)

        async with two.running():
            async with one.running():
                await until(lambda: one.runner.status().is_leader or two.runner.status().is_leader)
                await kube.apply(a_zone())
                for member, target in ((one, "192.0.2.1"), (two, "192.0.2.2"), (one, "192.0.2.3")):
                    await changes(member, an_apply(a_set("www", target)))
                    await both_have(target)
                await until(lambda: one.serial("lab.example") == two.serial("lab.example"))
                assert [row[1] for row in told(one)] == [row[1] for row in told(two)]
            # The other goes on alone, by a clock that is an hour away from this one's.
            await until(lambda: two.runner.status().is_leader)
            await changes(two, an_apply(a_set("www", "192.0.2.4")))
            await until(lambda: two.serial("lab.example") not in serials)
            serials.append(two.serial("lab.example") or 0)
        assert serials == sorted(set(serials))
        for member in (one, two):
            times = [event.ts for event in member.events()]
            assert times == sorted(times)

    in_cluster(case)


def test_a_follower_takes_a_serial_with_the_records_that_it_is_of() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        leader = Member(kube)
        async with leader.running():
            await kube.apply(a_zone())
            await until(lambda: leader.serial("lab.example"))
            await kube.apply(a_set("www", "192.0.2.1"))
            await until(lambda: leader.names("lab.example"))
            await until(lambda: status_of(kube).get("recordCount") == 2)
        await kube.delete(a_set("www", ""))
        follower = Member(kube, name="node-2")
        follower.cluster.feed.early_tries = 1_000_000
        kube.api.forbidden = {("update", "leases")}  # it never leads
        async with follower.running():
            assert follower.serial("lab.example") is None
            assert follower.node.zones.served  # it is served all the same
            await kube.apply(a_set("www", "192.0.2.1"))
            await until(lambda: follower.serial("lab.example") == status_of(kube)["serial"])
            assert follower.names("lab.example")

    in_cluster(case)


def test_who_leads_is_told_with_the_address_that_the_slices_of_the_service_have() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        body = endpoint_slice("kudurru-x", {"node-1": "192.0.2.1"})
        await kube.people.request("POST", SLICES, body)
        one = Member(kube, name="node-1")
        async with one.running():
            await until(lambda: one.runner.status().is_leader)
            other = Member(kube, name="node-2", service="kudurru")
            async with other.running():
                elector = other.elector
                async with asyncio.timeout(30):
                    while await elector.leader() != "node-1 (192.0.2.1:8080)":
                        await asyncio.sleep(0.01)
            assert await one.elector.leader() == "node-1"

    in_cluster(case)


def test_a_status_that_somebody_else_wrote_is_written_over() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_zone())
            serial = await until(lambda: member.serial("lab.example"))
            await until(lambda: status_of(kube).get("serial") == serial)
            there = kube.api.objects("dnszones")["lab.example"]
            there["status"] = {**there["status"], "serial": 17}
            await kube.people.request("PUT", f"{path_of(a_zone())}/status", there)
            await until(lambda: status_of(kube).get("serial") == serial)
            assert member.serial("lab.example") == serial

    in_cluster(case)


def changes_write_what_differs(number: int, patience_s: float) -> None:
    """Changes, one after the other: each is a version of the zone, whose serial the status has to
    name, and nothing else is written there."""

    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_zone())
            await until(lambda: member.serial("lab.example"))
            await until(lambda: status_of(kube).get("serial") == member.serial("lab.example"))
            del kube.api.calls[:]
            for i in range(number):
                before = member.serial("lab.example")
                await kube.apply(a_set("www", f"192.0.{i >> 8}.{i & 255}"))
                await until(lambda before=before: member.serial("lab.example") != before)
                await until(lambda: status_of(kube).get("serial") == member.serial("lab.example"))
                await kube.apply(a_set("www", f"192.0.{i >> 8}.{i & 255}"))  # changes nothing
        written = [call for call in kube.api.calls if call[0] in ("update", "patch")]
        ours = [plural for _, plural, _ in written if plural not in ("leases", "dnsrecordsets")]
        assert ours == ["dnszones"] * number

    in_cluster(case, patience_s)


def test_changes_write_exactly_the_statuses_that_differ() -> None:
    changes_write_what_differs(100, PATIENCE_S)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_changes_write_exactly_the_statuses_that_differ() -> None:
    changes_write_what_differs(2_000, 800)


def test_notices_are_events_beside_their_objects() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            made = await kube.apply(a_zone())
            sink = member.late.sink(logging.getLogger("test"))
            uid = made["metadata"]["uid"]
            key = key_of("DNSZone", "", "lab.example")
            await until(lambda: member.runner.status().is_leader)
            sink.post(Notice(key=key, uid=uid, type="Normal", reason="Test", message="a serial"))
            await until(lambda: kube.api.objects("events"))
            (event,) = kube.api.objects("events").values()
            assert event["involvedObject"]["uid"] == uid

    in_cluster(case)


def test_the_objects_of_a_log_are_copied_and_set_back_and_those_of_others_are_left_alone() -> None:
    async def case(kube: Kube) -> None:
        await kube.apply(a_set("theirs", "192.0.2.9"))
        member = Member(kube, owner="log")
        async with member.running():
            await changes(
                member,
                an_apply(a_zone()),
                an_apply(a_set("www", "192.0.2.1")),
                an_apply(a_set("theirs", "192.0.2.1")),
            )

            def there(name: str) -> Any:
                found = kube.api.objects("dnsrecordsets").get(f"default/{name}")
                return found and found["spec"]["endpoints"][0]["targets"][0]

            await until(lambda: there("www") == "192.0.2.1")
            manager = kube.api.objects("dnszones")["lab.example"]["metadata"]["annotations"]
            assert manager[MANAGED_BY] == f"mirror:{member.log.log_id}"
            await kube.apply(a_set("www", "192.0.2.7"), "kubectl", force="true")
            await until(lambda: there("www") == "192.0.2.1")
            await until(lambda: member.cluster.copies.foreign)
            assert there("theirs") == "192.0.2.9"
            await changes(member, Delete(key=KEY, manager="kudurru"))
            await until(lambda: there("www") is None)
            await until(lambda: status_of(kube).get("serial") == member.serial("lab.example"))
            await kube.delete(a_zone())
            await until(lambda: "lab.example" in kube.api.objects("dnszones"))
            await until(lambda: member.events(MIRROR_WRITTEN))
        assert {who_of(e).actor for e in member.events(OBJECT_APPLIED)} == {ALICE.actor}

    in_cluster(case)


def test_a_large_change_that_the_log_took_is_copied_too() -> None:
    names = [f"host-{number}" for number in range(30)]

    async def case(kube: Kube) -> None:
        member = Member(kube, owner="log")
        async with member.running():
            sets = [an_apply(a_set(name, "192.0.2.1")) for name in names]
            await changes(member, an_apply(a_zone()), *sets)
            await until(lambda: len(kube.api.objects("dnsrecordsets")) == len(names))
            await until(lambda: kube.api.objects("dnszones"))
            del kube.api.calls[:]
            await changes(member, an_apply(a_set("host-0", "192.0.2.2")))
            await until(lambda: said_there(kube, "host-0") == "192.0.2.2")
            seen = [call for call in kube.api.calls if call[1] == "dnsrecordsets"]
            assert [verb for verb, _, _ in seen] == ["get", "patch"]  # and no look afterwards
            await changes(member, Delete(key=key_of("DNSZone", "", "lab.example")))
            await until(lambda: not kube.api.objects("dnszones"))
            keys = [key_of("DNSRecordSet", "default", name) for name in names]
            await changes(member, *(Delete(key=key) for key in keys))
            await until(lambda: not kube.api.objects("dnsrecordsets"))

    in_cluster(case)


def said_there(kube: Kube, name: str) -> str:
    found = kube.api.objects("dnsrecordsets")[f"default/{name}"]
    return str(found["spec"]["endpoints"][0]["targets"][0])


def test_a_node_whose_log_is_damaged_answers_on_and_follows_nothing() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_zone())
        member = Member(kube)
        async with member.running():
            await until(lambda: member.serial("lab.example"))
        later = Member(kube, member.log)
        later.node.why_not_writable = LogDamaged("chain", 1, "the head is another")
        asked = len(kube.api.calls)
        async with later.running(synced=False):
            await until(lambda: later.runner.status().runnables[0].state == "running")
            assert later.serial("lab.example")
            assert {name for _, name, _ in kube.api.calls[asked:]} <= {"leases"}

    in_cluster(case)


def test_demo_objects_are_not_added_to_a_cluster(tmp_path: Path) -> None:
    done = kudurru(*serve_arguments(tmp_path / "data", "--demo", "--kubernetes", "cluster"))
    assert done.code != 0
    assert "--demo: objects are the cluster's" in done.err
