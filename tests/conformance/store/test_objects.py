"""What every store does with objects: ownership, versions, status, lists, batches."""

import asyncio
from typing import Any

import pytest

from kudurru.domain.errors import (
    Closed,
    Conflict,
    Invalid,
    ManagedBy,
    NotFound,
    PartiallyApplied,
)
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.objects import Key, key_of
from kudurru.domain.ports import Store
from tests.conformance.store.drivers import on_every_store
from tests.objects import Document, document

ZONE = key_of("DNSZone", "", "example.org")


def zone(name: str = "example.org", **spec: Any) -> Document:
    return document("DNSZone", name, {"zoneName": f"{name}.", **spec})


def group(name: str, *, ip: str = "192.0.2.1", **metadata: Any) -> Document:
    return document("ClientGroup", name, {"clients": [{"ip": ip}]}, **metadata)


def group_key(name: str, namespace: str = "default") -> Key:
    return key_of("ClientGroup", namespace, name)


def version(found: dict[str, Any]) -> str:
    return str(found["metadata"]["resourceVersion"])


def generation(found: dict[str, Any]) -> int:
    return int(found["metadata"]["generation"])


async def names(
    store: Store, kind: str, namespace: str | None = None, selector: str = ""
) -> set[str]:
    page = await store.list(kind, namespace, selector)
    assert page.continue_ == ""
    return {item["metadata"]["name"] for item in page.items}


@on_every_store
async def test_a_new_object_has_a_manager_a_uid_a_version_and_generation_one(store: Store) -> None:
    outcome = await store.apply(zone(), "alice")
    found = await store.get(ZONE)
    assert outcome.verb == "created"
    assert outcome.resource_version == version(found) != ""
    assert found["metadata"]["annotations"] == {MANAGED_BY: "alice"}
    assert found["metadata"]["uid"]
    assert found["metadata"]["creationTimestamp"].endswith("Z")
    assert generation(found) == 1
    assert found["spec"] == {"zoneName": "example.org."}


@on_every_store
async def test_another_manager_is_refused(store: Store) -> None:
    await store.apply(zone(), "alice")
    before = await store.get(ZONE)
    with pytest.raises(ManagedBy) as refused:
        await store.apply(zone(defaultTTL=600), "bob")
    assert refused.value.owner == "alice"
    with pytest.raises(ManagedBy) as refused:
        await store.delete(ZONE, manager="bob")
    assert refused.value.owner == "alice"
    assert await store.get(ZONE) == before


@on_every_store
async def test_of_eight_managers_that_race_to_create_one_object_one_wins(store: Store) -> None:
    managers = [f"manager-{number}" for number in range(8)]
    results = await asyncio.gather(
        *(store.apply(zone(defaultTTL=60 + i), m) for i, m in enumerate(managers)),
        return_exceptions=True,
    )
    (winner,) = [m for m, r in zip(managers, results, strict=True) if not isinstance(r, Exception)]
    lost = [result for result in results if isinstance(result, Exception)]
    assert [type(error) for error in lost] == [ManagedBy] * 7
    assert {error.owner for error in lost if isinstance(error, ManagedBy)} == {winner}
    found = await store.get(ZONE)
    assert found["metadata"]["annotations"][MANAGED_BY] == winner
    assert found["spec"]["defaultTTL"] == 60 + managers.index(winner)


@on_every_store
async def test_force_takes_over_the_whole_object_and_leaves_the_status(store: Store) -> None:
    metadata = {"labels": {"team": "a"}, "annotations": {"example.org/note": "mine"}}
    first = {**zone(defaultTTL=600), "metadata": {"name": "example.org", **metadata}}
    await store.apply(first, "alice")
    await put_status(store, ZONE, {"recordCount": 7})
    status = (await store.get(ZONE))["status"]
    await store.apply(zone(), "bob", force=True)
    found = await store.get(ZONE)
    assert found["spec"] == {"zoneName": "example.org."}
    assert "labels" not in found["metadata"]
    assert found["metadata"]["annotations"] == {MANAGED_BY: "bob"}
    assert found["status"] == status


