"""A node that works with a cluster of the fakes: in this process, on connections in memory."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.kubernetes.fakes.api import FakeApi
from kudurru.adapters.kubernetes.fakes.network import Link, MemoryServer, client_of
from kudurru.adapters.kubernetes.store import PREFIX, Place
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.timers import LoopTimers
from kudurru.domain.events import Recorded, Who
from kudurru.domain.ports import Clock, EventLog
from kudurru.domain.settings import ExternalDnsSettings, KubernetesSettings, LeaseSettings
from kudurru.entrypoints.cluster import Cluster
from kudurru.entrypoints.cluster_late import LateCluster
from kudurru.entrypoints.cluster_parts import Ground
from kudurru.entrypoints.history import who_of
from kudurru.entrypoints.runner import Runner
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer, keep_stamped

PATIENCE_S = 90.0
APPLY = "application/apply-patch+yaml"
ALICE = Who(actor="user:1000", source="cli")

QUICK = LeaseSettings(
    duration=timedelta(seconds=30), renew=timedelta(seconds=20), retry=timedelta(milliseconds=50)
)


async def until(condition: Callable[[], Any]) -> Any:
    """The first result of `condition` that is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := condition()):
            await asyncio.sleep(0.005)
    return found


class Kube:
    """The cluster, and somebody who uses kubectl there."""

    def __init__(self) -> None:
        self.api = FakeApi(SystemClock())
        self.server = MemoryServer(self.api.handle)
        self.people = client_of(self.server, SystemClock())

    @property
    def uid(self) -> str:
        return str(self.api.objects("namespaces")["kube-system"]["metadata"]["uid"])

    async def apply(self, document: dict[str, Any], manager: str = "kubectl", **query: str) -> Any:
        """As `kubectl apply --server-side` does."""
        more = "".join(f"&{name}={value}" for name, value in query.items())
        path = f"{path_of(document)}?fieldManager={manager}{more}"
        return await self.people.request("PATCH", path, document, content_type=APPLY)

    async def delete(self, document: dict[str, Any]) -> None:
        await self.people.request("DELETE", path_of(document))

    def free_lease(self, name: str = "kudurru-controller") -> None:
        """So that the first leader need not wait until it is sure that there was none."""
        self.api.seed("leases", "default", name)

    async def close(self) -> None:
        await self.people.transport.close()
        await self.server.close()


def path_of(document: dict[str, Any]) -> str:
    metadata = document["metadata"]
    namespace = metadata.get("namespace")
    within = f"/namespaces/{namespace}" if namespace else ""
    plural = document["kind"].lower() + "s"
    plural = "policies" if plural == "policys" else plural
    return f"{PREFIX}{within}/{plural}/{metadata['name']}"


class Member:
    """One node of the cluster, without sockets."""

    def __init__(
        self,
        kube: Kube,
        log: EventLog | None = None,
        name: str = "node-1",
        *,
        service: str = "",
        is_late: bool = False,
        groups: Callable[[], Container[str]] = tuple,
        external_dns: ExternalDnsSettings | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        """One that `is_late` has its client when somebody calls `late.take`."""
        clock, entropy = clock or SystemClock(), SystemEntropy()
        self.log = log or MemoryEventLog(entropy=entropy, clock=clock)
        self.node = Node(self.log, clock, entropy)
        self.node.catch_up()
        self.writer = Writer(self.node)
        self.link = Link(kube.server)
        self.client = client_of(self.link, clock)
        given = KubernetesSettings(enabled=True, owner="cluster", lease=QUICK)
        given = msgspec.structs.replace(given, **settings)
        how: dict[str, Any] = {"clock": clock, "timers": LoopTimers(), "entropy": entropy}
        self.late = LateCluster(given, self.node, self.writer, name, **how)
        ground = Ground(
            settings=given,
            node=self.node,
            writer=self.writer,
            facts=self.late.facts,
            client=self.client,
            place=Place("default", name),
            **how,
            chance=random.Random(1),
            groups=groups,
            service=service,
            external_dns=external_dns or ExternalDnsSettings(),
        )
        self.cluster = Cluster(ground)
        if not is_late:
            self.late.take(self.cluster)
        elector = self.late.elector(None)
        self.elector: Any = elector
        self.runner = Runner(clock, LoopTimers(), elector)
        self.runner.add("writer", self.writer.run, stop=self._stop)
        self.runner.add("stamps", lambda: keep_stamped(self.writer, self.node, 0.01))
        self.late.add_to(self.runner)

    async def _stop(self) -> None:
        self.writer.stop()

    @asynccontextmanager
    async def running(self, synced: bool = True) -> AsyncIterator["Member"]:
        over = asyncio.Event()
        task = asyncio.ensure_future(self.runner.run(over.wait))
        try:
            if synced:
                await until(lambda: self.cluster.feed.synced.is_set() or task.done())
            yield self
        finally:
            over.set()
            try:
                await task
            finally:
                await self.late.close()

    def events(self, *types: str) -> list[Recorded]:
        """Those that are in the views."""
        seen = self.log.read(0, self.node.position)
        return [event for event in seen if not types or event.type in types]

    def actors(self, *types: str) -> list[str]:
        return [who_of(event).actor for event in self.events(*types)]

    def serial(self, zone: str) -> int | None:
        state = self.node.zones.find(zone)
        if state is None or state.zone is None or state.zone.stamped_soa is None:
            return None
        return state.zone.serial

    def names(self, zone: str) -> list[str]:
        """Owners that it serves, relative to the zone."""
        state = self.node.zones.find(zone)
        if state is None or state.zone is None:
            return []
        return sorted(str(key) for key in state.sources)


def in_cluster(case: Callable[[Kube], Awaitable[None]], patience_s: float = PATIENCE_S) -> None:
    async def main() -> None:
        kube = Kube()
        try:
            async with asyncio.timeout(patience_s):
                await case(kube)
        finally:
            await kube.close()

    asyncio.run(main())
