"""What the cluster has is held against what the log recorded, by uid and version, in order."""

import random
from typing import Any

import msgspec
import pytest

from kudurru.adapters.clock import SystemEntropy
from kudurru.adapters.kubernetes.fakes.network import Request, Response
from kudurru.adapters.kubernetes.store import PREFIX, KubernetesStore, Place
from kudurru.domain.commands import Apply, Delete
from kudurru.domain.errors import Invalid
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.entrypoints.cluster.compare import (
    Compared,
    Owner,
    Recorded,
    There,
    compare,
    differences,
)
from kudurru.entrypoints.wiring import Change
from tests.blackbox.program import records, zone
from tests.clusters import ALICE, Kube, Member, in_cluster, until

A, B, C, D = (key_of("DNSRecordSet", "default", name) for name in "abcd")
OURS = "mirror:log"


def a_set(name: str, target: str) -> dict[str, Any]:
    document = records(name, "lab.example", (f"{name}.lab.example", "A", target))
    document["metadata"]["namespace"] = "default"
    return document


def an_apply(document: dict[str, Any]) -> Apply:
    manifest = parse_manifest(dict(document), what="test", default_namespace="default")
    return Apply(manifest=manifest, manager="kudurru")


async def changed(member: Member, *commands: Any) -> None:
    await member.writer.submit(Change(commands=commands, who=ALICE))


async def compared(
    kube: Kube, member: Member, owner: Owner = "cluster", *namespaces: str, meanwhile: Any = None
) -> Compared:
    """`meanwhile` happens between the two looks."""

    async def settle() -> None:
        if meanwhile is not None:
            await meanwhile()

    place, chance = Place("default", "pod"), random.Random(1)
    store = KubernetesStore(kube.people, place, entropy=SystemEntropy(), chance=chance)
    return await compare(member.node, store, owner, namespaces, lambda: None, settle)


def told(found: Compared) -> list[tuple[str, str, str]]:
    return [(one.object, one.difference, one.why) for one in found.differences]


def one(uid: str = "u1", version: str = "7", made: bytes = b"m") -> Recorded:
    return Recorded(uid, version, made, 3)


def there(uid: str = "u1", version: str = "7", made: bytes = b"m", **more: Any) -> There:
    return There(uid, version, more.pop("manager", ""), made, **more)


SIDES: list[tuple[Recorded | None, There | None, str, str]] = [
    (one(), there(), "", ""),
    (one(), there(version="9"), "", ""),  # of its status, say
    (one(version=""), there(version="3"), "", ""),  # the cluster was set back, and that is known
    (one(), None, "missing", "has no such object"),
    (None, there(), "surplus", "has no such object"),
    (one(), there(uid="u2"), "differing", "another object of that name"),
    (one(), there(version="6"), "differing", "an older version"),
    (one(), there(made=b"n"), "differing", "the same version says something else"),
    (one(), there(version="9", made=b"n"), "differing", "a later version says something else"),
    (one(), there(problem="spec: bad"), "differing", "cannot be read there: spec: bad"),
]


@pytest.mark.parametrize(("log", "cluster", "difference", "why"), SIDES)
def test_two_are_alike_that_have_one_uid_and_say_the_same(
    log: Recorded | None, cluster: There | None, difference: str, why: str
) -> None:
    known = {A: log} if log is not None else {}
    held = {A: cluster} if cluster is not None else {}
    found = list(differences(known, held))
    assert [one.difference for one in found] == ([difference] if difference else [])
    assert all(why in one.why for one in found)


def test_differences_are_in_order_and_those_of_a_copy_are_of_what_was_copied() -> None:
    known = {B: one(), A: one(), D: one(uid="", version="")}
    held = {
        D: there(uid="u9", manager=OURS),
        C: there(),
        B: there(manager="ops"),
        key_of("DNSZone", "", "z"): there(manager=OURS),
    }
    assert [(o.object, o.difference, o.why) for o in differences(known, held, OURS)] == [
        ("DNSRecordSet default/a", "missing", "the cluster has no such object"),
        ("DNSRecordSet default/b", "differing", "ops manages it there"),
        ("DNSZone z", "surplus", "the log has no such object"),
    ]


def test_a_log_that_follows_its_cluster_is_as_that_is_and_what_it_missed_is_named() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(zone("lab.example"))
            for name in ("a", "b", "c"):
                await kube.apply(a_set(name, "192.0.2.1"))
            await changed(member, an_apply(a_set("ours", "192.0.2.1")))
            await until(lambda: len(member.names("lab.example")) == 4)
            await until(lambda: member.serial("lab.example"))
            found = await compared(kube, member)
            assert (found.ok, found.objects, found.cluster) == (True, 5, kube.uid)
            assert found.position == member.node.position
        await kube.delete(a_set("a", ""))
        await kube.apply(a_set("b", "192.0.2.2"))
        await kube.delete(a_set("c", ""))
        await kube.apply(a_set("c", "192.0.2.1"))
        await kube.apply(a_set("d", "192.0.2.1"))
        found = await compared(kube, member)
        assert (found.ok, found.objects) == (False, 2)
        assert [(name[-1], difference) for name, difference, _ in told(found)] == [
            ("a", "missing"), ("b", "differing"), ("c", "differing"), ("d", "surplus"),
        ]  # fmt: skip
        second, third = found.differences[1:3]
        assert "a later version" in second.why
        assert "another object" in third.why
        assert second.log is not None
        assert second.cluster is not None
        assert second.log.uid == second.cluster.uid
        assert int(second.log.resource_version) < int(second.cluster.resource_version)
        assert member.log.read(second.position - 1)
        later = Member(kube, member.log)
        async with later.running():
            assert (await compared(kube, later)).ok

    in_cluster(case)