@on_every_store
async def test_a_stale_or_unknown_version_is_a_conflict_and_writes_nothing(store: Store) -> None:
    await store.apply(zone(), "alice")
    stale = version(await store.get(ZONE))
    await store.apply(zone(defaultTTL=600), "alice", expected_resource_version=stale)
    before = await store.get(ZONE)
    for wrong in (stale, "1", "999999999999999999", "nonsense"):
        with pytest.raises(Conflict):
            await store.apply(zone(defaultTTL=60), "alice", expected_resource_version=wrong)
        with pytest.raises(Conflict):
            await store.apply(
                zone(defaultTTL=60), "alice", expected_resource_version=wrong, force=True
            )
        with pytest.raises(Conflict):
            await store.delete(ZONE, expected_resource_version=wrong)
    assert await store.get(ZONE) == before


@on_every_store
async def test_an_expected_version_never_creates(store: Store) -> None:
    with pytest.raises(Conflict):
        await store.apply(zone(), "alice", expected_resource_version="1")
    await store.apply(zone(), "alice")
    old = version(await store.get(ZONE))
    await store.delete(ZONE)
    with pytest.raises(Conflict):
        await store.apply(zone(), "alice", expected_resource_version=old)
    with pytest.raises(NotFound):
        await store.get(ZONE)


@on_every_store
async def test_an_identical_apply_writes_nothing(store: Store) -> None:
    await store.apply(zone(), "alice")
    before = await store.get(ZONE)
    outcome = await store.apply(zone(), "alice", expected_resource_version=version(before))
    assert (outcome.verb, outcome.resource_version) == ("unchanged", version(before))
    assert await store.get(ZONE) == before


@on_every_store
async def test_a_spec_change_moves_version_and_generation(store: Store) -> None:
    await store.apply(zone(defaultTTL=300), "alice")
    before = await store.get(ZONE)
    outcome = await store.apply(zone(defaultTTL=600), "alice")
    after = await store.get(ZONE)
    assert outcome.verb == "configured"
    assert version(after) != version(before)
    assert generation(after) == generation(before) + 1
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


@on_every_store
async def test_a_change_of_labels_or_annotations_moves_the_version_only(store: Store) -> None:
    await store.apply(group("laptops"), "alice")
    for metadata in ({"labels": {"a": "b"}}, {"annotations": {"example.org/note": "x"}}):
        before = await store.get(group_key("laptops"))
        await store.apply(group("laptops", **metadata), "alice")
        after = await store.get(group_key("laptops"))
        assert version(after) != version(before)
        assert generation(after) == generation(before) == 1


@on_every_store
async def test_a_status_in_an_apply_is_not_written(store: Store) -> None:
    await store.apply({**group("laptops"), "status": {"observedGeneration": 9}}, "alice")
    assert "status" not in await store.get(group_key("laptops"))


async def put_status(store: Store, key: Key, status: dict[str, Any], manager: str = "carol") -> str:
    """The version of the object with that status."""
    found = await store.get(key)
    outcome = await store.update_status({**found, "status": status}, manager)
    return outcome.resource_version


@on_every_store
async def test_a_status_write_keeps_everything_else(store: Store) -> None:
    await store.apply(group("laptops", labels={"a": "b"}), "alice")
    before = await store.get(group_key("laptops"))
    changed = {**group("laptops", ip="198.51.100.1"), "status": {"observedGeneration": 1}}
    changed["metadata"] = {"name": "laptops", "resourceVersion": version(before)}
    outcome = await store.update_status(changed, "carol")
    after = await store.get(group_key("laptops"))
    assert after["status"] == {"observedGeneration": 1}
    assert after["spec"] == before["spec"]
    assert outcome.resource_version == version(after) != version(before)
    expected = {**before["metadata"], "resourceVersion": version(after)}
    assert after["metadata"] == expected


@on_every_store
async def test_a_status_write_must_be_of_the_newest_version(store: Store) -> None:
    await store.apply(group("laptops"), "alice")
    base = await store.get(group_key("laptops"))
    await store.apply(group("laptops", ip="198.51.100.1"), "alice")
    with pytest.raises(Conflict):
        await store.update_status({**base, "status": {"observedGeneration": 1}}, "carol")
    assert "status" not in await store.get(group_key("laptops"))
    without = {**base, "metadata": {"name": "laptops"}, "status": {"observedGeneration": 1}}
    with pytest.raises(Invalid):
        await store.update_status(without, "carol")


