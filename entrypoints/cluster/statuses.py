"""What the log says of objects, written into their statuses in the cluster.

The node that leads writes statuses into its log, as every node does; from there they go to the
API server, with the uid and the version that the object was seen with. The log is right: a status
that somebody else wrote in the cluster is written over.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from kudurru.adapters.kubernetes.store import KubernetesStore
from kudurru.domain.errors import Conflict, Invalid, KudurruError, NotFound
from kudurru.domain.events import OBJECT_APPLIED, OBJECT_STATUS, Recorded
from kudurru.domain.object_store import CONTROLLER, StoredObject, to_document
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.ports import Clock, Timers
from kudurru.domain.reconcile.conditions import (
    ACCEPTED,
    READY,
    Said,
    condition,
    parts,
    status_beside,
)
from kudurru.entrypoints.cluster.facts import is_of_cluster
from kudurru.entrypoints.cluster.feed import Feed
from kudurru.entrypoints.cluster.found import Found, said_digest
from kudurru.entrypoints.cluster.keys import Keys
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer

log = logging.getLogger("kudurru.kubernetes")

WORKERS = 4


class _Own(NamedTuple):
    """The newest answer to a write of ours."""

    version: str
    said: bytes


class StatusCopies:
    """`run` it while this node leads."""

    def __init__(
        self,
        node: Node,
        writer: Writer,
        store: KubernetesStore,
        feed: Feed,
        *,
        clock: Clock,
        timers: Timers,
    ) -> None:
        self.writes = 0
        self._node = node
        self._writer = writer
        self._store = store
        self._feed = feed
        self._clock = clock
        self._timers = timers
        self._begin()

    def _begin(self) -> None:
        self._keys = Keys(self._clock, self._timers)
        self._own: dict[Key, _Own] = {}

    async def run(self) -> NoReturn:
        self._begin()
        self._writer.listeners.append(self._heard)
        try:
            for key in self._feed.all_keys():
                self._keys.add(key)
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
            if event.type in (OBJECT_STATUS, OBJECT_APPLIED):
                self._keys.add(event.key)

    async def _settle(self, key: Key) -> bool:
        stored, found = self._node.objects.find(key), self._feed.find(key)
        if found is not None and (why := self._feed.refused.get(key)):
            return await self._tell_refused(key, found, why, stored)
        if stored is None or found is None:
            self._own.pop(key, None)
            return True
        if stored.status is None or not is_of_cluster(stored):
            return True
        base = self._base(key, found)
        said = said_digest(stored.status)
        if base.said == said:
            return True
        try:
            await self._write(stored, found.uid, base.version, said)
        except NotFound:
            return True
        except Invalid as error:
            log.warning("the cluster refuses the status of %s: %s", ref_of(key), error)
            return True
        except Conflict:
            return False
        except KudurruError as error:
            log.debug("the status of %s is not written: %s", ref_of(key), error)
            return False
        return True

    async def _tell_refused(
        self, key: Key, found: Found, why: str, stored: StoredObject | None
    ) -> bool:
        """Beside what the log says of it as it was before, which is served on; beside what is
        there, where the log has none of it."""
        said = [Said(ACCEPTED, "False", "NotAllowed", why)]
        if stored is None:
            said.append(Said(READY, "False", "NotAllowed", why))
        try:
            document = await self._store.get(key)
            metadata = document["metadata"]
            if (metadata["uid"], metadata["resourceVersion"]) != (found.uid, found.version):
                return True  # the news of it is on its way
            there = document.get("status")
            generation, now_s = metadata.get("generation", 0), self._clock.now_us() // 1_000_000
            base = _served(stored, found, there)
            after = status_beside(base, said, generation=generation, now_s=now_s)
            if after != there:
                await self._store.update_status(document | {"status": after}, CONTROLLER)
                self.writes += 1
        except (Conflict, NotFound):
            return True  # it is another by now, of which the feed tells
        except Invalid as error:
            log.warning("the cluster refuses the status of %s: %s", ref_of(key), error)
        except KudurruError as error:
            log.debug("the status of %s is not written: %s", ref_of(key), error)
            return False
        return True

    def _base(self, key: Key, found: Found) -> _Own:
        """What the cluster has, as far as is known: our last write may not have come back yet."""
        own = self._own.get(key)
        if own is not None and int(own.version) > int(found.version):
            return own
        self._own.pop(key, None)
        return _Own(found.version, found.said)

    async def _write(self, stored: StoredObject, uid: str, version: str, said: bytes) -> None:
        document = to_document(stored)
        document["metadata"] |= {"uid": uid, "resourceVersion": version}
        outcome = await self._store.update_status(document, CONTROLLER)
        self.writes += 1
        self._own[stored.key] = _Own(outcome.resource_version, said)


def _served(
    stored: StoredObject | None, found: Found, there: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The status of the version that the log has, with what was told of the one it refuses."""
    if stored is None or stored.status is None or stored.body.uid != found.uid:
        return there
    if not is_of_cluster(stored):
        return there
    told = condition(there, ACCEPTED)
    conditions = parts(stored.status, "conditions") + ([told] if told is not None else [])
    return stored.status | {"conditions": conditions}
