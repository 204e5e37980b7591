"""Catalog zones of a node, over a client in memory."""

import asyncio

from kudurru.domain.commands import Revert
from kudurru.domain.dns import names
from kudurru.domain.objects import key_of
from kudurru.domain.reconcile.catalogs import CATALOG_GROUP, MEMBER
from kudurru.entrypoints.catalogs import Catalogs
from kudurru.entrypoints.wiring import Node
from tests.entrypoints.test_secondaries import FIRST, HOURS, Scene, run
from tests.nodes import a_change, rebuilt
from tests.objects import drop, endpoint, put, record_set, zone
from tests.primaries import whole

CAT = "cat.example"


def use_catalogs(use):
    """The scene of secondaries with the runnable of catalogs."""

    async def wrapped(scene: Scene) -> None:
        catalogs = Catalogs(scene.node, scene.writer)
        scene.writer.listeners.append(catalogs.heard)
        task = asyncio.create_task(catalogs.run())
        try:
            await use(scene)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return wrapped


def consumer(name: str = CAT, **catalog: object):
    secondary = {"primaries": [{"address": FIRST}]}
    return put(zone(name, type="Secondary", secondary=secondary, catalog=catalog))


def zones(node: Node) -> dict[str, str]:
    """Managers of the DNSZones, by name."""
    found = (node.objects.find(key) for key in node.objects.keys("DNSZone"))
    return {one.key.rpartition("/")[2]: one.manager for one in found if one}


def say(scene: Scene, serial: int, *lines: str, of: str = CAT) -> None:
    scene.script.steps[of] = whole(serial, 'version 0 TXT "2"', *lines, timers=HOURS)


async def condition(scene: Scene, of: str = CAT) -> tuple[str, str]:
    await scene.settled()
    stored = scene.node.objects.find(key_of("DNSZone", "", of))
    assert stored is not None
    found = [c for c in (stored.status or {})["conditions"] if c["type"] == "CatalogFollowed"]
    return found[0]["status"], found[0]["message"]


def test_members_come_and_go_with_their_catalog() -> None:
    async def use(scene: Scene) -> None:
        for member in ("a.example", "b.example"):
            scene.script.steps[member] = whole(7, 'www 60 TXT "w"', timers=HOURS)
        say(scene, 1, "m1.zones 0 PTR a.example.", "m2.zones 0 PTR b.example.")
        await scene.writer.submit(a_change(consumer()))
        await scene.until(lambda: len(zones(scene.node)) == 3)
        assert zones(scene.node)["a.example"] == f"catalog:{CAT}"
        await scene.until(lambda: all(z.is_available for z in scene.node.zones.served))
        say(scene, 2, "m2.zones 0 PTR b.example.")
        scene.pass_time(3600)
        await scene.until(lambda: "a.example" not in zones(scene.node))
        await scene.until(lambda: "www.a.example" not in scene.sets())
        assert "www.b.example" in scene.sets()
        # ... and all of them go with the catalog, and come back when that is undone.
        await scene.writer.submit(a_change(drop(key_of("DNSZone", "", CAT))))
        await scene.until(lambda: not zones(scene.node))

    node = run(use_catalogs(use))
    assert rebuilt(node).views.digests() == node.views.digests()


def test_a_catalog_that_does_not_change_writes_nothing() -> None:
    async def use(scene: Scene) -> None:
        say(scene, 1, "m1.zones 0 PTR a.example.")
        await scene.writer.submit(a_change(consumer()))
        await scene.until(lambda: "a.example" in zones(scene.node))
        await scene.settled()
        before = scene.node.position
        for _ in range(3):
            scene.pass_time(3600)
            await scene.settled()
        assert all("cat" not in e.key for e in scene.node.log.read(before))

    run(use_catalogs(use))


def test_a_broken_catalog_changes_nothing_and_says_why() -> None:
    async def use(scene: Scene) -> None:
        say(scene, 1, "m1.zones 0 PTR a.example.")
        await scene.writer.submit(a_change(consumer()))
        await scene.until(lambda: "a.example" in zones(scene.node))
        assert await condition(scene) == ("True", "")
        say(scene, 2, "m1.zones 0 PTR b.example.", "m2.zones 0 PTR b.example.")
        scene.pass_time(3600)
        await scene.settled()
        status, message = await condition(scene)
        assert status == "False"
        assert message == "it is not followed: it lists b.example. twice"
        assert "a.example" in zones(scene.node)
        say(scene, 3, "m2.zones 0 PTR b.example.")
        scene.pass_time(3600)
        await scene.until(lambda: "b.example" in zones(scene.node))
        assert await condition(scene) == ("True", "")
        assert "a.example" not in zones(scene.node)

    run(use_catalogs(use))