@on_every_store
async def test_a_status_write_on_ones_own_write_that_was_not_read_back_is_checked(
    store: Store,
) -> None:
    await store.apply(group("laptops"), "alice")
    base = await store.get(group_key("laptops"))
    first = await store.update_status({**base, "status": {"observedGeneration": 1}}, "carol")
    with pytest.raises(Conflict):
        await store.update_status({**base, "status": {"observedGeneration": 2}}, "carol")
    newer = {**base["metadata"], "resourceVersion": first.resource_version}
    again = {**base, "metadata": newer, "status": {"observedGeneration": 2}}
    await store.update_status(again, "carol")
    assert (await store.get(group_key("laptops")))["status"] == {"observedGeneration": 2}


@on_every_store
async def test_an_unchanged_status_writes_nothing(store: Store) -> None:
    await store.apply(group("laptops"), "alice")
    at = await put_status(store, group_key("laptops"), {"observedGeneration": 1})
    assert await put_status(store, group_key("laptops"), {"observedGeneration": 1}) == at


@on_every_store
async def test_what_is_not_there_is_not_found(store: Store) -> None:
    key = group_key("laptops")
    with pytest.raises(NotFound):
        await store.get(key)
    with pytest.raises(NotFound):
        await store.delete(key)
    absent = group("laptops", resourceVersion="1")
    with pytest.raises(NotFound):
        await store.update_status({**absent, "status": {"observedGeneration": 1}}, "carol")
    await store.apply(group("laptops"), "alice")
    await store.delete(key)
    with pytest.raises(NotFound):
        await store.get(key)
    with pytest.raises(NotFound):
        await store.delete(key)


@on_every_store
async def test_a_name_that_comes_back_is_a_new_object(store: Store) -> None:
    await store.apply(group("laptops"), "alice")
    await put_status(store, group_key("laptops"), {"observedGeneration": 1})
    before = await store.get(group_key("laptops"))
    await store.delete(group_key("laptops"), expected_resource_version=version(before))
    await store.apply(group("laptops"), "bob")
    after = await store.get(group_key("laptops"))
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert version(after) != version(before)
    assert generation(after) == 1
    assert "status" not in after


@on_every_store
async def test_a_list_is_of_one_kind_one_namespace_and_the_labels_asked_for(store: Store) -> None:
    for name, namespace, labels in (
        ("a", "default", {"tier": "gold"}),
        ("b", "default", {"tier": "tin"}),
        ("c", "default", {}),
        ("d", "team", {"tier": "gold"}),
    ):
        await store.apply(group(name, namespace=namespace, labels=labels), "alice")
    await store.apply(document("BlockList", "ads", {"sources": [{"inline": ["ads.example"]}]}), "a")
    assert await names(store, "ClientGroup") == {"a", "b", "c", "d"}
    assert await names(store, "ClientGroup", "default") == {"a", "b", "c"}
    assert await names(store, "ClientGroup", "team") == {"d"}
    assert await names(store, "ClientGroup", "tea") == set()
    assert await names(store, "BlockList") == {"ads"}
    assert await names(store, "DNSZone") == set()
    for selector, expected in (
        ("tier=gold", {"a", "d"}),
        ("tier!=gold", {"b", "c"}),
        ("tier", {"a", "b", "d"}),
        ("!tier", {"c"}),
        ("tier,tier!=tin", {"a", "d"}),
    ):
        assert await names(store, "ClientGroup", None, selector) == expected, selector
    assert await names(store, "ClientGroup", "default", "tier=gold") == {"a"}


