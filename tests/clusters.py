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
from kudurru.adapters.kubernetes.fakes.network import (
    Link,
    MemoryServer,
    Request,
    Response,
    client_of,
)
from kudurru.adapters.kubernetes.store import PREFIX, Place
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.timers import LoopTimers
from kudurru.domain.commands import Apply
from kudurru.domain.events import (
    OBJECT_APPLIED,
    OBJECT_DELETED,
    Recorded,
    Who,
)
from kudurru.domain.kinds.meta import API_VERSION
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.domain.ports import Clock, EventLog
from kudurru.domain.settings import ExternalDnsSettings, KubernetesSettings, LeaseSettings
from kudurru.entrypoints.cluster.cluster import Cluster
from kudurru.entrypoints.cluster.late import LateCluster
from kudurru.entrypoints.cluster.parts import Ground
from kudurru.entrypoints.history import who_of
from kudurru.entrypoints.runner import Runner
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer, keep_stamped
from tests.blackbox.program import records, zone

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


def a_set(name: str, target: str, zone_name: str = "lab.example") -> dict[str, Any]:
    document = records(name, zone_name, (f"{name}.{zone_name}", "A", target))
    document["metadata"]["namespace"] = "default"
    return document


def changes(member: Member, *commands: Any, **how: Any) -> Any:
    return member.writer.submit(Change(commands=commands, who=ALICE, **how))


def an_apply(document: dict[str, Any], manager: str = "kudurru", **how: Any) -> Apply:
    manifest = parse_manifest(dict(document), what="test", default_namespace="default")
    return Apply(manifest=manifest, manager=manager, **how)


KEY = key_of("DNSRecordSet", "default", "www")


def told(member: Member, key: str = KEY) -> list[tuple[str, str]]:
    """Of an object: who, and the address that it had then ("" for deleted)."""
    found = []
    for event in member.events(OBJECT_APPLIED, OBJECT_DELETED):
        if event.key == key:
            body = msgspec.json.decode(event.body or b"")
            address = body["spec"]["endpoints"][0]["targets"][0] if "spec" in body else ""
            found.append((who_of(event).actor, address))
    return found


def version_of(kube: Kube) -> str:
    return str(kube.api.objects("dnszones")["lab.example"]["metadata"]["resourceVersion"])


def heard(member: Member, key: str = KEY) -> str:
    found = member.cluster.feed.find(key)
    return found.version if found is not None else ""


class Lost:
    """From the first real write of a record set on the server answers nothing that is of use."""

    def __init__(self, kube: Kube, is_done: bool) -> None:
        self.was_hit = False
        self._kube = kube
        self._is_done = is_done
        self._handle = kube.server._handler
        kube.server._handler = self._answer

    async def _answer(self, request: Request) -> Response:
        is_write = request.method == "PATCH" and "dnsrecordsets" in request.target
        if not self.was_hit and not (is_write and "dryRun" not in request.target):
            return await self._handle(request)
        if not self.was_hit and self._is_done:
            await self._handle(request)
        self.was_hit = True
        return Response(500, b"lost")

    def mend(self) -> None:
        self._kube.server._handler = self._handle


def spec_of(member: Member, name: str = "www") -> bytes:
    stored = member.node.objects.find(key_of("DNSRecordSet", "default", name))
    return bytes(stored.body.spec) if stored is not None else b""


def expired(verb: str, plural: str, name: str) -> Response | None:
    """The answer to a watch whose version is forgotten."""
    is_ours = verb == "watch" and plural == "dnsrecordsets"
    return Response(410, b"{}") if is_ours else None


def status_of(kube: Kube) -> dict[str, Any]:
    found: dict[str, Any] = kube.api.objects("dnszones")["lab.example"].get("status") or {}
    return found


def a_zone(name: str = "lab.example", **metadata: Any) -> dict[str, Any]:
    document = zone(name)
    document["metadata"] |= metadata
    return document


def a_policy(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "Policy",
        "metadata": {"name": "office", "namespace": "default"},
        "spec": spec,
    }


def warned(member: Member) -> str:
    return " ".join(member.cluster.warnings())


def names_of(member: Member) -> int:
    return len(member.names("lab.example"))


def text_of(member: Member, name: str) -> str:
    stored = member.node.objects.find(key_of("DNSRecordSet", "default", name))
    return bytes(stored.body.spec).decode() if stored is not None else ""


async def filled(kube: Kube, count: int = 3) -> Member:
    """A node that has followed a cluster with so many record sets."""
    kube.free_lease()
    await kube.apply(a_zone())
    for number in range(count):
        await kube.apply(a_set(f"n{number}", "192.0.2.1"))
    member = Member(kube)
    async with member.running():
        await until(lambda: names_of(member) == count)
    return member


def conditions(kube: Kube, plural: str, name: str) -> dict[str, str]:
    status = kube.api.objects(plural)[name].get("status", {})
    return {one["type"]: one["status"] for one in status.get("conditions", [])}
