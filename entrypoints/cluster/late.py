"""The cluster as the rest of a node knows it, from before anything of Kubernetes is imported.

What only the log has to say is said at once: whether it may be of this cluster, and what it has. A
node with a log answers DNS from that; then the client is imported and its configuration read, in a
thread, since a kubeconfig may start programs that take their time, and may ask DNS, of this node.
Until then nothing is changed that the cluster owns. A node that has nothing to answer from begins
at once.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from kudurru.adapters.event_sinks import LogSink, SeveralSinks
from kudurru.adapters.metrics import Sample
from kudurru.domain.errors import Cause, Invalid, StorageFailed
from kudurru.domain.extras import how_to_install
from kudurru.domain.objects import Key
from kudurru.domain.ports import (
    Clock,
    ClusterUser,
    Elector,
    Entropy,
    EventSink,
    Notice,
    SharedTexts,
    Timers,
)
from kudurru.domain.settings import ExternalDnsSettings, KubernetesSettings
from kudurru.entrypoints.cluster.facts import (
    checked_facts,
    from_snapshot,
    is_theirs,
    not_synced,
    snapshot_samples,
)
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.list_keeper import ListKeeper
from kudurru.entrypoints.runner import Runnable, Runner
from kudurru.entrypoints.waiting import alone
from kudurru.entrypoints.wiring import Change, Node, Result
from kudurru.entrypoints.writer import Writer

if TYPE_CHECKING:
    from kudurru.adapters.kubernetes.access import Access
    from kudurru.entrypoints.cluster.cluster import Cluster

log = logging.getLogger("kudurru.kubernetes")

READ_S = 30.0
"""How long somebody who wants something of the cluster waits for its configuration."""
NOTICES_MAX = 256
"""That are kept until they can be sent: as many as the queue of those that are sent."""
_BEING_READ = "the configuration of the client is being read"

_Of: TypeAlias = "Callable[[Cluster], Runnable]"


class LateCluster:
    """`add_to` a runner what has to run, and `begin` when this node answers DNS. Raises: Invalid
    for a log that is of another cluster, or cannot be of one."""

    def __init__(
        self,
        settings: KubernetesSettings,
        node: Node,
        writer: Writer,
        node_name: str,
        *,
        clock: Clock,
        timers: Timers,
        entropy: Entropy,
        groups: Callable[[], Container[str]] = tuple,
        external_dns: ExternalDnsSettings | None = None,
    ) -> None:
        """`groups` are the names of upstreams.groups now."""
        self._settings = settings
        self._groups = groups
        self._external_dns = external_dns
        self._node = node
        self._writer = writer
        self._node_name = node_name
        self._clock = clock
        self._timers = timers
        self._entropy = entropy
        self.facts = checked_facts(settings, node, writer)
        self.owns = settings.owner == "cluster"
        """Whether the objects are the cluster's."""
        self.has_log = self.facts.has_followed
        self.on_change: Callable[[], None] = lambda: None
        """Told when readiness is another."""
        self.reviews = _LateReviews(self)
        self._use: Callable[[Cluster], None] = lambda _: None
        self._notices: deque[Notice] = deque(maxlen=NOTICES_MAX)
        self._cluster: Cluster | None = None
        self._opened = asyncio.Event()
        self._begun = asyncio.Event()
        self._began_us = clock.monotonic_us()
        self._newest_us = node.log.head().ts
        self._has_waited = False
        if self.owns:
            writer.elsewhere = _NotYet(node)
            writer.may_stamp = lambda: False
            if not self.has_log:
                self.begin()

    @property
    def cluster(self) -> "Cluster | None":
        """None before it is opened."""
        return self._cluster

    def use(self, lists: ListKeeper, keyring: Keyring) -> None:
        """What takes something from the cluster."""
        lists.use_config_maps(_LateMaps(self))
        self._use = lambda cluster: cluster.beside.use(lists, keyring)

    def begin(self) -> None:
        """DNS is answered; or somebody waits for the cluster."""
        self._begun.set()

    def sink(self, logger: logging.Logger) -> EventSink:
        """Notices go to the log of this process, and beside the objects."""
        return SeveralSinks(LogSink(logger), self)

    def post(self, notice: Notice) -> None:
        """See `EventSink`."""
        if self._cluster is None:
            self._notices.append(notice)
        else:
            self._cluster.sink.post(notice)

    def elector(self, of_log: Elector | None) -> Elector | None:
        """Who leads among the nodes of the cluster, where it owns the objects. Where the log does,
        whoever leads among the nodes of the log."""
        return _LateElector(self) if self.owns else of_log

    def add_to(self, runner: Runner) -> None:
        def add(name: str, of: _Of, leader_only: bool = False) -> None:
            runner.add(name, lambda: self._run_late(of), leader_only)

        runner.add("cluster", self.run)
        add("cluster: events", lambda cluster: cluster.recorder.run)
        add("cluster: last events", lambda cluster: cluster.send_last, leader_only=True)
        add("cluster: statuses", lambda cluster: cluster.statuses.run, leader_only=True)
        if self._settings.dns_endpoints:
            add("cluster: DNSEndpoints", lambda cluster: cluster.take_endpoints, leader_only=True)
        add("cluster: addresses", lambda cluster: cluster.keep_addresses)
        add("cluster: diagnosis", lambda cluster: cluster.beside.diagnose)
        add("cluster: config maps", lambda cluster: cluster.beside.follow_maps)
        # Nodes of one log would record a Secret once each.
        is_shared = self._node.log.is_shared
        add("cluster: secrets", lambda cluster: cluster.beside.take_secrets, leader_only=is_shared)
        if self.owns:
            add("cluster: serials", lambda cluster: cluster.stamp, leader_only=True)
        else:
            add("cluster: copies", lambda cluster: cluster.copies.run, leader_only=True)

    async def run(self) -> None:
        """Until cancelled. Raises: Invalid when the cluster is not the one of the log, or when
        the configuration cannot be used."""
        await self._begun.wait()
        if self._cluster is None:
            patience_us = round(self._settings.startup_timeout.total_seconds() * 1e6)
            timer = self._timers.call_later(patience_us, self._stop_waiting)
            try:
                access = await alone(self._access, "kudurru-kubernetes")
            finally:
                timer.cancel()
            self.take(self._open(access))
        await (await self.opened()).run()

    def take(self, cluster: "Cluster") -> None:
        """It is there, and all who wait for it have it."""
        cluster.on_change = self._changed
        self._use(cluster)
        self._cluster = cluster
        self._opened.set()
        self._begun.set()
        while self._notices:
            cluster.sink.post(self._notices.popleft())

    async def opened(self) -> "Cluster":
        await self._opened.wait()
        assert self._cluster is not None
        return self._cluster

    async def opened_soon(self) -> "Cluster":
        """Raises: StorageFailed when it takes too long."""
        self.begin()
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                return await self.opened()
        raise StorageFailed(f"the cluster cannot be asked yet: {_BEING_READ}")

    async def until_synced(self) -> None:
        await (await self.opened()).until_synced()

    async def close(self) -> None:
        if self._cluster is not None:
            await self._cluster.close()

    # --- what others want to know -------------------------------------------------------

    def why_not(self) -> list[str]:
        """See `Cluster`."""
        if self._cluster is not None:
            return self._cluster.why_not()
        is_waiting = self.owns and not (self.has_log and self._has_waited)
        return [not_synced(_BEING_READ)] if is_waiting else []

    def warnings(self) -> list[str]:
        """See `Cluster`."""
        if self._cluster is not None:
            return self._cluster.warnings()
        return [from_snapshot(self._age_s(), _BEING_READ)] if self.owns else []

    def samples(self) -> Iterable[Sample]:
        if self._cluster is not None:
            return self._cluster.samples()
        return snapshot_samples(self._age_s() if self.owns else None)

    def _age_s(self) -> float:
        return max(0.0, (self._clock.now_us() - self._newest_us) / 1e6)

    # --- opening ------------------------------------------------------------------------

    def _access(self) -> "Access":
        """Blocks. Raises: Invalid."""
        try:
            from kudurru.entrypoints.cluster.cluster import (
                access_of,  # which takes a while to import
            )
        except ModuleNotFoundError as error:
            why = f"{error.name} is missing: {how_to_install('kubernetes')}"
            raise Invalid("kubernetes.enabled", [Cause("", why)]) from None
        return access_of(self._settings, os.environ)

    def _open(self, access: "Access") -> "Cluster":
        from kudurru.entrypoints.cluster.cluster import open_cluster

        return open_cluster(
            self._settings,
            self._node,
            self._writer,
            self.facts,
            access,
            self._node_name,
            clock=self._clock,
            timers=self._timers,
            entropy=self._entropy,
            groups=self._groups,
            began_us=self._began_us,
            external_dns=self._external_dns,
        )

    async def _run_late(self, of: _Of) -> None:
        await of(await self.opened())()

    def _changed(self) -> None:
        self.on_change()

    def _stop_waiting(self) -> None:
        self._has_waited = True
        log.warning("the cluster was not read in time, %s; this node answers from its log",
                    _BEING_READ)  # fmt: skip
        self.on_change()


