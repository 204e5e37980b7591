"""Our client and a real API server."""

import asyncio

import msgspec
import pytest

from kudurru.adapters.kubernetes.answers import Absent, Collided, Forbidden
from kudurru.adapters.kubernetes.client import APPLY_PATCH
from tests.kube.connections import connected
from tests.kube.server import ApiServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MAPS = "/api/v1/namespaces/default/configmaps"


def test_objects_are_written_and_read_and_refusals_say_why(installed: ApiServer) -> None:
    async def main() -> None:
        async with connected(installed, "admin") as client, connected(installed, "nobody") as other:
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "client"}}
            path = f"{MAPS}/client"
            made = await client.request("POST", MAPS, body)
            assert made["metadata"]["uid"]
            with pytest.raises(Collided, match="already exists"):
                await client.request("POST", MAPS, body)
            with pytest.raises(Forbidden, match='cannot get resource "configmaps"'):
                await other.get(path, dict)
            wrong = body | {"metadata": {"name": "client", "uid": "wrong"}}
            with pytest.raises(Collided) as collided:
                await client.request(
                    "PATCH", f"{path}?fieldManager=a", wrong, content_type=APPLY_PATCH
                )
            assert collided.value.code == 422
            await client.request("DELETE", path)
            with pytest.raises(Absent):
                await client.get(path, dict)
            assert client.transport.last_contact_us > 0

    asyncio.run(main())


def test_a_watch_brings_what_happens_and_ends_when_it_is_left(installed: ApiServer) -> None:
    async def main() -> None:
        async with connected(installed, "admin") as client:
            version = (await client.get(MAPS, dict))["metadata"]["resourceVersion"]
            path = f"{MAPS}?watch=1&resourceVersion={version}&allowWatchBookmarks=true"
            async with asyncio.timeout(60), client.lines(path) as lines:
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "watched"}}
                await client.request("POST", MAPS, body)
                event = msgspec.json.decode(await anext(lines))
                assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "watched")
            await client.request("DELETE", f"{MAPS}/watched")

    asyncio.run(main())
