"""Lists in ConfigMaps, as the account that the manifests make."""

import asyncio
import json
import random

import pytest

from kudurru.adapters.kubernetes.config_maps import KubernetesConfigMaps
from kudurru.domain.errors import NotFound, StorageFailed
from tests.kube.connections import connected
from tests.kube.server import ApiServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MAPS = "/api/v1/namespaces/default/configmaps"


def test_a_text_is_read_and_its_change_is_told_where_the_role_is_bound(
    installed: ApiServer,
) -> None:
    def write(text: str) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "list"}}
        path = f"{MAPS}/list?fieldManager=people"
        body |= {"data": {"names": text}}
        form = "application/apply-patch+yaml"
        assert installed.call("PATCH", path, body, form=form)[0] in (200, 201)

    async def main() -> None:
        async with connected(installed) as client:
            maps = KubernetesConfigMaps(client, random.Random())
            told: list[str] = []
            changed = asyncio.Event()

            def tell(namespace: str, name: str) -> None:
                told.append(f"{namespace}/{name}")
                changed.set()

            async def until_told() -> None:
                async with asyncio.timeout(60):
                    while "default/list" not in told:
                        changed.clear()
                        await changed.wait()
                told.clear()

            write("a.example")
            maps.follow({"default"}, tell)
            running = asyncio.ensure_future(maps.run())
            await until_told()
            before = await maps.read("default", "list")
            assert before.texts == {"names": b"a.example"}
            write("b.example")
            await until_told()
            after = await maps.read("default", "list")
            assert after.texts == {"names": b"b.example"}
            assert after.version != before.version
            assert installed.call("DELETE", f"{MAPS}/list")[0] == 200
            await until_told()
            with pytest.raises(NotFound):
                await maps.read("default", "list")
            with pytest.raises(StorageFailed, match="missing in the namespace kube-system"):
                await maps.read("kube-system", "list")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_of_maps_that_are_followed_the_server_sends_no_texts(installed: ApiServer) -> None:
    def write(text: str) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"}}
        path = f"{MAPS}/large?fieldManager=people"
        form = "application/apply-patch+yaml"
        whole = body | {"data": {"names": text}}
        assert installed.call("PATCH", path, whole, form=form)[0] in (200, 201)

    async def main() -> None:
        async with connected(installed) as plain:
            client = plain.with_metadata_only()
            page = await client.request("GET", f"{MAPS}?limit=250", type_=dict)
            (item,) = (one for one in page["items"] if one["metadata"]["name"] == "large")
            assert item["kind"] == "PartialObjectMetadata"
            assert "data" not in item
            since = page["metadata"]["resourceVersion"]
            target = f"{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={since}"
            async with client.lines(target) as lines:
                write("b.example")
                async for line in lines:
                    found = json.loads(line)["object"]
                    if found["metadata"].get("name") == "large":
                        break
            assert found["kind"] == "PartialObjectMetadata"
            assert "data" not in found

    write("a.example")
    asyncio.run(main())
