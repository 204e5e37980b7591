"""A node and its cluster: what comes from there, what goes there, and who may."""

from typing import Any

from kudurru.domain.events import (
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_STATUS,
)
from tests.blackbox.program import records, zone
from tests.clusters import Kube, Member, in_cluster, until


def a_zone(name: str = "lab.example") -> dict[str, Any]:
    return zone(name)


def a_set(name: str, target: str, zone_name: str = "lab.example") -> dict[str, Any]:
    document = records(name, zone_name, (f"{name}.{zone_name}", "A", target))
    document["metadata"]["namespace"] = "default"
    return document


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
            assert made["metadata"]["resourceVersion"].encode() in (first.body or b"")
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
