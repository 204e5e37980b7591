"""The address of the leader is that of the pod which the Lease names."""

import asyncio
import random
from typing import Any

from kudurru.adapters.kubernetes.endpoints import LeaderAddress
from tests.adapters.kubernetes.worlds import World, in_world, running

SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


def endpoint_slice(name: str, pods: dict[str, str], service: str = "kudurru") -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "dns", "port": 53}, {"name": "http", "port": 8080}],
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": False},
                "targetRef": {"kind": "Pod", "name": pod},
            }
            for pod, address in pods.items()
        ]
        + [{"addresses": ["192.0.2.9"]}],
    }


def test_the_leader_is_found_wherever_its_pod_is_listed() -> None:
    async def case(world: World) -> None:
        create = world.people.request
        await create("POST", SLICES, endpoint_slice("x", {"a-0": "192.0.2.1"}))
        await create("POST", SLICES, endpoint_slice("z", {"a-9": "192.0.2.99"}, "other"))
        found = LeaderAddress(world.client(), "default", "kudurru", "http", random.Random(1))
        none = LeaderAddress(world.client(), "default", "kudurru", "grpc", random.Random(1))
        async with running(found.run(), none.run()):
            await asyncio.sleep(1)
            assert str(found.of("a-0_0123abcd")) == "192.0.2.1:8080"
            assert found.of("a-1_0123abcd") is found.of("a-9_0123abcd") is found.of("") is None
            assert none.of("a-0_0123abcd") is None
            await create("POST", SLICES, endpoint_slice("y", {"a-1": "2001:db8::1"}))
            await create("DELETE", f"{SLICES}/x")
            await asyncio.sleep(1)
            assert str(found.of("a-1_0123abcd")) == "[2001:db8::1]:8080"
            assert found.of("a-0_0123abcd") is None

    in_world(case)
