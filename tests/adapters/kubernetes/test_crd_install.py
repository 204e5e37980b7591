"""Definitions are installed once, brought up to what they should be, and shown before that."""

import asyncio

import pytest

from kudurru.adapters.kubernetes.answers import Forbidden
from kudurru.adapters.kubernetes.crd_install import (
    COLLECTION,
    apply_definitions,
    until_served,
)
from kudurru.adapters.kubernetes.crds import crds
from kudurru.domain.errors import Busy
from tests.adapters.kubernetes.worlds import World, in_world, running

PLURAL = "customresourcedefinitions"
SPECS = {one["metadata"]["name"]: one["spec"] for one in crds()}


def installed(world: World) -> dict[str, object]:
    return {name: found["spec"] for name, found in world.api.objects(PLURAL).items()}


def test_they_are_installed_and_a_second_time_nothing_changes() -> None:
    async def case(world: World) -> None:
        client = world.client()
        first = await apply_definitions(client, dry_run=False)
        assert [(one.name, one.before) for one in first] == [(name, None) for name in SPECS]
        assert installed(world) == SPECS
        again = await apply_definitions(client, dry_run=False)
        assert [one.is_changed for one in again] == [False] * len(SPECS)

    in_world(case)


def test_a_dry_run_tells_what_would_change_and_changes_nothing() -> None:
    async def case(world: World) -> None:
        client = world.client()
        assert all(one.is_changed for one in await apply_definitions(client, dry_run=True))
        assert installed(world) == {}
        await apply_definitions(client, dry_run=False)
        name = "policies.kudurru.io"
        patch = {"spec": {"names": {"shortNames": ["p"]}}}
        await world.people.request(
            "PATCH", f"{COLLECTION}/{name}", patch, content_type="application/merge-patch+json"
        )
        found = await apply_definitions(client, dry_run=True)
        assert [one.name for one in found if one.is_changed] == [name]
        assert installed(world) != SPECS
        await apply_definitions(client, dry_run=False)
        assert installed(world) == SPECS

    in_world(case)


def test_a_refusal_is_told() -> None:
    async def case(world: World) -> None:
        world.api.forbidden.add(("patch", PLURAL))
        with pytest.raises(Forbidden):
            await apply_definitions(world.client(), dry_run=True)

    in_world(case)


def test_it_waits_until_they_are_served_and_names_those_that_are_not() -> None:
    async def case(world: World) -> None:
        client = world.client()
        world.api.absent |= {"policies", "dnszones"}

        async def serve() -> None:
            await asyncio.sleep(20)
            world.api.absent.clear()

        with pytest.raises(Busy, match="DNSZone, Policy: installed, and not served after 10 s"):
            await until_served(client, 10)
        began_s = world.now_s
        async with running(serve()):
            await until_served(client, 60)
        assert world.now_s - began_s >= 20

    in_world(case)
