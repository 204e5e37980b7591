"""What a node's side of a cluster is made of, and how each part of it is made."""

import random
from collections.abc import Callable, Container

import msgspec

from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.election import Timings
from kudurru.adapters.kubernetes.endpoints import LeaderAddress
from kudurru.adapters.kubernetes.events import EventRecorder
from kudurru.adapters.kubernetes.store import KubernetesStore, Place
from kudurru.domain.ports import Clock, Entropy, Timers
from kudurru.domain.settings import ExternalDnsSettings, KubernetesSettings
from kudurru.entrypoints.cluster.beside import Beside
from kudurru.entrypoints.cluster.copy import Copies
from kudurru.entrypoints.cluster.endpoints import DnsEndpoints
from kudurru.entrypoints.cluster.facts import Facts
from kudurru.entrypoints.cluster.feed import Feed
from kudurru.entrypoints.cluster.reach import Reach
from kudurru.entrypoints.cluster.statuses import StatusCopies
from kudurru.entrypoints.cluster.writes import ClusterWrites
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer

SERVICE_PORT = "http"
"""Name that the API's port has in the service."""


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """A node, its cluster, and the world around: what every part stands on."""

    settings: KubernetesSettings
    node: Node
    writer: Writer
    facts: Facts
    client: Client
    place: Place
    clock: Clock
    timers: Timers
    entropy: Entropy
    chance: random.Random
    groups: Callable[[], Container[str]] = tuple
    """Names of upstreams.groups now."""
    service: str = ""
    """The headless one of the nodes, whose slices have their addresses."""
    external_dns: ExternalDnsSettings = ExternalDnsSettings()

    @property
    def owns(self) -> bool:
        """Whether the objects are the cluster's."""
        return self.settings.owner == "cluster"

    def beside(self) -> Beside:
        return Beside(
            self.node, self.writer, self.client, self.place.namespace,
            watched=self.settings.namespaces, owns=self.owns,
            has_endpoints=self.settings.dns_endpoints,
            timers=self.timers, entropy=self.entropy, chance=self.chance,
        )  # fmt: skip

    def store(self, client: Client) -> KubernetesStore:
        return KubernetesStore(
            client, self.place, entropy=self.entropy, chance=self.chance, timings=self._timings()
        )

    def _timings(self) -> Timings:
        lease = self.settings.lease
        return Timings(
            lease.duration.total_seconds(), lease.renew.total_seconds(), lease.retry.total_seconds()
        )

    def feed(self, client: Client, leads: Callable[[], bool]) -> Feed:
        return Feed(
            self.node, self.writer, self.facts, client,
            namespaces=self.settings.namespaces, records=self.owns, leads=leads,
            clock=self.clock, timers=self.timers, chance=self.chance,
            allows_much=self.settings.allow_mass_change,
            reach=Reach(self.settings.reach, self.groups),
        )  # fmt: skip

    def addresses(self, client: Client) -> LeaderAddress | None:
        if not self.service:
            return None
        namespace = self.place.namespace
        return LeaderAddress(client, namespace, self.service, SERVICE_PORT, self.chance)

    def writes(self, store: KubernetesStore, feed: Feed) -> ClusterWrites:
        return ClusterWrites(self.node, self.writer, self.facts, store, feed, self.timers)

    def recorder(self, client: Client, leads: Callable[[], bool]) -> EventRecorder:
        return EventRecorder(client, self.clock, self.place.pod, leads)

    def statuses(self, store: KubernetesStore, feed: Feed) -> StatusCopies:
        return StatusCopies(
            self.node, self.writer, store, feed, clock=self.clock, timers=self.timers
        )

    def copies(self, store: KubernetesStore, feed: Feed) -> Copies:
        return Copies(
            self.node, self.writer, self.facts, store, feed, clock=self.clock, timers=self.timers
        )

    def endpoints(
        self, client: Client, recorder: EventRecorder, feed: Feed, is_doubtful: Callable[[], bool]
    ) -> DnsEndpoints | None:
        if not self.settings.dns_endpoints:
            return None
        return DnsEndpoints(
            self.node, self.writer, client, recorder,
            namespaces=self.settings.namespaces, settings=self.external_dns,
            synced=feed.synced, is_doubtful=is_doubtful,
            clock=self.clock, timers=self.timers, chance=self.chance,
        )  # fmt: skip
