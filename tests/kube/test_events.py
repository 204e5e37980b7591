"""Events, and the watch of the leader's address, as the account that the manifests make."""

import asyncio
import random

import pytest

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.kubernetes.endpoints import LeaderAddress
from kudurru.adapters.kubernetes.events import About, EventRecorder
from tests.adapters.kubernetes.test_endpoints import SLICES, endpoint_slice
from tests.kube.connections import connected
from tests.kube.server import ApiServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ZONE = About("kudurru.io/v1alpha1", "DNSZone", "", "events-of", "1234")
EVENTS = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=events-of"


def test_an_event_is_posted_and_its_repeat_counted(installed: ApiServer) -> None:
    async def main() -> None:
        async with connected(installed) as client:
            recorder = EventRecorder(client, SystemClock(), "node-1")
            running = asyncio.ensure_future(recorder.run())
            for _ in range(3):
                recorder.post(ZONE, "Normal", "SerialBumped", "serial 7")
            assert await recorder.close(within_s=60)
            running.cancel()
            assert (recorder.written, recorder.dropped.total()) == (3, 0)

    asyncio.run(main())
    (event,) = installed.call("GET", EVENTS)[1]["items"]
    assert (event["count"], event["reason"], event["source"]["host"]) == (
        3,
        "SerialBumped",
        "node-1",
    )


def test_the_leader_is_found_by_its_slice(installed: ApiServer) -> None:
    async def main() -> None:
        async with connected(installed) as client:
            found = LeaderAddress(client, "default", "kudurru", "http", random.Random())
            running = asyncio.ensure_future(found.run())
            async with asyncio.timeout(60):
                while str(found.of("a-0_0123abcd")) != "192.0.2.1:8080":
                    await asyncio.sleep(0.05)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    body = endpoint_slice("kudurru-x", {"a-0": "192.0.2.1"})
    assert installed.call("POST", SLICES, body)[0] == 201
    asyncio.run(main())
