"""What somebody may do in a cluster, and what it does not do to the nodes that follow it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.kubernetes.fakes.network import Request, Response
from kudurru.adapters.kubernetes.store import shown
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sealing import NodeKey
from kudurru.domain.commands import Apply, Delete, Observe, Origin, UpdateStatus
from kudurru.domain.errors import Invalid, KudurruError, PartiallyApplied, StorageFailed
from kudurru.domain.events import MIRROR_WRITTEN, OBJECT_APPLIED
from kudurru.domain.kinds.meta import API_VERSION, MANAGED_BY
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.entrypoints.cluster_missing import WINDOW_US, Gone, Missing
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.wiring import Change, Node
from tests.adapters.kubernetes.nested import DEEP, nest
from tests.adapters.kubernetes.test_endpoints import SLICES, endpoint_slice
from tests.blackbox.program import records, zone
from tests.clusters import ALICE, APPLY, Kube, Member, in_cluster, path_of, until
from tests.entrypoints.test_cluster import Lost, an_apply, changes
from tests.entrypoints.test_cluster_compare import compared
from tests.entrypoints.test_cluster_secrets import KEY, SECRETS, a_secret


def a_zone(name: str = "lab.example", **metadata: Any) -> dict[str, Any]:
    document = zone(name)
    document["metadata"] |= metadata
    return document


def a_set(name: str, target: str, zone_name: str = "lab.example") -> dict[str, Any]:
    document = records(name, zone_name, (f"{name}.{zone_name}", "A", target))
    document["metadata"]["namespace"] = "default"
    return document


def a_policy(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "Policy",
        "metadata": {"name": "office", "namespace": "default"},
        "spec": spec,
    }


def spec_in(member: Member, key: str) -> dict[str, Any]:
    """As the log has it."""
    found: dict[str, Any] = msgspec.json.decode(member.node.objects.find(key).body.spec)
    return found


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


# --- which cluster it is ---------------------------------------------------------------------


def warned(member: Member) -> str:
    return " ".join(member.cluster.warnings())


def names_of(member: Member) -> int:
    return len(member.names("lab.example"))


def text_of(member: Member, name: str) -> str:
    stored = member.node.objects.find(key_of("DNSRecordSet", "default", name))
    return bytes(stored.body.spec).decode() if stored is not None else ""


async def filled(kube: Kube, count: int = 3) -> Member:
    """A node that has followed a cluster with so many record sets."""
    kube.free_lease()
    await kube.apply(a_zone())
    for number in range(count):
        await kube.apply(a_set(f"n{number}", "192.0.2.1"))
    member = Member(kube)
    async with member.running():
        await until(lambda: names_of(member) == count)
    return member


def test_while_it_is_unknown_which_cluster_it_is_no_key_comes_or_goes_and_nobody_is_a_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kudurru.entrypoints.cluster.ASK_AGAIN_US", 10_000)
    monkeypatch.setattr("kudurru.entrypoints.cluster.ASK_AGAIN_MAX_US", 10_000)

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
        monkeypatch.setattr("kudurru.entrypoints.cluster.ASK_FIRST_US", 10_000)
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
        monkeypatch.setattr("kudurru.entrypoints.cluster.ASK_AGAIN_US", 10_000)
        monkeypatch.setattr("kudurru.entrypoints.cluster.ASK_AGAIN_MAX_US", 10_000)
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
        monkeypatch.setattr("kudurru.entrypoints.cluster.ASK_AGAIN_US", 10_000)
        monkeypatch.setattr("kudurru.entrypoints.cluster.ASK_AGAIN_MAX_US", 10_000)
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
        monkeypatch.setattr("kudurru.entrypoints.cluster.ASK_AGAIN_US", 10_000)
        monkeypatch.setattr("kudurru.entrypoints.cluster.ASK_AGAIN_MAX_US", 10_000)
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
        monkeypatch.setattr("kudurru.entrypoints.cluster.ASK_AGAIN_US", 10_000)
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


# --- much at once ----------------------------------------------------------------------------

MANY = 24


@pytest.mark.parametrize("what", ["record sets", "zone"])
def test_a_cluster_that_lacks_most_of_the_log_takes_it_away_when_that_is_allowed(
    what: str,
) -> None:
    async def case(kube: Kube) -> None:
        before = await filled(kube, MANY)
        if what == "zone":
            await kube.delete(a_zone())
        else:
            for number in range(MANY - 1):
                await kube.delete(a_set(f"n{number}", ""))
        member = Member(kube, before.log)
        async with member.running():
            assert names_of(member) == MANY
            gone = 1 if what == "zone" else MANY - 1
            assert f"{gone} of {MANY + 1} objects of this log are not there" in warned(member)
            assert "kubernetes.allowMassChange" in warned(member)
            # What somebody does now is done.
            await kube.delete(a_set(f"n{MANY - 1}", ""))
            await kube.apply(a_set("new", "192.0.2.1"))
            await until(lambda: "DNSRecordSet/default/new" in member.node.objects.all_keys())
            await until(lambda: names_of(member) == MANY)
        again = Member(kube, before.log, allow_mass_change=True)
        async with again.running():
            await until(lambda: names_of(again) == (0 if what == "zone" else 1))
            assert not [one for one in again.cluster.warnings() if "not there" in one]

    in_cluster(case)


@pytest.mark.parametrize("first", ["dnszones", "dnsrecordsets"])
def test_a_list_of_another_cluster_takes_nothing_from_a_node_that_runs(first: str) -> None:
    """The address of the API server leads to another one now, which has more objects. Whichever
    kind is listed first."""

    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_zone())
        for number in range(MANY):
            await kube.apply(a_set(f"n{number}", "192.0.2.1"))
        other = Kube()
        try:
            for number in range(2 * MANY):
                await other.apply(a_set(f"m{number}", "192.0.2.1", "other.example"))
            listed: set[str] = set()

            def interfere(verb: str, plural: str, name: str) -> Response | None:
                if verb == "list" and plural == first:
                    listed.add(plural)
                is_later = verb in ("list", "watch") and plural != first and not listed
                return Response(500) if is_later else None

            other.api.interfere = interfere
            member = Member(kube)
            async with member.running():
                await until(lambda: names_of(member) == MANY)
                kube.server.down()
                other.api.compact()
                kube.server._handler = other.server._handler
                kube.server.up()
                await until(lambda: f"{MANY + 1} of {MANY + 1} objects of this" in warned(member))
                assert names_of(member) == MANY
        finally:
            await other.close()

    in_cluster(case)


def test_what_a_list_told_before_it_broke_off_lets_no_more_go() -> None:
    """Another cluster again, whose record sets come in pages; the first time not to the end."""

    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_zone())
        for number in range(MANY):
            await kube.apply(a_set(f"n{number}", "192.0.2.1"))
        other = Kube()
        try:
            for number in range(2 * MANY):
                await other.apply(a_set(f"m{number}", "192.0.2.1", "other.example"))
            member = Member(kube)
            async with member.running():
                await until(lambda: names_of(member) == MANY)
                (sets,) = (
                    part.informer
                    for part in member.cluster.feed._parts
                    if part.kind.plural == "dnsrecordsets"
                )
                sets._page = 10
                lists, broke_off = sets.lists, False

                def interfere(verb: str, plural: str, name: str) -> Response | None:
                    """Once, not the page after four of five."""
                    nonlocal broke_off
                    is_fifth = plural == "dnsrecordsets" and len(sets.versions) == MANY + 40
                    if broke_off or verb != "list" or not (is_fifth and sets.is_listing):
                        return None
                    broke_off = True
                    return Response(410, b"{}")

                other.api.interfere = interfere
                kube.server.down()
                other.api.compact()
                kube.server._handler = other.server._handler
                kube.server.up()
                await until(lambda: broke_off)
                await until(lambda: sets.lists > lists)
                await until(lambda: f"{MANY + 1} of {MANY + 1} objects of this" in warned(member))
                assert names_of(member) == MANY
        finally:
            await other.close()

    in_cluster(case)


SPECS: dict[str, dict[str, Any]] = {
    "BlockList": {"sources": [{"url": "https://lists.example/ads"}]},
    "ClientGroup": {"clients": [{"cidr": "192.0.2.0/24"}]},
    "Policy": {"safeSearch": True},
}


def of_kind(kind: str, number: int) -> dict[str, Any]:
    metadata = {"name": f"n{number}", "namespace": "default"}
    head = {"apiVersion": "kudurru.io/v1alpha1", "kind": kind, "metadata": metadata}
    return head | {"spec": SPECS[kind]}


def test_lists_that_come_one_after_the_other_take_no_more_than_one_may() -> None:
    """Ten of each kind: none of them is much, and together they are all that there is."""

    async def case(kube: Kube) -> None:
        kube.free_lease()
        other = Kube()
        for number in range(10):
            await kube.apply(a_zone(f"z{number}.example"))
            for kind in SPECS:
                await kube.apply(of_kind(kind, number))
        for number in range(60):  # its versions are no older
            await other.apply(a_zone("other.example"), f"m{number}", force="true")
        try:
            member = Member(kube)
            async with member.running():
                before = set(member.node.objects.all_keys())
                assert len(before) == 40
                kube.server.down()
                other.api.compact()
                kube.server._handler = other.server._handler
                kube.server.up()
                await until(lambda: "objects of this log are not there" in warned(member))
                others = member.cluster.feed._parts[1:]
                await until(lambda: not any(part.informer.copy for part in others))
                assert len(before & set(member.node.objects.all_keys())) >= 20
        finally:
            await other.close()

    in_cluster(case)


def thirty_objects() -> Node:
    clock, entropy = SystemClock(), SystemEntropy()
    node = Node(MemoryEventLog(entropy=entropy, clock=clock), clock, entropy)
    node.catch_up()
    for kind in SPECS:
        for number in range(10):
            document = of_kind(kind, number)
            manifest = parse_manifest(document, what="test", default_namespace="default")
            order = Apply(manifest=manifest, manager="kudurru")
            node.commit(Change(commands=(order,), who=ALICE))
    return node


def test_what_is_seen_to_go_while_the_cluster_is_asked_who_it_is_goes_then() -> None:
    node = thirty_objects()
    missing = Missing(node, lambda: 29, allows_much=False, monotonic_us=lambda: 0)
    list(missing.may_go())
    missing.is_asked = True
    keys = [str(key) for key in node.objects.all_keys()]
    for key in keys[:20]:
        assert missing.takes(Gone(key_of(*key.split("/")), "9"))
    assert list(missing.may_go()) == []
    missing.identified()
    assert len(list(missing.may_go())) == 20
    assert missing.warning() == ""


def test_what_went_while_nobody_looked_counts_for_ten_minutes() -> None:
    """And objects that are made again are no loss."""
    node, now_us = thirty_objects(), [0]
    missing = Missing(node, lambda: 0, allows_much=False, monotonic_us=lambda: now_us[0])
    missing.begin(30)

    def missed(kind: str, *numbers: int) -> int:
        for number in numbers:
            key = key_of(kind, "default", f"n{number}")
            missing.takes(Gone(key, "9", by_list=True))
        return len(list(missing.may_go()))

    assert missed("Policy", *range(8)) == 8
    now_us[0] += WINDOW_US // 2
    missing.is_back(key_of("Policy", "default", "n0"))
    assert missed("BlockList", *range(8)) == 8
    now_us[0] += WINDOW_US // 2
    assert missed("ClientGroup", *range(7)) == 7
    assert missed("ClientGroup", 8, 9) == 0
    assert "2 of 30 objects of this log are not there" in missing.warning()


def test_half_of_the_objects_may_go_while_nobody_looks() -> None:
    async def case(kube: Kube) -> None:
        before = await filled(kube, MANY)
        for number in range(MANY // 2):
            await kube.delete(a_set(f"n{number}", ""))
        member = Member(kube, before.log)
        async with member.running():
            await until(lambda: names_of(member) == MANY - MANY // 2)

    in_cluster(case)


# --- whose objects are whose ------------------------------------------------------------------


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


# --- what objects have a node do --------------------------------------------------------------


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


def conditions(kube: Kube, plural: str, name: str) -> dict[str, str]:
    status = kube.api.objects(plural)[name].get("status", {})
    return {one["type"]: one["status"] for one in status.get("conditions", [])}


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
