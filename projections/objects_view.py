"""Objects: which there are now, and at which positions their bodies are.

Per object only an index entry is held; bodies stay in the log and are read when asked for, so a
million objects cost a few hundred megabytes less and a cold start decodes none of them.
"""

import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import msgspec

from kudurru.domain.checkpoint import StateBody
from kudurru.domain.errors import LogDamaged, Redacted
from kudurru.domain.events import (
    CHECKPOINT_STATE,
    OBJECT_APPLIED,
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
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.set_digest import SetDigest, number_of

CACHE_MAX = 4096
"""Decoded objects kept: enough that a burst on the same objects reads the log once."""

READ_EVENT = Callable[[int], Recorded | None]


PART_ENTRIES = 20_000

UNSETTLED_MAX = 4_000
"""Objects whose change is not in the digests yet: what changes again and again is counted once, and
to catch up takes some milliseconds."""

GROUPS_MAX = 4_096
"""Names of groups that are remembered: there is one a zone."""


class Entry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where the log has an object. `gc=False`: it holds integers only, and a million of them
    would cost every full collection half a second."""

    ver: int
    seq: int  # of its newest event of any type: makes the resourceVersion
    applied: int  # seq of the newest obj.applied
    status: int  # seq of the newest obj.status since it was created, 0 when none


class _Unsettled(NamedTuple):
    """What the digests have of an object, and the group that it is in now."""

    counted_in: str
    entry: Entry | None
    group: str


class _Dump(msgspec.Struct, frozen=True, array_like=True):
    """All of the view but its entries."""

    position: Position
    entries: int  # how many come in the parts after this one
    gone: dict[Key, int]
    facts: dict[Key, int]
    digest: bytes
    groups: dict[str, bytes]
    changed: list[str]
    counts: dict[str, int]


_decode_dump = msgspec.msgpack.Decoder(_Dump).decode
_decode_entries = msgspec.msgpack.Decoder(dict[Key, Entry]).decode


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

    def begin_epoch(self, epoch: int) -> None:
        """Versions are of this epoch from now on, those of older objects too."""
        self._epoch = epoch

    def reset(self) -> None:
        self.position = Position(0)
        self._entries: dict[Key, Entry] = {}
        self._gone: dict[Key, int] = {}  # deleted: version of the stream
        self.facts: dict[Key, int] = {}
        """Versions of the streams that hold no object, such as marks."""
        self._sorted: dict[str, list[Key]] = {}  # per kind, made when listed
        self._cache: OrderedDict[Key, StoredObject] = OrderedDict()
        self._digest = SetDigest()
        self._groups: dict[str, SetDigest] = {}  # parts of it, see `_group`
        self._changed: set[str] = set()  # groups, since the last checkpoint
        self._unsettled: dict[Key, _Unsettled] = {}
        self._unsettled_max = UNSETTLED_MAX
        self._moving: dict[Key, str] = {}  # scope that an object leaves in this change set
        self._counts = dict.fromkeys(KINDS, 0)

    def apply(self, event: Recorded) -> None:
        self.position = event.seq
        if event.type not in OBJECT_TYPES:
            if event.type == CHECKPOINT_STATE:
                self._changed.clear()
            self.facts[event.key] = event.ver
            return
        key, type_ = event.key, event.type
        before = self._entries.get(key)
        scope = event.scope
        if before is not None:
            scope = self._moving.pop(key, scope) if self._moving else scope
            self._cache.pop(key, None)
        entry: Entry | None = None
        if type_ == OBJECT_APPLIED:
            entry = Entry(event.ver, event.seq, event.seq, before.status if before else 0)
        elif type_ == OBJECT_STATUS and before is not None:
            entry = Entry(event.ver, event.seq, before.applied, event.seq)
        elif type_ == OBJECT_MOVED and before is not None:
            self._moving[key] = event.scope
            entry = Entry(event.ver, event.seq, before.applied, before.status)
        if (before is None) != (entry is None):
            kind = key.partition("/")[0]
            self._sorted.pop(kind, None)
            self._counts[kind] = self._counts.get(kind, 0) + (1 if entry else -1)
        if entry is None:
            self._entries.pop(key, None)
            self._gone[key] = event.ver
        else:
            self._entries[key] = entry
            if before is None:
                self._gone.pop(key, None)
        if before is not None or entry is not None:
            group = _group(event.scope, key)
            left = group if scope is event.scope else _group(scope, key)
            self._count_later(key, before, left, group)

    def _count_later(self, key: Key, before: Entry | None, left: str, group: str) -> None:
        """Note that an object was in the group `left` and is in `group` now."""
        self._changed.add(group)
        if left is not group:
            self._changed.add(left)
        known = self._unsettled.get(key)
        if known is None:
            self._unsettled[key] = _Unsettled(left, before, group)
            if len(self._unsettled) > self._unsettled_max:
                self._settle_one()
        elif known.group != group:
            self._unsettled[key] = known._replace(group=group)

    @contextmanager
    def rebuilding(self) -> Iterator[None]:
        """Inside, the digests wait: however often an object changes, it is counted once, when they
        are asked for or by `settle_some`."""
        self._unsettled_max = sys.maxsize
        try:
            yield
        finally:
            self._unsettled_max = UNSETTLED_MAX

    def settle_some(self, count: int) -> bool:
        """Bring the digests up to the entries by some objects; whether there are more."""
        for _ in range(min(count, len(self._unsettled))):
            self._settle_one()
        return bool(self._unsettled)

    def _settle_one(self) -> None:
        key, (left, before, group) = self._unsettled.popitem()
        entry = self._entries.get(key)
        if before is not None:
            self._shift(left, -number_of(_element(key, before)))
        if entry is not None:
            self._shift(group, number_of(_element(key, entry)))

    def _settle(self) -> None:
        """Bring the digests up to the entries."""
        while self._unsettled:
            self._settle_one()

    def _shift(self, name: str, number: int) -> None:
        """Count an object in or out."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = SetDigest()
        group.shift(number)
        self._digest.shift(number)

    def advance(self, now_s: int) -> None:
        """Objects do not expire; only what they say does."""

    def digest(self) -> str:
        self._settle()
        return self._digest.hexdigest()

    def state(self) -> StateBody:
        """What a checkpoint says of the state here: see `domain.checkpoint`."""
        self._settle()
        return StateBody(self.digest(), {name: self._group_digest(name) for name in self._changed})

    def state_differences(self, said: StateBody) -> list[str]:
        """Groups that a checkpoint here has otherwise; "all" for one that it leaves out."""
        self._settle()
        found = {name: self._group_digest(name) for name in said.groups.keys() | self._changed}
        different = [n for n, digest in found.items() if said.groups.get(n, "") != digest]
        return sorted(different) or ([] if said.all == self.digest() else ["all"])

    def _group_digest(self, name: str) -> str:
        group = self._groups.get(name)
        return group.hexdigest() if group else ""

    # --- snapshots ----------------------------------------------------------------------

    def dump(self) -> Iterator[bytes]:
        assert not self._moving, "a change set is being applied"
        self._settle()
        head = _Dump(
            self.position,
            len(self._entries),
            self._gone,
            self.facts,
            self._digest.to_bytes(),
            {name: digest.to_bytes() for name, digest in self._groups.items()},
            sorted(self._changed),
            self._counts,
        )
        yield msgspec.msgpack.encode(head)
        entries = iter(self._entries.items())
        while some := dict(islice(entries, PART_ENTRIES)):
            yield msgspec.msgpack.encode(some)

    def load(self, parts: Iterator[bytes]) -> None:
        found = _decode_dump(next(parts))
        while len(self._entries) < found.entries:
            self._entries.update(_decode_entries(next(parts)))
        self._gone = found.gone
        self.facts = found.facts
        self._digest = SetDigest.from_bytes(found.digest)
        self._groups = {name: SetDigest.from_bytes(sum_) for name, sum_ in found.groups.items()}
        self._changed = set(found.changed)
        self._counts = found.counts
        self.position = found.position

    def in_order(self) -> Iterator[Key]:
        """Every key, in the order in which a snapshot has them."""
        return iter(self._entries)

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
        if applied is None:  # the index came from this log
            raise LogDamaged("gap", entry.applied, f"the content of {key} is missing")
        if applied.body is None:  # only of an object as it was: that of a live one stays
            raise Redacted(f"{ref_of(key)} was redacted, at position {entry.applied}")
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

    def all_keys(self) -> list[Key]:
        """Of every kind, in no order that means anything."""
        return list(self._entries)

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


def _group(scope: str, key: Key) -> str:
    """Where an object counts in a checkpoint: with its zone, else with its kind."""
    return _zone_group(scope) or f"kind/{key.partition('/')[0]}"


@lru_cache(GROUPS_MAX)
def _zone_group(scope: str) -> str:
    zone = scope.partition("/")[2]
    return f"zone/{zone}" if zone else ""


def _element(key: Key, entry: Entry) -> bytes:
    return f"{key}\0{entry.ver}\0{entry.seq}\0{entry.applied}\0{entry.status}".encode()
