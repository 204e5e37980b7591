"""The status of an object in the cluster, and what the nodes that do not lead take of it."""

from typing import Any

from kudurru.adapters.clock import SystemClock
from kudurru.domain.commands import UpdateStatus
from kudurru.domain.kinds.registry import DNS_ZONE
from kudurru.domain.objects import key_of
from kudurru.domain.reconcile.conditions import condition
from kudurru.entrypoints.wiring import Change
from tests.clusters import (
    ALICE,
    Kube,
    Member,
    a_set,
    a_zone,
    an_apply,
    changes,
    conditions,
    heard,
    in_cluster,
    path_of,
    status_of,
    until,
    version_of,
    warned,
)

ZONE = key_of(DNS_ZONE.name, "", "lab.example")


async def leader_first(one: Member, two: Member) -> tuple[Member, Member]:
    def is_so(member: Member) -> bool:
        return member.cluster.leading.is_leader

    await until(lambda: is_so(one) or is_so(two))
    return (one, two) if is_so(one) else (two, one)


def test_the_serial_of_a_zone_that_is_refused_reaches_those_who_follow() -> None:
    """What it was before is served on, with records that come and go."""

    async def case(kube: Kube) -> None:
        kube.free_lease()
        one, two = Member(kube), Member(kube, name="node-2")
        async with one.running(), two.running():
            leader, follower = await leader_first(one, two)
            await kube.apply(a_zone())
            await until(lambda: follower.serial("lab.example"))
            refused = a_zone()
            refused["spec"]["transfer"] = {"notify": ["10.0.0.1"]}
            await kube.apply(refused)
            await until(lambda: all("is not taken" in warned(member) for member in (one, two)))
            for number in range(3):
                before = follower.serial("lab.example")
                await kube.apply(a_set("www", f"192.0.2.{number}"))
                await until(lambda was=before: follower.serial("lab.example") not in (None, was))
            await until(lambda: status_of(kube)["serial"] == leader.serial("lab.example"))
            assert conditions(kube, "dnszones", "lab.example")["Accepted"] == "False"
            await until(lambda: follower.serial("lab.example") == leader.serial("lab.example"))
            stored = follower.node.objects.find(ZONE)
            assert stored is not None
            assert stored.status is not None
            assert "Accepted" not in str(stored.status["conditions"])
            await kube.apply(a_zone(labels={"a": "b"}))
            await until(lambda: "Accepted" not in conditions(kube, "dnszones", "lab.example"))

    in_cluster(case)


class Later(SystemClock):
    """Some hours later than it is."""

    hours = 0

    def now_us(self) -> int:
        return super().now_us() + self.hours * 3_600_000_000


def test_what_is_said_of_a_refused_object_is_written_once() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        clock = Later()
        member = Member(kube, clock=clock)
        async with member.running():
            await kube.apply(a_zone())
            await until(lambda: status_of(kube).get("serial"))
            refused = a_zone()
            refused["spec"]["transfer"] = {"notify": ["10.0.0.1"]}
            await kube.apply(refused)
            await until(lambda: "Accepted" in conditions(kube, "dnszones", "lab.example"))
            await until(lambda: heard(member, ZONE) == version_of(kube))
            before = condition(status_of(kube), "Accepted")
            clock.hours = 1
            assert await member.cluster.statuses._settle(ZONE)
            assert condition(status_of(kube), "Accepted") == before

    in_cluster(case)


def a_secondary(**labels: str) -> dict[str, Any]:
    document = a_zone(labels=labels)
    document["spec"] = {
        "zoneName": "lab.example.",
        "type": "Secondary",
        "secondary": {"primaries": [{"address": "9.9.9.9"}]},
    }
    return document


async def relabelled(member: Member, label: str) -> None:
    """By somebody who read what this node has."""
    read = member.node.objects.find(ZONE)
    assert read is not None
    order = an_apply(a_secondary(a=label), expected=read.resource_version, force=True)
    await changes(member, order)


def test_what_is_held_to_a_version_is_not_held_to_statuses_which_each_node_may_have() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        one, two = Member(kube), Member(kube, name="node-2")
        async with one.running(), two.running():
            leader, follower = await leader_first(one, two)
            await kube.apply(a_secondary())
            for member, serial in ((leader, 5), (follower, 6)):
                read = await until(lambda of=member: of.node.objects.find(ZONE))
                said = UpdateStatus(
                    key=ZONE, status={"serial": serial}, expected=read.resource_version
                )
                await member.writer.submit(Change(commands=(said,), who=ALICE))
            await until(lambda: status_of(kube).get("serial") == 5)
            await relabelled(leader, "leader")
            await until(
                lambda: (
                    (found := follower.node.objects.find(ZONE))
                    and found.body.labels == {"a": "leader"}
                )
            )
            await relabelled(follower, "follower")
            # Nor to one that is not there any more.
            bare = kube.api.objects("dnszones")["lab.example"] | {"status": {}}
            await kube.people.request("PUT", f"{path_of(bare)}/status", bare)
            await relabelled(follower, "again")

    in_cluster(case)
