"""What a node does with its cluster before the client of it is there."""

import asyncio
import logging

import pytest

from kudurru.domain.commands import Apply
from kudurru.domain.errors import Invalid, StorageFailed
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.domain.ports import ConfigMaps, Notice
from kudurru.entrypoints.cluster.late import NOTICES_MAX
from kudurru.entrypoints.waiting import alone
from kudurru.entrypoints.wiring import Change
from tests.blackbox.program import zone
from tests.clusters import ALICE, Kube, Member, in_cluster, until

KEY = key_of("DNSZone", "", "lab.example")


class Lists:
    """As much of a `ListKeeper` as takes texts from a cluster."""

    config_maps: ConfigMaps

    def use_config_maps(self, maps: ConfigMaps) -> None:
        self.config_maps = maps


async def followed(kube: Kube) -> Member:
    """A node that has followed the cluster once, and is down."""
    member = Member(kube)
    async with member.running():
        await kube.apply(zone("lab.example"))
        await until(lambda: member.node.zones.find("lab.example"))
    return member


def test_nothing_of_the_cluster_is_changed_and_nobody_leads_before_it_can_be_asked() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        before = await followed(kube)
        later = Member(kube, before.log, is_late=True)
        asked = len(kube.api.calls)
        async with later.running(synced=False):
            manifest = parse_manifest(zone("x.example"), what="test", default_namespace="default")
            change = Change(commands=(Apply(manifest=manifest, manager="kudurru"),), who=ALICE)
            with pytest.raises(StorageFailed, match="nothing was changed"):
                await later.writer.submit(change)
            assert later.late.why_not()[0].startswith("NotSynced: ")
            assert later.late.warnings()[0].startswith("ServingFromSnapshot: ")
            assert {sample.name: sample.value for sample in later.late.samples()}[
                "store_snapshot_serving"
            ]
            assert await later.elector.leader() is None
            assert not later.writer.may_stamp()
            assert len(kube.api.calls) == asked
            later.late.take(later.cluster)
            await until(lambda: later.cluster.feed.synced.is_set())
            await until(lambda: later.runner.status().is_leader)
            await later.writer.submit(change)
            assert kube.api.objects("dnszones").keys() >= {"x.example"}
            assert later.late.why_not() == []

    in_cluster(case)


def test_a_cluster_that_is_never_there_ends_with_the_rest() -> None:
    async def case(kube: Kube) -> None:
        before = await followed(kube)
        async with Member(kube, before.log, is_late=True).running(synced=False):
            await asyncio.sleep(0)

    in_cluster(case)


def test_notices_wait_for_the_cluster_the_newest_of_too_many() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube, is_late=True, owner="log")
        sink = member.late.sink(logging.getLogger("test"))
        for i in range(NOTICES_MAX + 1):
            sink.post(Notice(key=KEY, uid="1", type="Normal", reason=f"No{i}", message="said"))
        posted: list[str] = []
        member.cluster.sink.post = lambda notice: posted.append(notice.reason)  # type: ignore[method-assign]  # to see them before a queue does
        member.late.take(member.cluster)
        sink.post(Notice(key=KEY, uid="1", type="Normal", reason="Last", message="said"))
        assert posted == [f"No{i}" for i in range(1, NOTICES_MAX + 1)] + ["Last"]
        await member.late.close()

    in_cluster(case)


def test_a_text_in_a_config_map_is_waited_for() -> None:
    async def case(kube: Kube) -> None:
        before = await followed(kube)
        member = Member(kube, before.log, is_late=True)
        lists = Lists()
        member.late.use(lists, None)  # type: ignore[arg-type]  # of a list keeper that, and no keys
        maps = lists.config_maps
        maps.follow(["default"], lambda *_: None)
        reading = asyncio.ensure_future(maps.read("default", "names"))
        await asyncio.sleep(0)
        assert not reading.done()
        document = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "names"},
            "data": {"list": "ads.example"},
        }
        path = "/api/v1/namespaces/default/configmaps"
        await kube.people.request("POST", path, document)
        member.late.take(member.cluster)
        assert (await reading).texts == {"list": b"ads.example"}
        assert lists.config_maps is member.cluster.beside.maps
        await member.late.close()

    in_cluster(case)


def test_what_runs_alone_returns_raises_and_is_not_waited_for() -> None:
    def fail() -> None:
        raise Invalid("test", [])

    async def main() -> None:
        assert await alone(lambda: 7, "test") == 7
        with pytest.raises(Invalid):
            await alone(fail, "test")
        over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def late() -> None:
            loop.call_soon_threadsafe(over.set)

        task = asyncio.ensure_future(alone(late, "test"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await over.wait()

    asyncio.run(main())