def test_what_is_told_between_two_looks_is_no_difference() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(zone("lab.example"))
            await kube.apply(a_set("a", "192.0.2.1"))
            await until(lambda: member.names("lab.example"))
            member.cluster.feed.hold([A])
            await kube.apply(a_set("a", "192.0.2.2"))

            async def meanwhile() -> None:
                member.cluster.feed.release([A])
                await until(lambda: b"192.0.2.2" in spec_of(member))

            assert (await compared(kube, member, meanwhile=meanwhile)).ok

    in_cluster(case)


def spec_of(member: Member) -> bytes:
    stored = member.node.objects.find(A)
    return bytes(stored.body.spec) if stored is not None else b""


def test_a_cluster_that_was_set_back_is_as_the_log_once_that_follows_it() -> None:
    async def case(kube: Kube) -> None:
        await kube.apply(zone("lab.example"))
        backup = kube.api.backup()
        member = Member(kube)
        async with member.running():
            made = zone("lab.example")
            for label in ("x", "y"):
                made["metadata"]["labels"] = {"a": label}
                await kube.apply(made)
            made["metadata"].pop("labels")
            await kube.apply(made)
            await until(lambda: len(member.events("obj.applied.v1")) >= 2)
            await until(lambda: not labels_of(member))
            await member.cluster.feed.note()
        kube.api.rolled_back(*backup)
        (difference,) = (await compared(kube, member)).differences
        assert "older version" in difference.why
        later = Member(kube, member.log)
        async with later.running():
            await until(lambda: later.events("mirror.restored.v1"))
            assert (await compared(kube, later)).ok

    in_cluster(case)


def labels_of(member: Member) -> dict[str, str]:
    stored = member.node.objects.find(key_of("DNSZone", "", "lab.example"))
    return stored.body.labels if stored is not None else {}


def test_copies_are_held_against_the_versions_that_were_copied() -> None:
    async def case(kube: Kube) -> None:
        await kube.apply(a_set("b", "192.0.2.9"))
        member = Member(kube, owner="log")
        async with member.running():
            names = ("a", "b", "c")
            await changed(member, an_apply(zone("lab.example")),
                          *(an_apply(a_set(name, "192.0.2.1")) for name in names))  # fmt: skip
            await until(lambda: "default/c" in kube.api.objects("dnsrecordsets"))
            await until(lambda: "default/a" in kube.api.objects("dnsrecordsets"))
            await until(lambda: member.events("mirror.written.v1"))
            await until(lambda: kube.api.objects("dnszones"))
            found = await compared(kube, member, "log")
            assert told(found) == [
                ("DNSRecordSet default/b", "differing", "somebody else manages it there")
            ]
            await changed(member, Delete(key=B, manager="kudurru"))
            assert (await compared(kube, member, "log")).ok
        await kube.apply(a_set("a", "192.0.2.2"), "ops", force="true")
        (difference,) = (await compared(kube, member, "log")).differences
        assert (difference.object[-1], difference.difference) == ("a", "differing")

    in_cluster(case)


def test_only_namespaces_that_are_followed_are_compared() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_set("a", "192.0.2.1"))
        elsewhere = a_set("a", "192.0.2.1")
        elsewhere["metadata"]["namespace"] = "kube-system"
        await kube.apply(elsewhere)
        member = Member(kube, namespaces=("default",))
        async with member.running():
            assert (await compared(kube, member, "cluster", "default")).ok
            (difference,) = (await compared(kube, member)).differences
            assert difference.object == "DNSRecordSet kube-system/a"

    in_cluster(case)


def test_rights_over_the_namespaces_that_are_followed_are_enough() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(zone("lab.example"))
        for namespace in ("default", "lab"):
            document = a_set("a", "192.0.2.1")
            document["metadata"]["namespace"] = namespace
            await kube.apply(document)
        handle = kube.server._handler

        async def answer(request: Request) -> Response:
            """As where a Role in each of them is all that is bound."""
            path = request.target.partition("?")[0]
            if path.startswith(PREFIX) and "/namespaces/" not in path and "dnszones" not in path:
                return Response(403, b'{"kind": "Status", "code": 403, "message": "not there"}')
            return await handle(request)

        kube.server._handler = answer
        member = Member(kube, namespaces=("default", "lab"))
        async with member.running():
            found = await compared(kube, member, "cluster", "default", "lab")
            assert (found.ok, found.objects) == (True, 3)

    in_cluster(case)


def test_the_log_of_no_cluster_and_that_of_another_are_not_compared() -> None:
    async def case(kube: Kube) -> None:
        member = Member(kube)
        with pytest.raises(Invalid, match="of no cluster"):
            await compared(kube, member)
        async with member.running():
            pass
        other = Kube()
        other.api.seed("namespaces", "", "kube-system")  # another uid
        try:
            with pytest.raises(Invalid, match="this log is of the cluster"):
                await compared(other, member)
        finally:
            await other.close()
        kube.api.forbidden = {("get", "namespaces")}
        assert (await compared(kube, member)).cluster == ""

    in_cluster(case)


def test_what_is_reported_can_be_read_by_programs() -> None:
    (found,) = differences({A: one()}, {})
    assert msgspec.to_builtins(found) == {
        "object": "DNSRecordSet default/a",
        "difference": "missing",
        "why": "the cluster has no such object",
        "position": 3,
        "log": {"uid": "u1", "resourceVersion": "7"},
        "cluster": None,
    }
