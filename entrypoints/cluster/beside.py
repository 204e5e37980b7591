"""What a node uses of its cluster beside the objects: texts of lists in ConfigMaps, keys and tokens
in Secrets; and what it may not do there, or does not find."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import NoReturn

from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.config_maps import KubernetesConfigMaps
from kudurru.adapters.kubernetes.diagnosis import Diagnosis
from kudurru.adapters.kubernetes.rbac import FEATURES, Feature
from kudurru.adapters.kubernetes.reviews import KubernetesReviews
from kudurru.domain.errors import StorageFailed
from kudurru.domain.ports import Entropy, Timers
from kudurru.entrypoints.cluster.secrets import ClusterSecrets
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.list_keeper import ListKeeper
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer


class Beside:
    """`use` it, `begin` once the cluster is not known to be a wrong one, and `trust` it once it is
    known to be the right one: by another's word no key or token comes or goes, and nobody is a
    user."""

    def __init__(
        self,
        node: Node,
        writer: Writer,
        client: Client,
        namespace: str,
        *,
        watched: Sequence[str],
        owns: bool,
        has_endpoints: bool,
        timers: Timers,
        entropy: Entropy,
        chance: random.Random,
    ) -> None:
        """`watched`: namespaces, none for all. `owns`: the cluster owns the objects;
        `has_endpoints`: DNSEndpoints are read."""
        used = _used(owns=owns, has_endpoints=has_endpoints)
        self.diagnosis = Diagnosis(client, namespace, used, watched=watched)
        self.client = client.with_observer(self.diagnosis.observe)
        """Whose refusals are told."""
        self._reviews = KubernetesReviews(self.client)
        self.maps = KubernetesConfigMaps(self.client, chance)
        self._node = node
        self._writer = writer
        self._namespace = namespace
        self._timers = timers
        self._entropy = entropy
        self._chance = chance
        self._keyring: Keyring | None = None
        self._secrets: ClusterSecrets | None = None
        self._begun = asyncio.Event()
        self._trusted = asyncio.Event()

    def use(self, lists: ListKeeper, keyring: Keyring) -> None:
        lists.use_config_maps(self.maps)
        self._keyring = keyring

    def begin(self) -> None:
        self._begun.set()

    def trust(self) -> None:
        self._trusted.set()

    @property
    def reviews(self) -> KubernetesReviews:
        """Who the cluster's users are, and what they may do. Raises: StorageFailed while it is not
        known to be the right one."""
        if not self._trusted.is_set():
            raise StorageFailed(
                "Kubernetes is not asked who somebody is while it is unknown whether it is the "
                "cluster of this node: bind schemas/rbac/cluster-id.yaml, or set "
                "kubernetes.clusterID"
            )
        return self._reviews

    def warnings(self) -> list[str]:
        return self.diagnosis.warnings() + (self._secrets.warnings() if self._secrets else [])

    async def diagnose(self) -> NoReturn:
        await self._begun.wait()
        await self.diagnosis.run()
        raise AssertionError("it never ends")

    async def follow_maps(self) -> NoReturn:
        await self._begun.wait()
        await self.maps.run()

    async def take_secrets(self) -> NoReturn:
        await self._trusted.wait()
        if self._keyring is None or self._node.why_not_writable is not None:
            await asyncio.get_running_loop().create_future()
        assert self._keyring is not None
        self._secrets = ClusterSecrets(
            self._node,
            self._writer,
            self._keyring,
            self.client,
            self._namespace,
            timers=self._timers,
            entropy=self._entropy,
            chance=self._chance,
        )
        await self._secrets.run()


def _used(*, owns: bool, has_endpoints: bool) -> Iterator[Feature]:
    names = {"objects", "cluster-id", "events", "internal"}
    names |= {"leader"} if owns else set()
    names |= {"external-dns"} if has_endpoints else set()
    return (feature for feature in FEATURES if feature.name in names)