class _LateElector:
    """Implements `NamesLeader`. Nobody competes before the cluster is there."""

    def __init__(self, late: LateCluster) -> None:
        self.node_name = ""  # it is known by its pod
        self._late = late

    async def campaign(self) -> None:
        await (await self._late.opened()).leading.campaign()

    async def lost(self) -> None:
        await (await self._late.opened()).leading.lost()

    async def resign(self) -> None:
        if self._late.cluster is not None:
            await self._late.cluster.leading.resign()

    async def leader(self) -> str | None:
        cluster = self._late.cluster
        return await cluster.leading.leader() if cluster is not None else None


class _LateMaps:
    """`ConfigMaps` of a cluster that is not there yet. Those that are, are told of as its own."""

    def __init__(self, late: LateCluster) -> None:
        self._late = late

    def follow(self, namespaces: Collection[str], changed: Callable[[str, str], None]) -> None:
        """Once it is there."""

    async def read(self, namespace: str, name: str) -> SharedTexts:
        return await (await self._late.opened_soon()).beside.maps.read(namespace, name)


class _LateReviews:
    """Implements `ClusterReviews`."""

    def __init__(self, late: LateCluster) -> None:
        self._late = late

    async def user(self, token: str) -> ClusterUser | None:
        return await (await self._late.opened_soon()).beside.reviews.user(token)

    async def refusal(self, user: ClusterUser, verb: str, key: Key) -> str:
        return await (await self._late.opened_soon()).beside.reviews.refusal(user, verb, key)


class _NotYet:
    """`Elsewhere` before anybody can be asked."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def takes(self, change: Change) -> bool:
        return any(is_theirs(self._node, command) for command in change.commands)

    async def submit(self, change: Change) -> Result:  # noqa: ARG002  # of the port
        raise StorageFailed(
            "the cluster that owns the objects was not read yet: nothing was changed; try again"
        )
