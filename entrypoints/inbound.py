"""What others send here: transfers of secondary zones, NOTIFY, dynamic updates, catalogs. Made as
one, because they share the node, its writer and its keys."""

import random
import secrets
from collections.abc import Iterable

from kudurru.adapters.dns.transfer_client import AsyncTransferClient
from kudurru.adapters.metrics import Sample
from kudurru.adapters.refresh_times import RefreshTimes
from kudurru.entrypoints.catalogs import Catalogs
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.runner import Runner
from kudurru.entrypoints.secondaries import Secondaries
from kudurru.entrypoints.updates import Updates
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections.pipeline.control import Control
from kudurru.projections.pipeline.signatures import Signatures


class Inbound:
    """`control` answers messages; `add_to` adds what has to run beside that."""

    def __init__(
        self,
        node: Node,
        writer: Writer,
        keyring: Keyring,
        signatures: Signatures,
        times: RefreshTimes,
    ) -> None:
        self._node = node
        self._secondaries = Secondaries(
            node,
            writer,
            AsyncTransferClient(),
            chance=random.SystemRandom().random,
            new_id=lambda: secrets.randbits(16),
            find_key=keyring.find,
            times=times,
        )
        self._catalogs = Catalogs(node, writer)
        self._updates = Updates(node, writer, keyring)
        writer.listeners += [self._secondaries.heard, self._catalogs.heard, self._updates.heard]
        self.control = Control(
            signatures,
            on_notify=self._secondaries.notified,
            on_update=self._updates.answer,
            on_refused=self._updates.refused,
            now_s=lambda: node.clock.now_us() // 1_000_000,
        )

    def add_to(self, runner: Runner, *, leader_only: bool = True) -> None:
        """Without a log to write to, updates are still answered: refused. What is transferred is in
        the log: nodes that each have one fetch it each, so not `leader_only`."""
        runner.add("updates", self._updates.run)
        if self._node.why_not_writable is None:
            runner.add("secondaries", self._secondaries.run, leader_only=leader_only)
            runner.add("catalogs", self._catalogs.run, leader_only=leader_only)

    def refresh(self, zone: str) -> str:
        """Ask the primaries of a secondary zone now, by object name or DNS name. Raises:
        NotFound."""
        return self._secondaries.refresh_now(zone)

    def samples(self) -> Iterable[Sample]:
        seen = self._secondaries.statistics()
        yield Sample("secondary_refreshes_total", (), seen.refreshes)
        yield Sample("secondary_zones_expired", (), seen.expired)
        yield from (Sample("transfers_in_total", (k,), n) for k, n in seen.transfers.items())
        yield from (Sample("transfers_in_failed_total", (r,), n) for r, n in seen.failures.items())
        notifies = self.control.statistics().notifies
        yield from (Sample("notifies_in_total", (v,), n) for v, n in notifies.items())
        updates = self._updates.statistics()
        yield from (Sample("dns_updates_total", (c,), n) for c, n in updates.answered.items())
