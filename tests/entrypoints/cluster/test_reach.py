"""What objects of a cluster may have a node do, and whose writes are recorded."""

from typing import Any

import msgspec
import pytest

from kudurru.adapters.kubernetes.fakes.network import Request, Response
from kudurru.domain.commands import UpdateStatus
from kudurru.domain.errors import Invalid, KudurruError, PartiallyApplied
from kudurru.domain.events import MIRROR_WRITTEN, OBJECT_APPLIED
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.objects import key_of
from kudurru.entrypoints.wiring import Change
from tests.blackbox.program import zone
from tests.clusters import (
    ALICE,
    Kube,
    Lost,
    Member,
    a_policy,
    a_set,
    a_zone,
    an_apply,
    changes,
    conditions,
    in_cluster,
    names_of,
    text_of,
    until,
    warned,
)


def a_forward(*upstreams: str) -> dict[str, Any]:
    document = zone("corp.example")
    document["spec"] = {
        "zoneName": "corp.example.",
        "type": "Forward",
        "forward": {"upstreams": [*upstreams]},
    }
    return document


def a_list(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "kudurru.io/v1alpha1",
        "kind": "BlockList",
        "metadata": {"name": "ads", "namespace": "default"},
        "spec": {"sources": [{"url": url}]},
    }


def upstreams_of(member: Member) -> list[str]:
    stored = member.node.objects.find("DNSZone//corp.example")
    assert stored is not None
    found: list[str] = msgspec.json.decode(stored.body.spec)["forward"]["upstreams"]
    return found


@pytest.mark.parametrize(
    ("reach", "upstream", "is_taken"),
    [
        ("public", "9.9.9.9", True),
        ("public", "10.0.0.10", False),
        ("public", "127.0.0.1", False),
        ("public", "169.254.169.254", False),
        ("public", "tls://dns.example", False),
        ("private", "10.0.0.10", True),
        ("private", "127.0.0.1:8053", False),
        ("any", "127.0.0.1:8053", True),
        ("any", "tls://dns.example", True),
    ],
)
def test_a_zone_of_the_cluster_forwards_where_the_node_lets_it(
    reach: str, upstream: str, is_taken: bool
) -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube, reach=reach)
        async with member.running():
            await kube.apply(a_forward(upstream))
            if is_taken:
                await until(lambda: "DNSZone//corp.example" in member.node.objects.all_keys())
                assert member.cluster.feed.refused == {}
                return
            said = {"Accepted": "False", "Ready": "False"}
            await until(lambda: conditions(kube, "dnszones", "corp.example") == said)
            assert "DNSZone corp.example is not taken: spec.forward" in warned(member)
            assert member.node.objects.all_keys() == []
            refused = [s.value for s in member.cluster.samples() if "refused" in s.name]
            assert refused == [1]
            await kube.apply(a_forward("9.9.9.9"))
            await until(lambda: "DNSZone//corp.example" in member.node.objects.all_keys())
            await until(lambda: member.cluster.warnings() == [])

    in_cluster(case)


@pytest.mark.parametrize("reach", ["public", "any"])
def test_a_list_of_the_cluster_is_no_file_of_a_node(reach: str) -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_list("file:/etc/shadow"))
        member = Member(kube, reach=reach)
        async with member.running():
            await until(lambda: "no object of a cluster may name them" in warned(member))
            assert member.node.objects.all_keys() == []
            await until(lambda: conditions(kube, "blocklists", "default/ads"))

    in_cluster(case)


def test_what_an_object_asked_for_when_it_was_recorded_stays_allowed_and_serves_on() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_forward("10.0.0.10"))
        before = Member(kube, reach="private")
        async with before.running():
            assert upstreams_of(before) == ["10.0.0.10"]
        member = Member(kube, before.log)
        async with member.running():
            await kube.apply(a_forward("10.0.0.10", "9.9.9.9"))
            await until(lambda: len(upstreams_of(member)) == 2)
            stored = member.node.objects.find("DNSZone//corp.example")
            assert stored is not None
            said = UpdateStatus(  # as a controller does
                key=stored.key, status={"observedGeneration": 2}, expected=stored.resource_version
            )
            await member.writer.submit(Change(commands=(said,), who=ALICE))
            await kube.apply(a_forward("10.0.0.11"))
            await until(lambda: "10.0.0.11 is private" in warned(member))
            await until(lambda: conditions(kube, "dnszones", "corp.example").get("Accepted"))
            assert upstreams_of(member) == ["10.0.0.10", "9.9.9.9"]
            await kube.apply(a_forward("10.0.0.10", "9.9.9.9"))
            await until(lambda: not conditions(kube, "dnszones", "corp.example").get("Accepted"))
            await kube.delete(a_forward())
            await until(lambda: member.node.objects.all_keys() == [])

    in_cluster(case)


def recorded(member: Member) -> bytes:
    return b"".join(event.body or b"" for event in member.events(OBJECT_APPLIED))