@on_every_store
async def test_all_pages_of_a_list_show_one_moment(store: Store) -> None:
    for number in range(10):
        await store.apply(group(f"g{number}", ip="192.0.2.1"), "alice")
    await put_status(store, group_key("g7"), {"observedGeneration": 1})
    whole = (await store.list("ClientGroup")).items
    page = await store.list("ClientGroup", limit=3)
    items, seen = list(page.items), page.resource_version
    await store.delete(group_key("g5"))
    await store.apply(group("g5", ip="198.51.100.5"), "alice")
    await store.delete(group_key("g6"))
    await store.apply(group("g7", ip="198.51.100.7"), "alice")
    await store.apply(group("g77"), "alice")
    while page.continue_:
        page = await store.list("ClientGroup", limit=3, continue_=page.continue_)
        assert page.resource_version == seen
        items += page.items
        await store.apply(group("g8", ip=f"198.51.100.{len(items)}"), "alice")
    assert items == whole
    assert await names(store, "ClientGroup") == {f"g{n}" for n in (0, 1, 2, 3, 4, 5, 7, 8, 9, 77)}


@on_every_store
async def test_a_page_of_no_list_is_refused(store: Store) -> None:
    await store.apply(group("a"), "alice")
    for wrong in ("nonsense", "1 ClientGroup/default/a", "99999999999999 x"):
        with pytest.raises((Invalid, Conflict)):
            await store.list("ClientGroup", continue_=wrong)


@on_every_store
async def test_a_dry_run_decides_and_writes_nothing(store: Store) -> None:
    assert (await store.apply(group("a"), "alice", dry_run=True)).verb == "created"
    with pytest.raises(NotFound):
        await store.get(group_key("a"))
    await store.apply(group("a"), "alice")
    before = await store.get(group_key("a"))
    outcome = await store.apply(group("a", ip="198.51.100.1"), "alice", dry_run=True)
    assert outcome.verb == "configured"
    with pytest.raises(ManagedBy):
        await store.apply(group("a"), "bob", dry_run=True)
    assert await store.get(group_key("a")) == before


@on_every_store
async def test_every_fault_of_an_object_is_named_and_nothing_is_written(store: Store) -> None:
    faulty = document("ClientGroup", "Wrong_Name", {"clients": [{"ip": "300.1.1.1"}], "x": 1})
    with pytest.raises(Invalid) as refused:
        await store.apply(faulty, "alice")
    fields = {cause.field for cause in refused.value.causes}
    assert {"metadata.name", "spec.clients[0].ip", "spec.x"} <= fields
    for kind, manager in (("Gizmo", "alice"), ("ClientGroup", "")):
        with pytest.raises(Invalid):
            await store.apply(document(kind, "a", {}), manager)
    with pytest.raises(Invalid):
        await store.list("Gizmo")
    assert await names(store, "ClientGroup") == set()


@on_every_store
async def test_a_manager_keeps_its_whole_name(store: Store) -> None:
    for name, manager in (("a", "x" * 300), ("b", "tab\tand bell\x07"), ("c", "größe/測試")):
        await store.apply(group(name), manager)
        found = await store.get(group_key(name))
        assert found["metadata"]["annotations"][MANAGED_BY] == manager
        with pytest.raises(ManagedBy) as refused:
            await store.apply(group(name), manager[:-1])
        assert refused.value.owner == manager
        assert (await store.apply(group(name), manager)).verb == "unchanged"


@on_every_store
async def test_a_batch_comes_as_one(store: Store) -> None:
    await store.apply(group("old"), "alice")
    outcomes = await store.apply_many(
        [group("a"), zone(), group("b")], "alice", delete=[group_key("old")], reason="move"
    )
    assert [o.verb for o in outcomes] == ["created", "created", "created", "deleted"]
    assert [o.key for o in outcomes[:3]] == [group_key("a"), ZONE, group_key("b")]
    assert await names(store, "ClientGroup") == {"a", "b"}
    for outcome in outcomes[:3]:
        assert outcome.resource_version == version(await store.get(outcome.key))