def test_members_stay_while_another_zone_has_the_name_of_their_catalog() -> None:
    async def use(scene: Scene) -> None:
        earlier = zone("earlier", zoneName=CAT)
        await scene.writer.submit(a_change(put(earlier)))
        before = scene.node.objects.find(key_of("DNSZone", "", "earlier"))
        assert before is not None
        await scene.writer.submit(a_change(drop(before.key)))
        scene.pass_time(10)
        say(scene, 1, "m1.zones 0 PTR a.example.")
        await scene.writer.submit(a_change(consumer()))
        await scene.until(lambda: "a.example" in zones(scene.node))
        await scene.settled()
        restored = Revert(
            key=before.key, spec=before.body.spec, labels={}, annotations={},
            manager=before.manager, created=before.body.creation_timestamp,
        )  # fmt: skip
        await scene.writer.submit(a_change(restored))
        await scene.settled()
        state = scene.node.zones.state(CAT)
        assert state is not None
        assert state.zone is None
        assert "a.example" in zones(scene.node)

    run(use_catalogs(use))


def test_a_zone_of_ours_is_not_taken_by_a_catalog() -> None:
    async def use(scene: Scene) -> None:
        await scene.writer.submit(a_change(put(zone("a.example"))))
        say(scene, 1, "m1.zones 0 PTR a.example.", "m2.zones 0 PTR b.example.")
        await scene.writer.submit(a_change(consumer()))
        await scene.until(lambda: "b.example" in zones(scene.node))
        assert zones(scene.node)["a.example"] == "kudurru"
        status, message = await condition(scene)
        assert (status, message) == (
            "False",
            "a.example. is there already and managed by 'kudurru'",
        )

    run(use_catalogs(use))


def test_a_member_under_another_label_is_made_anew() -> None:
    async def use(scene: Scene) -> None:
        key = key_of("DNSZone", "", "a.example")
        scene.script.steps["a.example"] = whole(7, timers=HOURS)
        say(scene, 1, "m1.zones 0 PTR a.example.")
        await scene.writer.submit(a_change(consumer()))
        await scene.until(lambda: scene.node.objects.find(key) is not None)
        await scene.settled()
        before = scene.node.objects.find(key)
        assert before is not None
        say(scene, 2, "m9.zones 0 PTR a.example.")
        scene.pass_time(3600)
        await scene.settled()
        after = scene.node.objects.find(key)
        assert after is not None
        assert after.body.uid != before.body.uid
        assert after.body.annotations[MEMBER] == "m9"

    run(use_catalogs(use))


def test_a_zone_moves_from_one_catalog_to_another_and_stays_as_it_is() -> None:
    async def use(scene: Scene) -> None:
        key = key_of("DNSZone", "", "a.example")
        scene.script.steps["a.example"] = whole(7, timers=HOURS)
        say(scene, 1, "m1.zones 0 PTR a.example.")
        say(scene, 1, of="new.example")
        await scene.writer.submit(a_change(consumer(), consumer("new.example")))
        await scene.until(lambda: scene.node.objects.find(key) is not None)
        await scene.settled()
        before = scene.node.objects.find(key)
        assert before is not None
        moves = ("m1.zones 0 PTR a.example.", "coo.m1.zones 0 PTR new.example.")
        say(scene, 2, *moves)
        say(scene, 2, "m1.zones 0 PTR a.example.", of="new.example")
        scene.pass_time(3600)
        await scene.until(lambda: zones(scene.node)["a.example"] == "catalog:new.example")
        after = scene.node.objects.find(key)
        assert after is not None
        assert after.body.uid == before.body.uid
        say(scene, 3)
        scene.pass_time(3600)
        await scene.settled()
        assert zones(scene.node)["a.example"] == "catalog:new.example"

    run(use_catalogs(use))


def test_a_primary_lists_the_zones_that_its_selector_names() -> None:
    def listed(node: Node) -> list[str]:
        served = node.zones.served.get(names.from_text(CAT))
        assert served is not None
        return sorted(names.to_text(owner).removesuffix(f".{CAT}.") for owner in served.nodes)

    async def use(scene: Scene) -> None:
        public = {"labels": {"public": "yes"}, "annotations": {CATALOG_GROUP: "inner"}}
        await scene.writer.submit(
            a_change(
                put(zone("a.example", metadata=public)),
                put(zone("b.example")),
                put(zone(CAT, catalog={"selector": "public=yes"})),
            )
        )
        uid = scene.node.objects.find(key_of("DNSZone", "", "a.example")).body.uid  # type: ignore[union-attr]
        await scene.until(lambda: len(listed(scene.node)) == 4)
        assert listed(scene.node) == sorted(
            [f"{CAT}.", "version", f"{uid}.zones", f"group.{uid}.zones"]
        )
        await scene.writer.submit(a_change(drop(key_of("DNSZone", "", "a.example"))))
        await scene.until(lambda: listed(scene.node) == [f"{CAT}.", "version"])

    run(use_catalogs(use))


def test_a_record_set_that_stands_in_the_way_of_a_catalog_is_said() -> None:
    async def use(scene: Scene) -> None:
        mine = record_set(f"version.{CAT}", endpoint(f"version.{CAT}", "TXT", "1"), zone=CAT)
        await scene.writer.submit(a_change(put(zone(CAT, catalog={})), put(mine)))
        await scene.settled()
        status, message = await condition(scene)
        assert status == "False"
        assert "managed by 'kudurru'" in message

    run(use_catalogs(use))
