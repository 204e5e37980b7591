"""What a node uses of its cluster beside the objects: texts of lists in ConfigMaps, keys and tokens
in Secrets; and what it may not do there, or does not find."""

import asyncio
import random
from collections.abc import Iterator
from typing import NoReturn

from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.config_maps import KubernetesConfigMaps
from kudurru.adapters.kubernetes.diagnosis import Diagnosis
from kudurru.adapters.kubernetes.rbac import FEATURES, Feature
from kudurru.adapters.kubernetes.reviews import KubernetesReviews
from kudurru.domain.ports import Entropy, Timers
from kudurru.entrypoints.cluster_secrets import ClusterSecrets
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.list_keeper import ListKeeper
from kudurru.entrypoints.runner import Runner
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer


class Beside:
    """`use` it, `add_to` a runner, and `begin` once the cluster is known to be the right one."""

    def __init__(
        self,
        node: Node,
        writer: Writer,
        client: Client,
        namespace: str,
        *,
        owns: bool,
        timers: Timers,
        entropy: Entropy,
        chance: random.Random,
    ) -> None:
        """`owns`: the cluster owns the objects."""
        self.diagnosis = Diagnosis(client, namespace, _used(owns=owns))
        self.client = client.with_observer(self.diagnosis.observe)
        """Whose refusals are told."""
        self.reviews = KubernetesReviews(self.client)
        """Who the cluster's users are, and what they may do."""
        self._maps = KubernetesConfigMaps(self.client, chance)
        self._node = node
        self._writer = writer
        self._namespace = namespace
        self._timers = timers
        self._entropy = entropy
        self._chance = chance
        self._keyring: Keyring | None = None
        self._secrets: ClusterSecrets | None = None
        self._begun = asyncio.Event()

    def use(self, lists: ListKeeper, keyring: Keyring) -> None:
        lists.config_maps = self._maps
        self._keyring = keyring

    def begin(self) -> None:
        self._begun.set()

    def add_to(self, runner: Runner) -> None:
        runner.add("cluster: diagnosis", self._diagnose)
        runner.add("cluster: config maps", self._follow_maps)
        # Nodes of one log would record a Secret once each.
        runner.add("cluster: secrets", self._take_secrets, leader_only=self._node.log.is_shared)

    def warnings(self) -> list[str]:
        return self.diagnosis.warnings() + (self._secrets.warnings() if self._secrets else [])

    async def _diagnose(self) -> NoReturn:
        await self._begun.wait()
        await self.diagnosis.run()
        raise AssertionError("it never ends")

    async def _follow_maps(self) -> NoReturn:
        await self._begun.wait()
        await self._maps.run()

    async def _take_secrets(self) -> NoReturn:
        await self._begun.wait()
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


def _used(*, owns: bool) -> Iterator[Feature]:
    names = {"objects", "cluster-id", "events", "internal"} | ({"leader"} if owns else set())
    return (feature for feature in FEATURES if feature.name in names)
