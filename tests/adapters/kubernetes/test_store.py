"""What a store in Kubernetes meets that others do not: people with kubectl, missing rights, an API
server that is away. What every store does is shown on a real server, in tests/kube."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kudurru.adapters.kubernetes import store as kubernetes_store
from kudurru.adapters.kubernetes.fakes.network import Response
from kudurru.adapters.kubernetes.store import ROUNDS, KubernetesStore, Place
from kudurru.adapters.memory.clock import SeededEntropy
from kudurru.domain.errors import Conflict, Invalid, ManagedBy, MassChange, StorageFailed
from kudurru.domain.kinds.meta import LAST_APPLIED, MANAGED_BY
from kudurru.domain.objects import key_of
from tests.adapters.kubernetes.worlds import World, in_world
from tests.conformance.store import test_mass_change
from tests.conformance.store.drivers import Case
from tests.objects import Document, document, endpoint

GROUPS = "/apis/kudurru.io/v1alpha1/namespaces/default/clientgroups"
KEY = key_of("ClientGroup", "default", "laptops")


def group(ip: str = "192.0.2.1", **metadata: Any) -> Document:
    return document("ClientGroup", "laptops", {"clients": [{"ip": ip}]}, **metadata)


def store_of(world: World) -> KubernetesStore:
    return KubernetesStore(
        world.client(), Place("default", "pod"), entropy=SeededEntropy(1), chance=random.Random(1)
    )


async def kubectl(world: World, body: Document, *, server_side: bool = True) -> None:
    if server_side:
        path = f"{GROUPS}/laptops?fieldManager=kubectl"
        await world.people.request("PATCH", path, body, content_type="application/apply-patch+yaml")
    else:
        path = f"{GROUPS}?fieldManager=kubectl-client-side-apply"
        annotations = {LAST_APPLIED: "{}"}
        body = body | {"metadata": body["metadata"] | {"annotations": annotations}}
        await world.people.request("POST", path, body)


def test_fields_that_kubectl_owns_conflict_by_its_name_and_force_takes_them() -> None:
    async def case(world: World) -> None:
        store = store_of(world)
        await kubectl(world, group(labels={"a": "b"}))
        with pytest.raises(ManagedBy) as refused:
            await store.apply(group("198.51.100.1"), "alice")
        assert refused.value.owner == "kubectl"
        await store.apply(group("198.51.100.1"), "alice", force=True)
        found = await store.get(KEY)
        assert found["spec"] == group("198.51.100.1")["spec"]
        assert found["metadata"]["annotations"] == {MANAGED_BY: "alice"}
        assert "labels" not in found["metadata"]

    in_world(case)


def test_what_kubectl_made_and_nobody_manages_may_be_applied_as_it_is() -> None:
    async def case(world: World) -> None:
        store = store_of(world)
        await kubectl(world, group(), server_side=False)
        assert (await store.apply(group(), "alice")).verb == "configured"
        begun = len(world.api.calls)
        assert (await store.apply(group(), "alice")).verb == "unchanged"
        assert [verb for verb, _, _ in world.api.calls[begun:]] == ["get"]  # nothing is written

    in_world(case)


def test_the_owner_of_an_object_is_named_and_not_its_field_manager() -> None:
    async def case(world: World) -> None:
        store = store_of(world)
        long = "größe/" + "x" * 200
        await store.apply(group(), long)
        with pytest.raises(ManagedBy) as refused:
            await store.apply(group(), "bob")
        assert refused.value.owner == long

    in_world(case)


def case_of(case: Case) -> Callable[[World], Awaitable[None]]:
    return lambda world: case(store_of(world))


@pytest.mark.parametrize(
    "case",
    [
        test_mass_change.test_much_of_a_zone_is_lost_only_when_it_is_meant,
        test_mass_change.test_a_few_records_of_a_zone_go_without_more_ado,
        test_mass_change.test_name_servers_that_go_count_as_other_records_do,
        test_mass_change.test_another_ttl_of_name_servers_loses_nothing,
        test_mass_change.test_name_servers_make_no_zone_large,
    ],
    ids=lambda test: test.__name__,
)
def test_the_mass_change_guard_is_that_of_every_store(case: Any) -> None:
    in_world(case_of(case.__dict__["case"]))


def test_a_few_records_ask_for_no_others_and_more_of_them_until_the_zone_is_large_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubernetes_store, "PAGE", 25)

    def host(i: int, *addresses: str) -> Document:
        spec = {
            "zoneRef": {"name": "example.org"},
            "endpoints": [endpoint(f"h{i}.example.org", "A", *addresses)],
        }
        return document("DNSRecordSet", f"h{i:03}", spec)

    async def case(world: World) -> None:
        store = store_of(world)
        zone = document("DNSZone", "example.org", {"zoneName": "example.org"})
        several = [f"192.0.2.{i}" for i in range(6)]
        await store.apply_many(
            [zone, host(0, *several), *(host(i, "192.0.2.9") for i in range(1, 95))], "a"
        )
        listed = world.api.calls
        for change, pages in ((host(1, "192.0.2.8"), 0), (host(0, "192.0.2.7"), 1)):
            begun = len(listed)
            await store.apply(change, "a")
            verbs = [verb for verb, _, _ in listed[begun:]]
            assert verbs.count("list") == pages
        with pytest.raises(MassChange) as refused:
            await store.apply(
                document("DNSZone", "example.org", {"zoneName": "example.org", "defaultTTL": 9}),
                "a",
            )
        assert (refused.value.changed, refused.value.total) == (95, 95)
        with pytest.raises(ManagedBy):
            await store.delete(key_of("DNSZone", "", "example.org"), manager="bob")

    in_world(case)


@pytest.mark.parametrize(
    "spec",
    [
        {"zoneName": "example.org", "nameservers": ["ns1..example.org"]},
        {"zoneName": "example.org", "nameservers": ["ns1.example.org", "x" * 64 + ".example.org"]},
        {"zoneName": "example..org"},
    ],
)
def test_a_zone_whose_names_are_none_is_in_nobodys_way(spec: dict[str, Any]) -> None:
    zones = "/apis/kudurru.io/v1alpha1/dnszones"

    def host(address: str) -> Document:
        endpoints = [endpoint("h.example.org", "A", address)]
        return document("DNSRecordSet", "h", {"zoneRef": {"name": "z"}, "endpoints": endpoints})

    async def kubectl_applies(world: World) -> None:
        path, body = f"{zones}/z?fieldManager=kubectl", document("DNSZone", "z", spec)
        await world.people.request("PATCH", path, body, content_type="application/apply-patch+yaml")

    async def case(world: World) -> None:
        store = store_of(world)
        await kubectl_applies(world)
        await store.apply(host("192.0.2.1"), "alice")
        await store.apply(host("192.0.2.2"), "alice")
        mended = {"zoneName": "example.org", "nameservers": ["ns2.example.org"]}
        await store.apply(document("DNSZone", "z", mended), "alice", force=True)
        await store.delete(key_of("DNSZone", "", "z"))
        await kubectl_applies(world)
        await store.delete(key_of("DNSZone", "", "z"), force=True)

    in_world(case)


@pytest.mark.parametrize("verb", ["get", "create", "patch", "delete", "list", "update"])
def test_a_verb_that_is_missing_is_named(verb: str) -> None:
    async def case(world: World) -> None:
        store = store_of(world)
        if verb != "create":
            await store.apply(group(), "alice")
        world.api.forbidden.add((verb, "clientgroups"))
        status = {"metadata": {"name": "laptops", "resourceVersion": "1"}}
        attempts = {
            "get": lambda: store.get(KEY),
            "create": lambda: store.apply(group(), "alice"),
            "patch": lambda: store.apply(group("198.51.100.1"), "alice"),
            "delete": lambda: store.delete(KEY),
            "list": lambda: store.list("ClientGroup"),
            "update": lambda: store.update_status(group() | status, "carol"),
        }
        with pytest.raises(StorageFailed, match=f'cannot {verb} resource "clientgroups"'):
            await attempts[verb]()

    in_world(case)


def test_who_may_not_watch_gets_the_list_and_the_rest_once_he_may() -> None:
    async def case(world: World) -> None:
        store = store_of(world)
        await store.apply(group(), "alice")
        world.api.forbidden.add(("watch", "clientgroups"))
        watch = await store.watch("ClientGroup")
        assert [(await anext(watch)).type for _ in range(2)] == ["Added", "Bookmark"]
        await store.apply(group("198.51.100.1"), "alice")
        world.api.forbidden.clear()
        assert (await anext(watch)).type == "Modified"
        await store.close()

    in_world(case)


def test_an_api_server_that_is_away_cannot_be_asked() -> None:
    async def case(world: World) -> None:
        store = store_of(world)
        await store.apply(group(), "alice")
        contact = (await store.info()).last_contact
        await asyncio.sleep(5)
        world.server.down()
        with pytest.raises(StorageFailed):
            await store.get(KEY)
        with pytest.raises(StorageFailed):
            await store.apply(group("198.51.100.1"), "alice")
        assert store._client.transport.last_contact_us == contact
        world.server.up()
        assert (await store.get(KEY))["spec"] == group()["spec"]
        assert (await store.info()).last_contact > contact

    in_world(case)


def test_an_object_that_always_moves_is_given_up_after_some_rounds() -> None:
    async def case(world: World) -> None:
        store = store_of(world)
        await store.apply(group(), "alice")

        def interfere(verb: str, plural: str, name: str) -> Response | None:
            return Response(409, b'{"code":409,"reason":"Conflict"}') if verb == "patch" else None

        world.api.interfere = interfere
        begun = len(world.api.calls)
        with pytest.raises(Conflict, match="try again"):
            await store.apply(group("198.51.100.1"), "alice")
        verbs = [verb for verb, _, _ in world.api.calls[begun:]]
        assert verbs == ["get", "patch"] * ROUNDS

    in_world(case)


def test_an_object_that_moved_once_is_checked_again() -> None:
    async def case(world: World) -> None:
        store, other = store_of(world), store_of(world)
        await store.apply(group(), "alice")
        moved = asyncio.Event()

        def interfere(verb: str, plural: str, name: str) -> Response | None:
            if verb != "patch" or moved.is_set():
                return None
            moved.set()
            return Response(409, b'{"code":409,"reason":"Conflict"}')

        world.api.interfere = interfere
        writing = asyncio.ensure_future(store.apply(group("198.51.100.1"), "alice"))
        await moved.wait()
        await other.apply(group("203.0.113.1"), "bob", force=True)
        with pytest.raises(ManagedBy) as refused:
            await writing
        assert refused.value.owner == "bob"

    in_world(case)


def test_internal_kinds_are_not_kept_there() -> None:
    async def case(world: World) -> None:
        with pytest.raises(Invalid, match="not kept in Kubernetes"):
            await store_of(world).list("TSIGKey")

    in_world(case)
