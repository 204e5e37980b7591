"""The objects of a log, copied into a cluster: where `kubernetes.owner` is `log`.

Whatever wakes it, an object is made in the cluster what the log has: after a change here, after one
there, after the API server was away. The copies are managed by `mirror:<log>`, and only those are
touched: an object of the same name that somebody else made there stays his.

The events of the log are the intents; `mirror.written` says which versions came of them.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import NoReturn

from kudurru.adapters.kubernetes.store import KubernetesStore, Write
from kudurru.domain import mirror
from kudurru.domain.errors import Invalid, KudurruError, ManagedBy, NotFound
from kudurru.domain.events import CONTENT_TYPES, Recorded
from kudurru.domain.object_store import StoredObject, manifest_of
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.ports import Clock, Timers
from kudurru.entrypoints.cluster.facts import Facts, is_of_cluster
from kudurru.entrypoints.cluster.feed import Feed
from kudurru.entrypoints.cluster.found import Found, stored_digest
from kudurru.entrypoints.cluster.keys import Keys
from kudurru.entrypoints.waiting import pause
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer

log = logging.getLogger("kudurru.kubernetes")

WORKERS = 4
NOTED_MAX = 256
"""Outcomes in one fact."""
NOTE_US = 1_000_000


class Copies:
    """`run` it while this node leads."""

    def __init__(
        self,
        node: Node,
        writer: Writer,
        facts: Facts,
        store: KubernetesStore,
        feed: Feed,
        *,
        clock: Clock,
        timers: Timers,
    ) -> None:
        self.manager = f"{mirror.COPY_PREFIX}{node.log.log_id}"
        self.foreign: dict[Key, str] = {}
        """Objects that are not copied, because the cluster has one of that name: whose."""
        self.writes = 0
        self._node = node
        self._writer = writer
        self._facts = facts
        self._store = store
        self._feed = feed
        self._clock = clock
        self._timers = timers
        self._keys = Keys(clock, timers)
        self._outcomes: dict[Key, mirror.Version] = {}

    async def run(self) -> NoReturn:
        await self._feed.synced.wait()
        self._writer.listeners.append(self._heard)
        try:
            async with self._writer.applying:
                for key in {*self._node.objects.all_keys(), *self._feed.all_keys()}:
                    self._keys.add(key)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_noted())
                await self._keys.work(self._settle, WORKERS)
        finally:
            self._writer.listeners.remove(self._heard)

    def look(self, key: Key) -> None:
        """The object changed in the cluster."""
        self._keys.add(key)

    def again(self) -> None:
        """The API server answers again."""
        self._keys.again()

    def _heard(self, recorded: Sequence[Recorded]) -> None:
        for event in recorded:
            if event.type in CONTENT_TYPES:
                self._keys.add(event.key)

    async def _settle(self, key: Key) -> bool:
        stored, found = self._node.objects.find(key), self._feed.find(key)
        if stored is not None and not is_of_cluster(stored):
            return True
        try:
            if stored is not None:
                await self._copy(stored, found)
            elif found is not None and found.manager == self.manager:
                await self._remove(key)
            else:
                self.foreign.pop(key, None)
        except ManagedBy as error:
            self._tell_foreign(key, error.owner)
        except Invalid as error:
            log.warning("the cluster refuses %s: %s", ref_of(key), error)
        except KudurruError as error:
            log.debug("%s is not copied, and tried again: %s", ref_of(key), error)
            return False
        return True

    async def _copy(self, stored: StoredObject, found: Found | None) -> None:
        if found is not None and found.manager != self.manager:
            raise ManagedBy(str(ref_of(stored.key)), found.manager or found.owner)
        self.foreign.pop(stored.key, None)
        if found is not None and found.made == stored_digest(stored):
            return
        body = stored.body
        manifest = manifest_of(stored.key, body.spec, body.labels, body.annotations)
        # Ours by its annotation: a field that somebody set in it is set back.
        carried = await self._store.write(Write(manifest, self.manager, found is not None))
        if carried.outcome.verb != "unchanged" and carried.after is not None:
            self.writes += 1
            now = carried.after["metadata"]
            self._note(stored.key, now["uid"], now["resourceVersion"])

    async def _remove(self, key: Key) -> None:
        try:
            # Whether it is too much was asked when the log took it.
            await self._store.delete(key, manager=self.manager, allow_mass_change=True)
        except NotFound:
            return
        self.writes += 1
        self._note(key, "", "")

    def _tell_foreign(self, key: Key, owner: str) -> None:
        if self.foreign.get(key) != owner:
            log.warning(
                "%s is not copied: the cluster has one that %s manages; delete it there, or "
                "choose another name",
                ref_of(key),
                owner or "somebody else",
            )
        self.foreign[key] = owner

    # --- outcomes -----------------------------------------------------------------------

    def _note(self, key: Key, uid: str, version: str) -> None:
        self._outcomes[key] = mirror.Version(key=key, uid=uid, resource_version=version)

    async def _keep_noted(self) -> NoReturn:
        while True:
            await pause(self._timers, NOTE_US)
            while self._outcomes:
                keys = list(self._outcomes)[:NOTED_MAX]
                versions = [self._outcomes.pop(key) for key in keys]
                body = mirror.Written(cluster=self._facts.cluster, versions=versions)
                try:
                    await self._facts.record(body)
                except KudurruError as error:
                    log.warning("what was copied is not noted in the log: %s", error)
                    break
