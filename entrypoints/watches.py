"""Watches: changes of objects as they come, and what came while nobody looked.

A watcher has room for LIVE_MAX events. One that is slower is not closed and not short: it is
caught up from the log, where it then sees each object that changed once, as it is by then.
"""

import asyncio
from collections import deque
from functools import partial
from typing import NamedTuple

import msgspec

from kudurru.domain.errors import Closed
from kudurru.domain.events import (
    OBJECT_DELETED,
    OBJECT_MOVED,
    OBJECT_TYPES,
    Position,
    Recorded,
)
from kudurru.domain.object_store import (
    StoredObject,
    position_of,
    resource_version,
    to_document,
)
from kudurru.domain.objects import Key
from kudurru.domain.ports import EventLog, WatchEvent
from kudurru.entrypoints.waiting import Threads
from kudurru.entrypoints.wiring import Node
from kudurru.projections import as_of

LIVE_MAX = 256
"""Events that wait for a watcher: a burst of a few seconds, and less than a megabyte."""

WATCHES_MAX = 1_024
CATCH_UPS_MAX = 2
"""That read the log at once. Others wait: each may have all of it to read."""

SLICE = 64
"""Objects of the first part that are delivered before others get their turn."""


class WatchStatistics(msgspec.Struct, frozen=True):
    watchers: int
    catch_ups: dict[str, int]  # by kind


