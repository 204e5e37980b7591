"""Texts of ConfigMaps are read as they are, and whoever wants them is told when they change."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from kudurru.adapters.kubernetes.config_maps import NAMESPACES_MAX, KubernetesConfigMaps
from kudurru.adapters.kubernetes.fakes.network import Request, Response
from kudurru.domain.errors import NotFound, StorageFailed
from tests.adapters.kubernetes.worlds import World, in_world, running


def maps_of(world: World) -> KubernetesConfigMaps:
    return KubernetesConfigMaps(world.client(), random.Random(1))


async def write(world: World, namespace: str, name: str, **parts: Any) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **parts}
    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}?fieldManager=people&force=true"
    await world.people.request("PATCH", path, body, content_type="application/apply-patch+yaml")


def test_texts_are_read_with_their_version() -> None:
    async def case(world: World) -> None:
        octets = base64.b64encode(b"\xff").decode()
        await write(world, "team", "a", data={"x": "größe"}, binaryData={"y": octets})
        found = await maps_of(world).read("team", "a")
        assert found.texts == {"x": "größe".encode(), "y": b"\xff"}
        there = world.api.objects("configmaps")["team/a"]
        assert found.version == there["metadata"]["resourceVersion"]
        await write(world, "team", "b")
        assert (await maps_of(world).read("team", "b")).texts == {}

    in_world(case)


def test_what_cannot_be_read_says_why() -> None:
    async def case(world: World) -> None:
        maps = maps_of(world)
        with pytest.raises(NotFound, match="there is no ConfigMap team/a"):
            await maps.read("team", "a")
        world.api.forbidden.add(("get", "configmaps"))
        with pytest.raises(StorageFailed, match="verb get on configmaps is missing in the namesp"):
            await maps.read("team", "a")
        body = b'{"metadata":{"resourceVersion":"1"},"binaryData":{"a":"!"}}'
        world.api.interfere = lambda verb, plural, name: Response(200, body)
        with pytest.raises(StorageFailed, match="ConfigMap team/a"):
            await maps.read("team", "a")
        world.api.interfere = lambda verb, plural, name: Response(500)
        with pytest.raises(StorageFailed, match="500"):
            await maps.read("team", "a")
        world.server.down()
        with pytest.raises(StorageFailed, match="did not answer"):
            await maps.read("team", "a")

    in_world(case)


def test_changes_are_told_in_the_namespaces_that_are_followed_and_no_others() -> None:
    async def case(world: World) -> None:
        maps = maps_of(world)
        told: list[str] = []

        def changed(namespace: str, name: str) -> None:
            told.append(f"{namespace}/{name}")

        await write(world, "a", "one")
        async with running(maps.run()):
            maps.follow({"a", "b"}, changed)
            await asyncio.sleep(1)
            assert told == ["a/one"]
            await write(world, "b", "two")
            await write(world, "c", "three")
            await asyncio.sleep(1)
            assert told == ["a/one", "b/two"]
            maps.follow({"b", "c"}, changed)
            await asyncio.sleep(1)
            assert told == ["a/one", "b/two", "c/three"]
            await write(world, "a", "one", data={"x": "y"})
            await world.people.request("DELETE", "/api/v1/namespaces/b/configmaps/two")
            await asyncio.sleep(1)
            assert told == ["a/one", "b/two", "c/three", "b/two"]
            maps.follow({f"n{number:02d}" for number in range(20)}, changed)
            begun = len(world.api.calls)
            await asyncio.sleep(1)
            lists = [call for call in world.api.calls[begun:] if call[0] == "list"]
            assert len(lists) == NAMESPACES_MAX

    in_world(case)


def test_a_namespace_full_of_large_maps_is_followed_without_their_texts() -> None:
    text = "x.example\n" * 1000

    async def case(world: World) -> None:
        maps = maps_of(world)
        told: set[str] = set()
        brought = 0
        handle = world.server._handler

        async def counted(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
            nonlocal brought
            async for line in lines:
                brought += len(line)
                yield line

        async def answer(request: Request) -> Response:
            nonlocal brought
            found = await handle(request)
            brought += len(found.body)
            if found.stream is None:
                return found
            return msgspec.structs.replace(found, stream=counted(found.stream))

        for number in range(300):
            await write(world, "a", f"m{number}", data={"x": text})
        world.server._handler = answer
        async with running(maps.run()):
            maps.follow({"a"}, lambda _, name: told.add(name))
            await asyncio.sleep(1)
            assert len(told) == 300
            assert 0 < brought < 300 * 1000
            told.clear()
            await write(world, "a", "m7", data={"x": text + "y.example"})
            await asyncio.sleep(1)
            assert told == {"m7"}
            assert brought < 301 * 1000
            assert (await maps.read("a", "m7")).texts == {"x": f"{text}y.example".encode()}

    in_world(case)