def test_what_the_cluster_merges_into_a_write_of_ours_is_held_against_the_reach_too() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_policy(upstreams=["169.254.169.254"]), "somebody")
            await until(lambda: "is not taken" in warned(member))
            with pytest.raises(Invalid, match=r"169\.254\.169\.254"):
                await changes(member, an_apply(a_policy(safeSearch=True)))
            with pytest.raises(PartiallyApplied, match=r"169\.254\.169\.254") as partly:
                await changes(member, an_apply(a_zone()), an_apply(a_policy(safeSearch=False)))
            assert list(partly.value.done) == ["DNSZone//lab.example"]
            assert member.node.zones.find("lab.example")
            assert b"169.254" not in recorded(member)
            written = msgspec.json.decode(member.events(MIRROR_WRITTEN)[-1].body or b"")
            assert "169.254.169.254" in written["refused"]
            await kube.apply(a_policy(safeSearch=False), "somebody")
            await until(lambda: member.node.objects.find(key_of("Policy", "default", "office")))
            await until(lambda: "is not taken" not in warned(member))
            await changes(member, an_apply(a_policy(safeSearch=False, priority=5)))

    in_cluster(case)


def test_what_a_write_of_ours_finds_there_and_may_not_be_is_not_recorded_before_it() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_forward("10.0.0.10"), "somebody")
            await kube.apply(a_list("file:/etc/shadow"), "somebody")
            await until(lambda: "10.0.0.10" in warned(member) and "files" in warned(member))
            await changes(member, an_apply(a_forward("9.9.9.9"), force=True))
            await changes(member, an_apply(a_list("https://lists.example/ads"), force=True))
            assert upstreams_of(member) == ["9.9.9.9"]
            assert b"10.0.0.10" not in recorded(member)
            assert b"shadow" not in recorded(member)
            await kube.apply(a_forward("10.0.0.10"), "somebody", force="true")
            await until(lambda: "10.0.0.10" in warned(member))
            assert upstreams_of(member) == ["9.9.9.9"]

    in_cluster(case)


def test_what_somebody_may_ask_a_node_for_is_recorded_there() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_forward("10.0.0.10")))
            assert upstreams_of(member) == ["10.0.0.10"]
            await changes(member, an_apply(a_list("file:/etc/ads")))
            assert b"file:/etc/ads" in recorded(member)
            assert member.cluster.warnings() == []

    in_cluster(case)


def test_a_write_whose_answer_cannot_be_read_is_told_and_keeps_no_other_from_being_made() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()))
            handle = kube.server._handler

            async def answer(request: Request) -> Response:
                found = await handle(request)
                if request.method == "PATCH" and "/www?" in request.target:
                    body = msgspec.json.decode(found.body)
                    body["spec"]["records"] = "none that can be read"
                    return Response(found.code, msgspec.json.encode(body))
                return found

            kube.server._handler = answer
            with pytest.raises(Invalid, match="cannot be read"):
                await changes(member, an_apply(a_set("www", "192.0.2.1")))
            await changes(member, an_apply(a_set("mail", "192.0.2.1")))

    in_cluster(case)


def test_an_open_change_whose_object_cannot_be_read_any_more_is_closed() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        bad = a_set("www", "192.0.2.1")
        bad["metadata"]["annotations"] = {MANAGED_BY: "secondary:x"}
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()))
            lost = Lost(kube, True)
            with pytest.raises(KudurruError):
                await changes(member, an_apply(a_set("www", "192.0.2.1")))
            lost.mend()
            await kube.apply(bad, "somebody", force="true")
            await changes(member, an_apply(a_set("other", "192.0.2.9")))
            lost = Lost(kube, True)
            with pytest.raises(KudurruError):
                await changes(member, an_apply(a_set("mail", "192.0.2.1")))
        lost.mend()
        bad["metadata"]["name"] = "mail"
        await kube.apply(bad, "somebody", force="true")
        later = Member(kube, member.log)
        async with later.running():
            assert text_of(later, "other")
            assert not text_of(later, "mail")
            assert "reserved" in warned(later)
            await changes(later, an_apply(a_set("more", "192.0.2.1")))

    in_cluster(case)


def test_an_open_change_whose_object_may_not_be_read_keeps_no_node_from_the_cluster() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()))
            lost = Lost(kube, True)
            with pytest.raises(KudurruError):
                await changes(member, an_apply(a_set("www", "192.0.2.1")))
        lost.mend()
        kube.api.forbidden = {("get", "dnsrecordsets")}
        later = Member(kube, member.log)
        async with later.running():
            await kube.apply(a_set("mail", "192.0.2.1"))
            await until(lambda: names_of(later) == 2)
            kube.api.forbidden = set()
            await until(lambda: len(later.events(MIRROR_WRITTEN)) == 2)

    in_cluster(case)


def test_a_group_of_upstreams_is_the_admins_to_fill() -> None:
    policy = {
        "apiVersion": "kudurru.io/v1alpha1",
        "kind": "Policy",
        "metadata": {"name": "office", "namespace": "default"},
        "spec": {"upstreams": ["office"]},
    }

    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(policy)
        groups: dict[str, list[str]] = {}
        member = Member(kube, groups=lambda: groups)
        async with member.running():
            assert "is not taken" in warned(member)
            groups["office"] = ["10.0.0.10"]
            await kube.apply(policy | {"metadata": policy["metadata"] | {"labels": {"a": "b"}}})  # type: ignore[operator]
            await until(lambda: "Policy/default/office" in member.node.objects.all_keys())

    in_cluster(case)
