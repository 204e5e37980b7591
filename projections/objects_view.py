"""Objects: which there are now, and at which positions their bodies are.

Per object only an index entry is held; bodies stay in the log and are read when asked for, so a
million objects cost a few hundred megabytes less and a cold start decodes none of them.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from kudurru.domain.events import (
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_MOVED,
    OBJECT_STATUS,
    OBJECT_TYPES,
    Position,
    Recorded,
)
from kudurru.domain.kinds.registry import KINDS
from kudurru.domain.object_store import (
    StoredObject,
    decode_body,
    decode_status,
    resource_version,
)
from kudurru.domain.objects import Key
from kudurru.domain.set_digest import SetDigest

CACHE_MAX = 4096
"""Decoded objects kept: enough that a burst on the same objects reads the log once."""

READ_EVENT = Callable[[int], Recorded | None]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """Where the log has an object. `gc=False`: it holds integers only, and a million of them
    would cost every full collection half a second."""

    ver: int
    seq: int  # of its newest event of any type: makes the resourceVersion
    applied: int  # seq of the newest obj.applied
    status: int  # seq of the newest obj.status since it was created, 0 when none


class Page(NamedTuple):
    objects: list[StoredObject]
    next_key: str | None  # where the next page begins


class ObjectsView:
    """Implements `domain.object_store.ObjectState` and `projections.follow.Projection`."""

    name = "objects"

    def __init__(self, read_event: READ_EVENT, epoch: int) -> None:
        self._read_event = read_event
        self._epoch = epoch
        self.reset()

    def reset(self) -> None:
        self.position = Position(0)
        self._entries: dict[Key, Entry] = {}
        self._gone: dict[Key, int] = {}  # deleted: version of the stream
        self.facts: dict[Key, int] = {}
        """Versions of the streams that hold no object, such as marks."""
        self._sorted: dict[str, list[Key]] = {}  # per kind, made when listed
        self._cache: OrderedDict[Key, StoredObject] = OrderedDict()
        self._digest = SetDigest()
        self._counts = dict.fromkeys(KINDS, 0)

    def apply(self, event: Recorded) -> None:
        self.position = event.seq
        if event.type not in OBJECT_TYPES:
            self.facts[event.key] = event.ver
            return
        key = event.key
        before = self._entries.get(key)
        if before is not None:
            self._digest.remove(_element(key, before))
            self._cache.pop(key, None)
        entry: Entry | None = None
        match event.type:
            case t if t == OBJECT_APPLIED:
                entry = Entry(event.ver, event.seq, event.seq, before.status if before else 0)
            case t if t == OBJECT_STATUS and before is not None:
                entry = Entry(event.ver, event.seq, before.applied, event.seq)
            case t if t == OBJECT_MOVED and before is not None:
                entry = Entry(event.ver, event.seq, before.applied, before.status)
            case t if t == OBJECT_DELETED:
                pass
        if (before is None) != (entry is None):
            kind = key.partition("/")[0]
            self._sorted.pop(kind, None)
            self._counts[kind] = self._counts.get(kind, 0) + (1 if entry else -1)
        if entry is None:
            self._entries.pop(key, None)
            self._gone[key] = event.ver
        else:
            self._entries[key] = entry
            self._gone.pop(key, None)
            self._digest.add(_element(key, entry))

    def advance(self, now_s: int) -> None:
        """Objects do not expire; only what they say does."""

    def digest(self) -> str:
        return self._digest.hexdigest()

    # --- reading ------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def count(self, kind: str) -> int:
        return self._counts.get(kind, 0)

    def version(self, key: Key) -> int:
        entry = self._entries.get(key)
        return entry.ver if entry else self._gone.get(key) or self.facts.get(key, 0)

    def entry(self, key: Key) -> Entry | None:
        return self._entries.get(key)

    def find(self, key: Key) -> StoredObject | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        cached = self._cache.get(key)
        if cached is not None:
            self._cache.move_to_end(key)
            return cached
        stored = self._load(key, entry)
        self._cache[key] = stored
        if len(self._cache) > CACHE_MAX:
            self._cache.popitem(last=False)
        return stored

    def _load(self, key: Key, entry: Entry) -> StoredObject:
        applied = self._read_event(entry.applied)
        # The body of a live object is never erased and the index came from this log.
        assert applied is not None
        assert applied.body is not None
        status = self._read_event(entry.status) if entry.status else None
        return StoredObject(
            key=key,
            ver=entry.ver,
            resource_version=resource_version(self._epoch, entry.seq),
            manager=applied.manager,
            scope=applied.scope,
            body=decode_body(applied.body),
            status=decode_status(status.body) if status and status.body else None,
        )

    def keys(self, kind: str, namespace: str | None = None) -> list[Key]:
        """Keys of a kind, in their order as texts. Do not change the list."""
        found = self._sorted.get(kind)
        if found is None:
            prefix = kind + "/"
            found = sorted(key for key in self._entries if key.startswith(prefix))
            self._sorted[kind] = found
        if namespace is None:
            return found
        first = bisect_left(found, f"{kind}/{namespace}/")
        return found[first : bisect_left(found, f"{kind}/{namespace}0", first)]  # 0 follows /

    def list(
        self,
        kind: str,
        namespace: str | None = None,
        selector: Callable[[dict[str, str]], bool] | None = None,
        *,
        limit: int | None = None,
        start: str = "",
    ) -> Page:
        found: list[StoredObject] = []
        keys = self.keys(kind, namespace)
        for at in range(bisect_left(keys, start), len(keys)):
            key = keys[at]
            if limit is not None and len(found) == limit:
                return Page(found, key)
            stored = self.find(key)
            if stored is not None and (selector is None or selector(stored.body.labels)):
                found.append(stored)
        return Page(found, None)


def _element(key: Key, entry: Entry) -> bytes:
    return f"{key}\0{entry.ver}\0{entry.seq}\0{entry.applied}\0{entry.status}".encode()