class Hub:
    """The watches of a node. Implements `wiring.Observer`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._watches: set[LogWatch] = set()
        self._prefixes: tuple[str, ...] = ()  # of keys that somebody watches
        self._catch_ups: dict[str, int] = {}
        self._is_closed = False
        self.threads = Threads(CATCH_UPS_MAX, "kudurru-watch")
        node.observer = self

    def statistics(self) -> WatchStatistics:
        return WatchStatistics(len(self._watches), dict(self._catch_ups))

    def wants(self, key: Key) -> bool:
        return key.startswith(self._prefixes)

    def changed(
        self, event: Recorded, before: StoredObject | None, after: StoredObject | None
    ) -> None:
        if event.type == OBJECT_MOVED:
            return  # what it is part of comes next
        told = _told(event, before, after, self.node.log.epoch)
        if told is None:
            return
        for watch in self._watches:
            if event.key.startswith(watch.prefix):
                watch.tell(event.seq, told)

    def open(self, kind: str, namespace: str | None, after: Position | None) -> "LogWatch":
        """Registers and lists in one step, so that nothing falls between. Raises: Closed."""
        if self._is_closed:
            raise Closed("the store was closed")
        watch = LogWatch(self, kind, namespace, after)
        self._watches.add(watch)
        self._note_prefixes()
        return watch

    def forget(self, watch: "LogWatch") -> None:
        self._watches.discard(watch)
        self._note_prefixes()

    def _note_prefixes(self) -> None:
        self._prefixes = tuple({watch.prefix for watch in self._watches})

    def count_catch_up(self, kind: str) -> None:
        self._catch_ups[kind] = self._catch_ups.get(kind, 0) + 1

    async def close(self) -> None:
        self._is_closed = True
        for watch in tuple(self._watches):
            await watch.stop()


class LogWatch:
    """Implements `Watch`.

    What is delivered, in this order: objects of `_keys` as they are, `_bookmark`, `_live`. When
    all are empty and `_missed_after` says that events were left out, `_keys` is filled from the
    log with what they changed.
    """

    def __init__(self, hub: Hub, kind: str, namespace: str | None, after: Position | None) -> None:
        self._hub = hub
        self._node = hub.node
        self.kind = kind
        self.prefix = f"{kind}/" if namespace is None else f"{kind}/{namespace}/"
        self._keys: deque[_Changed] = deque()
        self._live: deque[WatchEvent] = deque()
        self._missed_after = after
        self._delivered = 0
        self._wake = asyncio.Event()
        self._is_stopped = False
        if after is None:
            keys = self._node.objects.keys(kind, namespace)
            self._keys.extend(_Changed(key) for key in keys)
        version = resource_version(self._node.log.epoch, self._node.objects.position)
        self._bookmark: WatchEvent | None = WatchEvent("Bookmark", version)

    def bookmark(self) -> WatchEvent | None:
        """Where a later watch may resume, when all up to there was delivered; else None."""
        if self._keys or self._bookmark or self._live or self._missed_after is not None:
            return None
        version = resource_version(self._node.log.epoch, self._node.objects.position)
        return WatchEvent("Bookmark", version)

    def __aiter__(self) -> "LogWatch":
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._is_stopped:
            event = self._next_nowait()
            if event is None:
                await self._wait()
                continue
            self._delivered += 1
            if self._delivered % SLICE == 0:
                await asyncio.sleep(0)
            return event
        raise StopAsyncIteration

    async def stop(self) -> None:
        self._is_stopped = True
        self._hub.forget(self)
        self._keys.clear()
        self._live.clear()
        self._wake.set()

    def tell(self, seq: Position, event: WatchEvent) -> None:
        """A change, in order of `seq`."""
        if self._missed_after is not None:
            return  # it will be found in the log
        if len(self._live) == LIVE_MAX:
            self._missed_after = Position(seq - 1)
            self._hub.count_catch_up(self.kind)
            return
        self._live.append(event)
        self._wake.set()

    def _next_nowait(self) -> WatchEvent | None:
        while self._keys:
            event = self._as_it_is(self._keys.popleft())
            if event is not None:
                return event
        if self._bookmark is not None and (self._missed_after is None or self._live):
            bookmark, self._bookmark = self._bookmark, None
            return bookmark
        return self._live.popleft() if self._live else None

    def _as_it_is(self, changed: "_Changed") -> WatchEvent | None:
        stored = self._node.objects.find(changed.key)
        if stored is not None:
            version = stored.resource_version
            return WatchEvent("Added", version, to_document(stored), changed.was_in)
        return changed.deleted

    async def _wait(self) -> None:
        """Until there may be something to deliver."""
        if self._missed_after is None:
            self._wake.clear()
            await self._wake.wait()
            return
        after, upto = self._missed_after, self._node.objects.position
        changed = await self._hub.threads.run(partial(self._changed_since, after, upto))
        if self._is_stopped:
            return
        self._keys.extend(changed)
        # Live again from here, unless more came meanwhile.
        is_level = self._node.objects.position == upto
        self._missed_after = None if is_level else upto

    def _changed_since(self, after: int, upto: int) -> list["_Changed"]:
        """Objects that events with after < seq <= upto changed, in the order of their newest one.
        In any thread; whatever there is where nobody waits for it any more."""
        log = self._node.log
        newest: dict[Key, Recorded] = {}
        was_in: dict[Key, str] = {}
        for event in log.read(after, upto):
            if self._is_stopped:
                break
            if event.type in OBJECT_TYPES and event.key.startswith(self.prefix):
                newest.pop(event.key, None)
                newest[event.key] = event
                was_in.setdefault(event.key, event.scope)  # one that moves says that it leaves
        return [
            _Changed(key, _end_of(log, event, was_in[key]), was_in[key])
            for key, event in newest.items()
        ]


class _Changed(NamedTuple):
    key: Key
    deleted: WatchEvent | None = None  # what to tell where the object is gone by now
    was_in: str = ""


def _told(
    event: Recorded, before: StoredObject | None, after: StoredObject | None, epoch: int
) -> WatchEvent | None:
    version = resource_version(epoch, event.seq)
    if after is not None:
        was_in = before.scope if before else ""
        return WatchEvent("Modified" if before else "Added", version, to_document(after), was_in)
    return _deleted(before, version, before.scope) if before is not None else None


def _deleted(before: StoredObject, version: str, was_in: str) -> WatchEvent:
    """The object as it was, at the version of its end."""
    last = msgspec.structs.replace(before, resource_version=version)
    return WatchEvent("Deleted", version, to_document(last), was_in)


def _end_of(log: EventLog, event: Recorded, was_in: str) -> WatchEvent | None:
    if event.type != OBJECT_DELETED:
        return None
    before = as_of.state(log, event.key, event.seq - 1)
    return _deleted(before, resource_version(log.epoch, event.seq), was_in) if before else None


def resumable(log: EventLog, version: str, position: Position) -> Position | None:
    """Where a watch may go on that has seen everything up to `version`; None when it has to begin
    anew. In any thread."""
    after = position_of(version, log.epoch)
    if after is None or after > position:
        return None
    return after if after >= log.oldest() else None
