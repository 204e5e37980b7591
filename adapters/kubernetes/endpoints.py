"""Where the leader is: behind the service, by the EndpointSlice that lists its pod."""

import random
from typing import Any

import msgspec

from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.informer import Handler, Informer, Source


class Endpoint(msgspec.Struct, frozen=True):
    address: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


Endpoints = dict[str, Endpoint]
"""By pod."""


class LeaderAddress:
    """`run` it in a task. `port` is the name of the service's port that is asked for."""

    def __init__(
        self, client: Client, namespace: str, service: str, port: str, chance: random.Random
    ) -> None:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        source = Source(path, label_selector=f"kubernetes.io/service-name={service}")
        self._informer: Informer[Endpoints] = Informer(
            client, source, lambda found: endpoints(found, port), Handler(), chance=chance
        )

    async def run(self) -> None:
        await self._informer.run()

    def of(self, identity: str) -> Endpoint | None:
        """Of who holds the Lease, as the Lease names it; None while no slice has its pod. A pod
        that is not ready is still the leader, and takes writes."""
        pod = identity.rpartition("_")[0]
        for found in self._informer.copy.values():
            if pod in found:
                return found[pod]
        return None


def endpoints(found: dict[str, Any], port: str) -> Endpoints:
    """Of one slice. An entry may be in two slices while it moves; both say the same."""
    numbers = [one["port"] for one in found.get("ports") or () if one.get("name") == port]
    if not numbers:
        return {}
    return {
        pod["name"]: Endpoint(one["addresses"][0], numbers[0])
        for one in found.get("endpoints") or ()
        if (pod := one.get("targetRef") or {}).get("kind") == "Pod" and one.get("addresses")
    }
