"""DNSEndpoint objects of a cluster, as record sets."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kudurru.domain.commands import Delete
from kudurru.domain.events import MIRROR_INTENDED, OBJECT_APPLIED, OBJECT_DELETED, Recorded
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import key_of, ref_of
from kudurru.domain.settings import ExternalDnsSettings
from kudurru.entrypoints.history import who_of
from kudurru.entrypoints.wiring import Change
from tests.blackbox.program import records, zone
from tests.clusters import ALICE, APPLY, Kube, Member, an_apply, changes, in_cluster, until

API = "/apis/externaldns.k8s.io/v1alpha1"
OWNERS = pytest.mark.parametrize("owner", ["cluster", "log"])


def a_set(name: str, target: str, rtype: str = "A") -> dict[str, Any]:
    document = records(name, "lab.example", (f"{name}.lab.example", rtype, target))
    document["metadata"]["namespace"] = "default"
    return document


def one(name: str, rtype: str, *targets: str, **more: Any) -> dict[str, Any]:
    return {"dnsName": name, "recordType": rtype, "targets": list(targets), **more}


def endpoint(name: str, *endpoints: Any, namespace: str = "default") -> dict[str, Any]:
    return {
        "apiVersion": "externaldns.k8s.io/v1alpha1",
        "kind": "DNSEndpoint",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"endpoints": list(endpoints)},
    }


WWW = one("www.lab.example", "A", "192.0.2.1", recordTTL=60)


class World:
    """A cluster with the zone lab.example, and a member that reads DNSEndpoints."""

    def __init__(self, kube: Kube, member: Member) -> None:
        self.kube = kube
        self.member = member

    async def put(self, document: dict[str, Any], manager: str = "kubectl") -> Any:
        metadata = document["metadata"]
        path = f"{API}/namespaces/{metadata['namespace']}/dnsendpoints/{metadata['name']}"
        path = f"{path}?fieldManager={manager}&force=true"
        return await self.kube.people.request("PATCH", path, document, content_type=APPLY)

    async def delete(self, name: str, namespace: str = "default") -> None:
        path = f"{API}/namespaces/{namespace}/dnsendpoints/{name}"
        await self.kube.people.request("DELETE", path)

    def sets(self) -> dict[str, StoredObject]:
        """Record sets of DNSEndpoints, by manager."""
        objects = self.member.node.objects
        found = [objects.find(key) for key in objects.keys("DNSRecordSet")]
        return {one.manager: one for one in found if one and one.manager.startswith("dnsend")}

    def specs(self) -> dict[str, list[Any]]:
        return {
            manager.partition(":")[2]: msgspec.json.decode(stored.body.spec)["endpoints"]
            for manager, stored in self.sets().items()
        }

    def warnings(self) -> str:
        return "\n".join(self.member.cluster.warnings())

    def writes(self, *types: str) -> list[Recorded]:
        wanted = types or (OBJECT_APPLIED, OBJECT_DELETED)
        return [e for e in self.member.events(*wanted) if e.key.startswith("DNSRecordSet/")]

    async def settled(self) -> None:
        """Until what was done before was seen: what is put now is looked at after it."""
        await self.put(endpoint("probe", one("probe.lab.example", "TXT", "seen")))
        await until(lambda: "default/probe" in self.specs())
        await self.delete("probe")
        await until(lambda: "default/probe" not in self.specs())


async def a_world(kube: Kube, owner: str, **zone_spec: Any) -> Member:
    kube.free_lease()
    external = ExternalDnsSettings(**zone_spec.pop("external", {}))
    member = Member(kube, owner=owner, dns_endpoints=True, external_dns=external)
    document = zone("lab.example")
    document["spec"] |= zone_spec
    if owner == "cluster":
        await kube.apply(document)
    else:
        member.node.commit(Change(commands=(an_apply(document),), who=ALICE))
    return member


@OWNERS
def test_an_endpoint_is_served_changed_and_taken_away_with_its_object(owner: str) -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, owner)
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("web", WWW), "gitops")
            await until(world.specs)
            assert world.specs() == {"default/web": [WWW]}
            await until(lambda: member.names("lab.example"))
            (stored,) = world.sets().values()
            assert ref_of(stored.key).namespace == "default"
            (applied,) = world.writes()
            assert applied.manager == "dnsendpoint:default/web"
            who = who_of(applied)
            assert (who.actor, who.source, who.reason) == (
                "kubernetes:gitops", "kubernetes", "DNSEndpoint default/web",
            )  # fmt: skip
            new = {**WWW, "targets": ["192.0.2.2", "192.0.2.3"]}
            await world.put(endpoint("web", new))
            await until(lambda: world.specs() == {"default/web": [new]})
            await world.put(endpoint("other", one("x.lab.example", "A", "192.0.2.9")))
            await until(lambda: len(world.specs()) == 2)
            await world.delete("web")
            await until(lambda: list(world.specs()) == ["default/other"])
            (gone,) = world.writes(OBJECT_DELETED)
            assert who_of(gone).reason == "DNSEndpoints are gone: default/web"

    in_cluster(case)


@OWNERS
def test_its_generation_is_observed_once_and_a_new_term_writes_nothing(owner: str) -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, owner)
        world = World(kube, member)

        def observed() -> Any:
            found = kube.api.objects("dnsendpoints")["default/web"]
            return found.get("status", {}).get("observedGeneration")

        async with member.running():
            await world.put(endpoint("web", WWW))
            await until(lambda: observed() == 1)
            await world.put(endpoint("web", {**WWW, "recordTTL": 70}))
            await until(lambda: observed() == 2)
        patches = [call for call in kube.api.calls if call[0] == "patch"]
        written = len(world.writes())
        again = Member(kube, member.log, "node-2", owner=owner, dns_endpoints=True)
        async with again.running():
            world = World(kube, again)
            await until(lambda: again.cluster.endpoints and again.cluster.endpoints._mine)
            # It has looked at all that was there once it has looked at what comes now.
            await world.put(endpoint("next", one("n.lab.example", "A", "192.0.2.7")))
            await until(lambda: "default/next" in world.specs())
            assert len(world.writes()) == written + 1
            later = [call for call in kube.api.calls if call[0] == "patch"][len(patches) :]
            assert ("patch", "dnsendpoints", "web") not in later

    in_cluster(case)


def test_the_record_set_is_an_object_of_the_cluster_that_names_its_endpoint() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster")
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("web", WWW))
            there = await until(lambda: kube.api.objects("dnsrecordsets"))
            ((name, found),) = there.items()
            assert name.startswith("default/web.lab.example-")
            assert found["metadata"]["annotations"][MANAGED_BY] == "dnsendpoint:default/web"
            # Somebody deletes it there: it comes back, as what it is of is still there.
            await until(world.specs)
            path = f"/apis/kudurru.io/v1alpha1/namespaces/default/dnsrecordsets/{name[8:]}"
            await kube.people.request("DELETE", path)
            await until(lambda: world.writes(OBJECT_DELETED))
            await until(lambda: kube.api.objects("dnsrecordsets"))

    in_cluster(case)


@OWNERS
def test_records_of_another_manager_stay_and_the_refusal_names_it(owner: str) -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, owner)
        async with member.running():
            world = World(kube, member)
            await changes(member, an_apply(a_set("www", "198.51.100.1"), "gitops"))
            await world.put(endpoint("web", WWW, one("ok.lab.example", "A", "192.0.2.4")))
            await until(lambda: "gitops" in world.warnings())
            assert "default/web" in world.warnings()
            assert world.specs() == {}, "none of the object is carried out"
            found = kube.api.objects("dnsendpoints")["default/web"]
            assert "status" not in found
            events = await until(lambda: kube.api.objects("events"))
            (event,) = [e for e in events.values() if e["reason"] == "RecordError"]
            assert "'gitops'" in event["message"]
            assert event["involvedObject"]["kind"] == "DNSEndpoint"
            # What was in the way goes, and nobody touches the object.
            await changes(member, Delete(key=key_of("DNSRecordSet", "default", "www")))
            await until(world.specs)
            await until(lambda: "default/web" not in world.warnings())

    in_cluster(case)


def test_a_record_set_that_changes_concerns_the_objects_that_it_is_in_the_way_of() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "log")
        async with member.running():
            world = World(kube, member)
            for name in "abc":
                await changes(member, an_apply(a_set(name, "198.51.100.1"), "gitops"))
                await world.put(endpoint(name, one(f"{name}.lab.example", "A", "192.0.2.1")))
            await until(lambda: len(member.cluster.endpoints._refused) == 3)
            await until(lambda: len(member.cluster.endpoints._keys) == 0)
            looked_at: list[int] = []

            def heard(recorded: Sequence[Recorded]) -> None:
                if any(event.key.startswith("DNSRecordSet/") for event in recorded):
                    looked_at.append(len(member.cluster.endpoints._keys))

            member.writer.listeners.append(heard)
            await changes(member, an_apply(a_set("x", "198.51.100.1"), "gitops"))
            await changes(member, Delete(key=key_of("DNSRecordSet", "default", "b")))
            assert looked_at[:2] == [0, 1]
            await until(lambda: list(world.specs()) == ["default/b"])
            await until(lambda: len(member.cluster.endpoints._refused) == 2)

    in_cluster(case)


def test_of_two_endpoints_the_first_has_the_name_until_it_is_gone() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster")
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("first", WWW))
            await until(world.specs)
            await world.put(endpoint("second", {**WWW, "targets": ["192.0.2.2"]}))
            await until(lambda: "'dnsendpoint:default/first'" in world.warnings())
            assert list(world.specs()) == ["default/first"]
            await world.delete("first")
            await until(lambda: list(world.specs()) == ["default/second"])

    in_cluster(case)


def test_all_faults_of_an_endpoint_are_told_and_others_are_carried_out() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster")
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("web", WWW))
            await until(world.specs)
            broken = [
                WWW,
                one("elsewhere.example", "A", "nonsense is none of our business"),
                one("a.lab.example", "A", "nonsense"),
                one("b.lab.example", "WHAT", "x"),
                one("c..lab.example", "A", "192.0.2.1"),
            ]
            await world.put(endpoint("web", *broken))
            await world.put(endpoint("good", one("*.lab.example", "CNAME", "www.lab.example")))
            await until(lambda: "default/good" in world.specs())
            assert world.specs()["default/web"] == [WWW], "it is as it was"
            await until(lambda: "default/web" in world.warnings())
            for place in ("[2].targets[0]", "[3].recordType", "[4].dnsName"):
                assert f"spec.endpoints{place}" in world.warnings()
            typed = endpoint("typed", {"dnsName": 1}, {"targets": "x"})
            await world.put(typed)
            await until(lambda: "default/typed" in world.warnings())
            assert "spec.endpoints[0]" in world.warnings()
            assert "spec.endpoints[1]" in world.warnings()
            await world.put(endpoint("web", WWW))
            await world.put(endpoint("typed"))
            await until(lambda: "DNSEndpoint" not in world.warnings())

    in_cluster(case)


def many(count: int) -> list[dict[str, Any]]:
    return [one(f"h{i}.lab.example", "A", "192.0.2.1") for i in range(count)]


@OWNERS
def test_endpoints_that_go_with_much_of_a_zone_keep_their_records_until_that_is_allowed(
    owner: str,
) -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, owner)
        world = World(kube, member)
        async with member.running():
            for i in range(20):
                await world.put(endpoint(f"e{i}", many(20)[i]))
            await until(lambda: len(world.specs()) == 20)
        for i in range(10):
            await world.delete(f"e{i}")  # nobody sees it
        again = Member(kube, member.log, owner=owner, dns_endpoints=True)
        async with again.running():
            world = World(kube, again)
            await until(lambda: "10 of the 20" in world.warnings())
            assert "externalDNS.allowMassChange" in world.warnings()
            assert len(world.specs()) == 20
            for i in range(6):
                await world.put(endpoint(f"e{i}", many(20)[i]))
            await until(lambda: len(world.specs()) == 16)
            await until(lambda: "are gone" not in world.warnings())
        for i in range(16):
            if i < 6 or i > 9:
                await world.delete(f"e{i}")
        allowing = ExternalDnsSettings(allow_mass_change=True)
        last = Member(kube, member.log, owner=owner, dns_endpoints=True, external_dns=allowing)
        async with last.running():
            world = World(kube, last)
            await until(lambda: len(world.specs()) == 4)

    in_cluster(case)


@OWNERS
def test_endpoints_that_go_one_by_one_are_held_as_those_that_go_at_once(owner: str) -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, owner)
        world = World(kube, member)
        async with member.running():
            for i in range(20):
                await world.put(endpoint(f"e{i}", many(20)[i]))
            await until(lambda: len(world.specs()) == 20)
            for i in range(0, 6, 3):
                for name in (f"e{i}", f"e{i + 1}", f"e{i + 2}"):
                    await world.delete(name)
                await until(lambda left=17 - i: len(world.specs()) == left)
            await world.delete("e6")
            await until(lambda: "7 of the 20" in world.warnings())
            assert "externalDNS.allowMassChange" in world.warnings()
            assert len(world.specs()) == 14
            await world.put(endpoint("e0", many(20)[0]))  # it is back, and one may go for it
            await until(lambda: "default/e6" not in world.specs())
            assert len(world.specs()) == 14
            await until(lambda: "are gone" not in world.warnings())

    in_cluster(case)


def test_an_object_that_would_change_much_of_a_zone_is_refused() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster")
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("web", *many(20)))
            await until(world.specs)
            await world.put(endpoint("web", *many(10)))
            await until(lambda: "externalDNS.allowMassChange" in world.warnings())
            assert len(world.specs()["default/web"]) == 20

    in_cluster(case)


def test_an_object_that_is_made_again_at_once_keeps_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = asyncio.Event()

    async def wait(*_: object) -> None:
        """Until what is put after the deletion was seen, however long that takes."""
        await waited.wait()

    monkeypatch.setattr("kudurru.entrypoints.cluster.endpoints.pause", wait)

    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster")
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("web", WWW))
            await until(world.specs)
            await world.delete("web")
            await world.put(endpoint("web", WWW))
            await world.put(endpoint("next", one("next.lab.example", "TXT", "seen")))
            await until(lambda: "default/next" in world.specs())
            waited.set()
            await world.settled()
            assert not [e for e in world.writes(OBJECT_DELETED) if "probe" not in e.key]

    in_cluster(case)


@OWNERS
def test_a_definition_that_is_not_installed_takes_no_records_away(owner: str) -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, owner)
        world = World(kube, member)
        async with member.running():
            await world.put(endpoint("web", WWW))
            await until(world.specs)
        kube.api.absent.add("dnsendpoints")
        again = Member(kube, member.log, owner=owner, dns_endpoints=True)
        async with again.running():
            world = World(kube, again)
            await until(lambda: "dnsendpoints are not installed" in world.warnings())
            assert again.cluster.endpoints
            assert not again.cluster.endpoints._is_gone("default/web")
            assert world.specs()

    in_cluster(case)


@OWNERS
def test_while_it_is_unknown_which_cluster_it_is_no_records_are_taken_away(
    owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case(kube: Kube) -> None:
        monkeypatch.setattr("kudurru.entrypoints.cluster.endpoints.GONE_WAIT_US", 10_000)
        monkeypatch.setattr("kudurru.entrypoints.cluster.endpoints.GONE_AGAIN_US", 10_000)
        monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_AGAIN_US", 10_000)
        monkeypatch.setattr("kudurru.entrypoints.cluster.cluster.ASK_AGAIN_MAX_US", 10_000)
        member = await a_world(kube, owner)
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("web", WWW))
            await until(world.specs)
        await world.delete("web")
        kube.api.forbidden = {("get", "namespaces")}
        again = Member(kube, member.log, owner=owner, dns_endpoints=True)
        async with again.running():
            world = World(kube, again)
            await until(lambda: "records are kept: whether it is the cluster" in world.warnings())
            assert world.specs()
            kube.api.forbidden.clear()
            await until(lambda: not world.specs())

    in_cluster(case)


def test_a_namespace_that_is_not_read_any_more_keeps_its_records() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "log")
        world = World(kube, member)
        async with member.running():
            await world.put(endpoint("web", WWW, namespace="team"))
            await until(world.specs)
        await world.delete("web", "team")
        again = Member(kube, member.log, owner="log", dns_endpoints=True, namespaces=["default"])
        async with again.running():
            world = World(kube, again)
            await world.settled()
            assert list(world.specs()) == ["team/web"]

    in_cluster(case)


def test_a_zone_takes_records_of_the_namespaces_that_it_names() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster", allowedNamespaces=["default", "dns"])
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("web", WWW, namespace="team"))
            await until(lambda: "no records of the namespace team" in world.warnings())
            assert not world.specs()
            document = zone("lab.example")
            document["spec"]["allowedNamespaces"] = ["team"]
            await kube.apply(document)
            await until(lambda: list(world.specs()) == ["team/web"])

    in_cluster(case)


def test_a_catalog_is_not_changed() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster", catalog={})
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("web", one("x.zones.lab.example", "PTR", "evil.example")))
            await until(lambda: "lab.example is a catalog" in world.warnings())
            assert not world.specs()

    in_cluster(case)


def test_names_outside_of_the_domains_and_of_all_zones_are_somebody_elses() -> None:
    async def case(kube: Kube) -> None:
        narrow = {"domains": ("apps.lab.example",)}
        member = await a_world(kube, "cluster", external=narrow)
        async with member.running():
            world = World(kube, member)
            mine = one("a.apps.lab.example", "A", "192.0.2.1")
            await world.put(endpoint("theirs", WWW, one("x.other.example", "A", "192.0.2.1")))
            await world.put(endpoint("web", WWW, mine))
            await until(world.specs)
            assert world.specs() == {"default/web": [mine]}
            assert "DNSEndpoint" not in world.warnings()
            assert "status" not in kube.api.objects("dnsendpoints")["default/theirs"]

    in_cluster(case)


def test_upsert_only_changes_and_adds_and_deletes_nothing() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster", external={"policy": "upsert-only"})
        async with member.running():
            world = World(kube, member)
            old = one("old.lab.example", "A", "192.0.2.1")
            await world.put(endpoint("web", WWW, old))
            await until(world.specs)
            new = {**WWW, "targets": ["192.0.2.8"]}
            await world.put(endpoint("web", new))
            await until(lambda: world.specs() == {"default/web": [new, old]})
            await world.put(endpoint("other", one("o.lab.example", "A", "192.0.2.1")))
            await world.delete("web")
            await until(lambda: len(world.specs()) == 2)

    in_cluster(case)


def test_a_dry_run_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster", external={"dry_run": True})
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("web", WWW))
            await until(lambda: "DNSEndpoint default/web, a dry run: 1 record" in caplog.text)
            assert not world.specs()
            assert "status" not in kube.api.objects("dnsendpoints")["default/web"]

    in_cluster(case)


def test_a_zone_that_goes_and_comes_back_finds_its_records() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster")
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("web", WWW, one("w.other.example", "A", "192.0.2.5")))
            await until(world.specs)
            await kube.apply(zone("other.example"))
            await until(lambda: member.names("other.example"))
            await kube.delete(zone("lab.example"))
            await until(lambda: member.node.zones.find("lab.example") is None)
            await world.put(endpoint("web", one("w.other.example", "A", "192.0.2.6")))
            await kube.apply(zone("lab.example"))
            await until(lambda: not member.names("lab.example"))
            await until(lambda: len(world.writes(OBJECT_DELETED)) == 1)
            assert world.specs() == {"default/web": [one("w.other.example", "A", "192.0.2.6")]}, (
                "what is not wanted any more goes once its zone is back"
            )

    in_cluster(case)


def test_what_only_claims_to_be_of_an_endpoint_is_set_right_or_left_alone() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster")
        async with member.running():
            world = World(kube, member)
            await world.put(endpoint("web", WWW))
            await until(world.specs)
            forged = a_set("forged", "203.0.113.1")
            forged["metadata"]["annotations"] = {MANAGED_BY: "dnsendpoint:default/web"}
            await kube.apply(forged, "kubectl")
            abroad = a_set("abroad", "203.0.113.1")
            abroad["metadata"]["namespace"] = "team"
            abroad["metadata"]["annotations"] = {MANAGED_BY: "dnsendpoint:default/web"}
            await kube.apply(abroad, "kubectl")
            await until(lambda: "default/forged" not in kube.api.objects("dnsrecordsets"))
            await world.settled()
            assert "team/abroad" in kube.api.objects("dnsrecordsets")

    in_cluster(case)


def test_only_the_node_that_leads_writes() -> None:
    async def case(kube: Kube) -> None:
        first = await a_world(kube, "cluster")
        second = Member(kube, name="node-2", dns_endpoints=True)
        async with first.running():
            await until(lambda: first.elector is not None and first.cluster.leading.is_leader)
            async with second.running():
                await World(kube, first).put(endpoint("web", WWW))
                await until(World(kube, second).specs)
                await until(lambda: World(kube, second).specs() == World(kube, first).specs())
                assert second.actors(OBJECT_APPLIED)[-1] == "kubernetes:dnsendpoint:default/web"
                creations = [
                    call for call in kube.api.calls if call[:2] == ("patch", "dnsrecordsets")
                ]
                assert len({name for _, _, name in creations}) == 1
                assert not second.events(MIRROR_INTENDED)

    in_cluster(case)


def test_rights_that_are_missing_are_named() -> None:
    async def case(kube: Kube) -> None:
        member = await a_world(kube, "cluster")
        kube.api.forbidden.add(("list", "dnsendpoints"))
        async with member.running():
            world = World(kube, member)
            await until(lambda: "feature external-dns lacks the verb list" in world.warnings())
            await until(lambda: "DNSEndpoints are not read" in world.warnings())

    in_cluster(case)
