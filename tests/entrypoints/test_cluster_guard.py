"""What somebody may do in a cluster, and what it does not do to the nodes that follow it."""

from typing import Any

import pytest

from tests.adapters.kubernetes.nested import DEEP, nest
from tests.adapters.kubernetes.test_endpoints import SLICES, endpoint_slice
from tests.blackbox.program import records, zone
from tests.clusters import Kube, Member, in_cluster, path_of, until

pytestmark = pytest.mark.timeout(120)


def a_zone(name: str = "lab.example", **metadata: Any) -> dict[str, Any]:
    document = zone(name)
    document["metadata"] |= metadata
    return document


def a_set(name: str, target: str, zone_name: str = "lab.example") -> dict[str, Any]:
    document = records(name, zone_name, (f"{name}.{zone_name}", "A", target))
    document["metadata"]["namespace"] = "default"
    return document


# --- objects that cannot be read ------------------------------------------------------------


def test_answers_of_any_depth_keep_no_node_from_its_work() -> None:
    """Objects, Leases, slices, reviews: whatever an API server says."""

    async def case(kube: Kube) -> None:
        kube.free_lease()
        nest(kube.server, everywhere=True)
        slices = endpoint_slice("kudurru-x", {"node-1": "192.0.2.1"})
        await kube.people.request("POST", SLICES, slices)
        await kube.apply(a_zone())
        member = Member(kube, service="kudurru")
        async with member.running():
            await until(lambda: member.serial("lab.example"))
            await kube.apply(a_set("www", "192.0.2.1"))
            await until(lambda: member.names("lab.example"))
            await until(lambda: member.cluster._addresses._informer.copy)  # type: ignore[union-attr]
            await until(lambda: "status" in kube.api.objects("dnszones")["lab.example"])
            assert member.cluster.warnings() == []
        again = Member(kube, member.log)
        async with again.running():
            assert again.names("lab.example")

    in_cluster(case)


def test_an_object_whose_content_is_too_deep_is_named_and_the_others_are_taken() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        nest(kube.server)
        await kube.apply(a_zone())
        bad = a_set("bad", "192.0.2.1")
        bad["spec"]["deep"] = DEEP
        await kube.apply(bad)
        await kube.apply(a_set("www", "192.0.2.1"))
        member = Member(kube)
        async with member.running():
            assert len(member.names("lab.example")) == 1
            assert "DNSRecordSet default/bad cannot be read" in " ".join(member.cluster.warnings())
            unreadable = [s for s in member.cluster.samples() if "unreadable" in s.name]
            assert [sample.value for sample in unreadable] == [1]
            await kube.apply(a_set("mail", "192.0.2.1"))
            await until(lambda: len(member.names("lab.example")) == 2)
            await kube.delete(bad)
            await until(lambda: not member.cluster.feed.broken)

    in_cluster(case)


def test_a_status_that_is_too_deep_is_left_out() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease("somebody-elses")
        nest(kube.server)
        made = await kube.apply(a_zone())
        made["status"] = {"serial": 7, "deep": DEEP}
        path = f"{path_of(a_zone())}/status"
        await kube.people.request("PUT", path, made)
        member = Member(kube)
        async with member.running():
            assert member.node.zones.find("lab.example")

    in_cluster(case)
