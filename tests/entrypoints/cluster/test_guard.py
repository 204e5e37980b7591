"""What somebody may do in a cluster, and what it does not do to the nodes that follow it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kudurru.adapters.clock import SystemEntropy
from kudurru.adapters.kubernetes.fakes.network import Response
from kudurru.adapters.kubernetes.store import shown
from kudurru.adapters.sealing import NodeKey
from kudurru.domain.commands import Apply, Delete, Observe, Origin
from kudurru.domain.errors import Invalid, KudurruError, StorageFailed
from kudurru.domain.events import MIRROR_WRITTEN
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.wiring import Change
from tests.adapters.kubernetes.nested import DEEP, nest
from tests.adapters.kubernetes.test_endpoints import SLICES, endpoint_slice
from tests.clusters import (
    ALICE,
    APPLY,
    Kube,
    Lost,
    Member,
    a_policy,
    a_set,
    a_zone,
    an_apply,
    changes,
    filled,
    in_cluster,
    names_of,
    path_of,
    text_of,
    until,
    warned,
)
from tests.entrypoints.cluster.test_compare import compared
from tests.entrypoints.cluster.test_secrets import KEY, SECRETS, a_secret


def spec_in(member: Member, key: str) -> dict[str, Any]:
    """As the log has it."""
    found: dict[str, Any] = msgspec.json.decode(member.node.objects.find(key).body.spec)
    return found


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


def test_a_policy_whose_regexes_would_hold_the_loop_is_named_and_not_compiled() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_policy(deny=["/ads[0-9]/"]))
            key = key_of("Policy", "default", "office")
            await until(lambda: member.node.objects.find(key))
            rules = [f"/{'[a-z]{1,50}' * 80}{number}/" for number in range(60)]
            await kube.apply(a_policy(deny=rules))
            await until(lambda: "parts, repeats written out" in warned(member))
            assert spec_in(member, key)["deny"] == ["/ads[0-9]/"]

    in_cluster(case)


def test_while_it_is_unknown_which_cluster_it_is_no_key_comes_or_goes_and_nobody_is_a_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_AGAIN_US", 10_000)
    monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_AGAIN_MAX_US", 10_000)

    def keys(member: Member) -> list[str]:
        return [key for key in member.node.objects.all_keys() if key.startswith("TSIGKey/")]

    def with_keys(member: Member) -> Member:
        keyring = Keyring(member.node, NodeKey(tmp_path / "node.key", SystemEntropy()))
        member.cluster.beside._keyring = keyring
        return member

    async def a_key(kube: Kube, name: str) -> None:
        secret = a_secret(name, "TSIGKey", secret=KEY)
        path = f"{SECRETS}/{name}?fieldManager=kubectl"
        await kube.people.request("PATCH", path, secret, content_type=APPLY)

    async def case(kube: Kube) -> None:
        kube.free_lease()
        await a_key(kube, "transfer")
        before = with_keys(Member(kube))
        async with before.running():
            await until(lambda: keys(before))
        await kube.people.request("DELETE", f"{SECRETS}/transfer")
        await a_key(kube, "other")
        kube.api.forbidden = {("get", "namespaces")}
        member = with_keys(Member(kube, before.log))
        async with member.running():
            await kube.apply(a_zone())
            await until(lambda: member.serial("lab.example"))
            assert keys(member) == ["TSIGKey//transfer"]
            with pytest.raises(StorageFailed, match=r"kubernetes\.clusterID"):
                await member.late.reviews.user("token")
            kube.api.forbidden = set()
            await until(lambda: keys(member) == ["TSIGKey//other"])
            assert await member.late.reviews.user("token") is None

    in_cluster(case)


def test_credentials_that_are_refused_are_no_answer_to_which_cluster_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def case(kube: Kube) -> None:
        monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_FIRST_US", 10_000)
        before = await filled(kube)
        refused = []

        def interfere(verb: str, plural: str, name: str) -> Response | None:
            if name == "kube-system" and len(refused) < 3:
                refused.append(verb)
                return Response(401, b'{"kind":"Status","code":401,"message":"Unauthorized"}')
            return None

        kube.api.interfere = interfere
        member = Member(kube, before.log)
        async with member.running():
            assert len(refused) == 3
            assert "uid is not known" not in warned(member)

    in_cluster(case)


@pytest.mark.parametrize("code", [403, 404])
def test_while_it_is_unknown_which_cluster_it_is_nothing_is_taken_away(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case(kube: Kube) -> None:
        before = await filled(kube)
        await kube.delete(a_set("n0", ""))
        is_hidden = True

        def interfere(verb: str, plural: str, name: str) -> Response | None:
            if name == "kube-system" and is_hidden:
                body = {"kind": "Status", "code": code, "message": "not for you"}
                return Response(code, msgspec.json.encode(body))
            return None

        kube.api.interfere = interfere
        monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_AGAIN_US", 10_000)
        monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_AGAIN_MAX_US", 10_000)
        member = Member(kube, before.log)
        async with member.running():
            await kube.apply(a_set("new", "192.0.2.1"))
            await kube.delete(a_set("n1", ""))
            await until(lambda: "2 objects are gone from it" in warned(member))
            await until(lambda: names_of(member) == 4)
            held = [s.value for s in member.cluster.samples() if s.name.endswith("held")]
            assert held == [2]
            await kube.apply(a_set("n1", "192.0.2.9"))
            await until(lambda: "1 objects are gone from it" in warned(member))
            is_hidden = False
            await until(lambda: names_of(member) == 3)
            await until(lambda: not member.cluster.warnings())

    in_cluster(case)


def test_an_object_that_is_back_stays_though_it_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def case(kube: Kube) -> None:
        monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_AGAIN_US", 10_000)
        monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_AGAIN_MAX_US", 10_000)
        before = await filled(kube)
        await kube.delete(a_set("n0", ""))
        await kube.delete(a_set("n1", ""))
        kube.api.forbidden = {("get", "namespaces")}
        member = Member(kube, before.log)
        async with member.running():
            await until(lambda: "2 objects are gone" in warned(member))
            unreadable = a_set("n0", "192.0.2.1")
            unreadable["metadata"]["annotations"] = {MANAGED_BY: "secondary:x"}
            await kube.apply(unreadable)
            await until(lambda: "1 objects are gone" in warned(member))
            kube.api.forbidden = set()
            await until(lambda: names_of(member) == 2)
            assert text_of(member, "n0")

    in_cluster(case)


def test_what_was_left_open_is_not_settled_by_what_another_cluster_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def case(kube: Kube) -> None:
        monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_AGAIN_US", 10_000)
        monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_AGAIN_MAX_US", 10_000)
        before = await filled(kube)
        async with Member(kube, before.log).running() as member:
            lost = Lost(kube, True)
            with pytest.raises(KudurruError):
                await changes(member, an_apply(a_set("extra", "192.0.2.7")))
            assert lost.was_hit
        lost.mend()
        other = Kube()
        other.api.seed("namespaces", "", "kube-system")  # another uid
        other.api.forbidden = {("get", "namespaces")}
        try:
            async with Member(other, before.log).running() as wrong:
                await until(lambda: "4 objects are gone" in warned(wrong))
                assert names_of(wrong) == 3
                with pytest.raises(StorageFailed, match="what became of an earlier change"):
                    await changes(wrong, an_apply(a_zone("new.example")))
                written = wrong.events(MIRROR_WRITTEN)
        finally:
            await other.close()
        async with Member(kube, before.log).running() as right:
            await until(lambda: len(right.events(MIRROR_WRITTEN)) > len(written))
            assert "192.0.2.7" in text_of(right, "extra")

    in_cluster(case)


def test_a_log_that_never_learned_which_cluster_it_is_of_is_no_less_guarded() -> None:
    async def case(kube: Kube) -> None:
        kube.api.forbidden = {("get", "namespaces")}
        before = await filled(kube)
        await kube.delete(a_set("n0", ""))
        other = Kube()
        other.api.forbidden = {("get", "namespaces")}
        try:
            async with Member(other, before.log).running() as wrong:
                await until(lambda: "4 objects are gone from it" in warned(wrong))
                assert names_of(wrong) == 3
                assert "set kubernetes.clusterID" in warned(wrong)
        finally:
            await other.close()
        async with Member(kube, before.log, cluster_id=kube.uid).running() as right:
            await until(lambda: names_of(right) == 2)
            assert "uid is not known" not in warned(right)
            assert right.cluster.facts.cluster == kube.uid

    in_cluster(case)


def test_a_cluster_that_turns_out_to_be_another_ends_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def case(kube: Kube) -> None:
        before = await filled(kube)
        other = Kube()
        other.api.seed("namespaces", "", "kube-system")  # another uid
        other.api.forbidden = {("get", "namespaces")}
        monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_AGAIN_US", 10_000)
        member = Member(other, before.log)

        async def until_it_ends() -> None:
            async with member.running():
                assert names_of(member) == 3
                other.api.forbidden.clear()
                await until(lambda: any(p.fault for p in member.runner.status().runnables))

        try:
            with pytest.raises(Invalid, match="this log is of the cluster"):
                await until_it_ends()
            assert Member(kube, before.log).node.zones.find("lab.example")
        finally:
            await other.close()

    in_cluster(case)


def test_another_cluster_that_answers_a_node_that_runs_ends_it() -> None:
    """Few objects are never much, so that the guard would let them go."""

    async def case(kube: Kube) -> None:
        before = await filled(kube)
        other = Kube()
        other.api.seed("namespaces", "", "kube-system")  # another uid
        member = Member(kube, before.log)

        async def until_it_ends() -> None:
            async with member.running():
                kube.server.down()
                other.api.compact()
                kube.server._handler = other.server._handler
                kube.server.up()
                await until(lambda: any(p.fault for p in member.runner.status().runnables))

        try:
            with pytest.raises(Invalid, match="this log is of the cluster"):
                await until_it_ends()
            assert names_of(member) == 3
        finally:
            await other.close()

    in_cluster(case)


def test_what_goes_while_a_node_was_cut_off_goes_when_it_is_the_same_cluster() -> None:
    async def case(kube: Kube) -> None:
        before = await filled(kube)
        member = Member(kube, before.log)
        async with member.running():
            kube.server.down()
            kube.server.up()
            await kube.delete(a_set("n0", ""))
            kube.api.compact()
            await until(lambda: names_of(member) == 2)

    in_cluster(case)


def test_who_says_which_cluster_it_is_takes_what_it_deletes() -> None:
    async def case(kube: Kube) -> None:
        before = await filled(kube)
        await kube.delete(a_set("n0", ""))
        kube.api.forbidden = {("get", "namespaces")}
        member = Member(kube, before.log, cluster_id=kube.uid)
        async with member.running():
            await until(lambda: names_of(member) == 2)

    in_cluster(case)


@pytest.mark.parametrize("manager", ["secondary:lab.example", "catalog:lab", "x" * 5_000])
def test_an_object_that_says_to_be_a_nodes_own_is_kept_out(manager: str) -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_zone())
        member = Member(kube)
        async with member.running():
            forged = a_set("forged", "192.0.2.1")
            forged["metadata"]["annotations"] = {MANAGED_BY: manager}
            await kube.apply(forged)
            await until(lambda: "managed-by" in warned(member))
            # Without one it is of who wrote it, and of nobody where that is such a name.
            await kube.apply(a_set("www", "192.0.2.1"), manager[:128])
            await until(lambda: names_of(member) == 1)
            stored = member.node.objects.find("DNSRecordSet/default/www")
            assert stored is not None
            assert stored.manager in ("kubernetes", "x" * 128)
            await kube.delete(a_set("www", ""))
            await until(lambda: names_of(member) == 0)

    in_cluster(case)


def test_an_object_that_an_earlier_version_took_under_the_name_of_a_nodes_own_is_the_clusters() -> (
    None
):
    async def case(kube: Kube) -> None:
        before = await filled(kube, 1)
        names = ("forged", "here", "other")
        for name in names:
            await kube.apply(a_set(name, "192.0.2.9"))
        async with Member(kube, before.log).running() as member:
            for name in names:
                found = member.node.objects.find(key_of("DNSRecordSet", "default", name))
                assert found is not None
                document = await kube.people.get(path_of(a_set(name, "")), dict[str, Any])
                manifest = parse_manifest(
                    shown("DNSRecordSet", document), what="test", default_namespace="default"
                )
                observe = Observe(
                    manifest=manifest,
                    manager="secondary:x",
                    origin=found.body.origin or Origin(resource_version="1"),
                )
                await member.writer.submit(Change(commands=(observe,), who=ALICE))
            found = await compared(kube, member)
            assert (found.ok, found.objects) == (True, 5)
            await changes(member, Delete(key=key_of("DNSRecordSet", "default", "here")))
            assert "default/here" not in kube.api.objects("dnsrecordsets")
            await kube.delete(a_set("forged", ""))
            await until(lambda: not text_of(member, "forged"))
            assert text_of(member, "other")
        await kube.delete(a_set("other", ""))
        async with Member(kube, before.log).running() as later:
            await until(lambda: not text_of(later, "other"))

    in_cluster(case)


def test_what_a_node_fetched_is_not_changed_from_the_cluster() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_zone())
        member = Member(kube)
        async with member.running():
            document = a_set("www", "192.0.2.1")
            manifest = parse_manifest(document, what="test", default_namespace="default")
            own = Apply(manifest=manifest, manager="secondary:lab.example")
            await member.writer.submit(Change(commands=(own,), who=ALICE))
            assert kube.api.objects("dnsrecordsets") == {}
            await kube.apply(a_set("www", "203.0.113.66"))
            await until(lambda: "is not taken" in warned(member))
            await kube.delete(a_set("www", ""))
            await until(lambda: "is not taken" not in warned(member))
            stored = member.node.objects.find("DNSRecordSet/default/www")
            assert stored is not None
            assert b"192.0.2.1" in bytes(stored.body.spec)

    in_cluster(case)