@on_every_store
async def test_a_batch_with_a_refused_object_writes_what_the_store_promises(store: Store) -> None:
    await store.apply(group("theirs"), "bob")
    batch = [group("a"), group("theirs", ip="198.51.100.1"), group("c")]
    if (await store.info()).atomic_batches:
        with pytest.raises(ManagedBy):
            await store.apply_many(batch, "alice")
    else:
        # It is tried before it is written, so a refusal that can be seen writes nothing either.
        with pytest.raises((ManagedBy, PartiallyApplied)) as refused:
            await store.apply_many(batch, "alice")
        assert not isinstance(refused.value, PartiallyApplied) or refused.value.done == ()
    assert await names(store, "ClientGroup") == {"theirs"}
    with pytest.raises(Invalid):
        await store.apply_many([group("a"), group("Wrong_Name")], "alice")
    with pytest.raises(NotFound):
        await store.apply_many([group("a")], "alice", delete=[group_key("absent")])
    assert await names(store, "ClientGroup") == {"theirs"}
    assert await store.apply_many([], "alice") == []


@on_every_store
async def test_batches_that_race_are_each_whole(store: Store) -> None:
    async def put(number: int) -> None:
        batch = [group(name, ip=f"192.0.2.{number}") for name in ("a", "b", "c")]
        await store.apply_many(batch, "alice")

    await asyncio.gather(*(put(number) for number in range(1, 17)))
    if (await store.info()).atomic_batches:
        page = await store.list("ClientGroup")
        assert len({item["spec"]["clients"][0]["ip"] for item in page.items}) == 1


@on_every_store
async def test_a_snapshot_brings_everything_back(store: Store) -> None:
    await store.apply(zone(), "alice")
    await store.apply(group("a", labels={"x": "y"}), "bob")
    await store.apply(group("b", namespace="team"), "carol")
    snapshot = await store.snapshot(safe=True)
    assert snapshot.cluster_id == (await store.info()).cluster_id
    assert len(snapshot.objects) == 3
    await store.apply(group("a", ip="198.51.100.1"), "mallory", force=True)
    await store.delete(group_key("b", "team"))
    await store.apply(group("new"), "mallory")
    dry = await store.restore(snapshot, dry_run=True)
    assert await names(store, "ClientGroup") == {"a", "new"}
    outcomes = await store.restore(snapshot, reason="as it was")
    assert [(o.verb, o.key) for o in outcomes] == [(o.verb, o.key) for o in dry]
    assert {(o.verb, o.key) for o in outcomes} == {
        ("configured", group_key("a")),
        ("created", group_key("b", "team")),
        ("deleted", group_key("new")),
    }
    for before in snapshot.objects:
        meta = before["metadata"]
        after = await store.get(key_of(before["kind"], meta.get("namespace", ""), meta["name"]))
        assert after["spec"] == before["spec"]
        assert after["metadata"].get("labels") == meta.get("labels")
        assert after["metadata"]["annotations"] == meta["annotations"]
    assert await store.restore(snapshot) == []


@on_every_store
async def test_a_store_says_what_it_is(store: Store) -> None:
    before = await store.info()
    assert before.driver
    assert before.cluster_id
    assert (before.last_contact == 0) == (before.driver in ("memory", "sqlite"))
    await store.apply(group("a"), "alice")
    after = await store.info()
    assert after.cluster_id == before.cluster_id
    assert after.resource_version != before.resource_version
    assert after.last_contact >= before.last_contact


@on_every_store
async def test_one_leads_at_a_time(store: Store) -> None:
    first, second = store.elector("controller"), store.elector("controller")
    other = store.elector("other")
    await first.campaign()
    await other.campaign()
    waiting = asyncio.create_task(second.campaign())
    lost = asyncio.create_task(first.lost())
    done, _ = await asyncio.wait([waiting, lost], timeout=0.3)
    assert not done
    await first.resign()
    await first.resign()
    await waiting
    await lost
    await second.resign()
    await other.resign()


@on_every_store
async def test_a_closed_store_does_nothing_more(store: Store) -> None:
    await store.apply(group("a"), "alice")
    watch = await store.watch("ClientGroup")
    await store.close()
    await store.close()
    assert [event async for event in watch] == []
    for call in (
        store.apply(group("b"), "alice"),
        store.get(group_key("a")),
        store.delete(group_key("a")),
        store.list("ClientGroup"),
        store.watch("ClientGroup"),
        store.snapshot(),
        store.info(),
        store.apply_many([group("b")], "alice"),
    ):
        with pytest.raises(Closed):
            await call
