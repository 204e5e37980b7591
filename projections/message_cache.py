"""Answers of upstreams, kept for as long as they say (RFC 1035 section 3.2.1, RFC 2308).

A whole answer is kept under its question, and is never taken apart to answer another one. What is
expired stays as a stale answer (RFC 8767) until it is too old or its room is needed. The least
recently used answers go first. Time is monotonic: a wall clock that jumps ages nothing.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.resolved import with_ttls_between
from kudurru.domain.dns.responses import KeptAnswer, Message
from kudurru.domain.settings import CacheSettings

ENTRY_BYTES = 600
"""Of Python's own objects for one entry, measured; so that `cache.maxBytes` is what memory grows
by."""

PREFETCH_HITS = 2
"""An answer that was asked for so often is worth fetching again before it expires."""

PREFETCH_ASKED = PREFETCH_HITS + 1
"""In the place of hits, when it is being fetched."""

PREFETCH_PART = 10
"""In the last tenth of its life, as other resolvers do."""

SHARDS = 64
SHARDED_FROM = 8192
"""A large cache is in parts, so that a dump can copy one at a time: copying even the references of
100,000 answers at once takes some 50 ms."""

_SECOND_US = 1_000_000


class CacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    entries: int
    bytes: int
    hits: int
    negative_hits: int
    misses: int
    stale: int
    evictions: int
    prefetches: int


class Entry(msgspec.Struct, gc=False):
    """An answer in the cache. `hits` are since it was stored, as far as they matter."""

    message: Message
    stored_us: int
    ttl_us: int
    upstream: str
    size: int
    hits: int = 0

    def age_s(self, now_us: int) -> int:
        return (now_us - self.stored_us) // _SECOND_US


class _Shard:
    """A part of the cache, bounded by itself."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries: OrderedDict[bytes, Entry] = OrderedDict()  # least recently used first
        self.bytes = 0

    def put(self, key: bytes, entry: Entry) -> None:
        if key in self.entries:
            self.remove(key)
        self.entries[key] = entry
        self.bytes += entry.size

    def remove(self, key: bytes) -> None:
        self.bytes -= self.entries.pop(key).size

    def make_room(self, entries_max: int, bytes_max: int) -> int:
        """How many answers had to go."""
        count = 0
        while len(self.entries) > entries_max or self.bytes > bytes_max:
            _, entry = self.entries.popitem(last=False)
            self.bytes -= entry.size
            count += 1
        return count


class MessageCache:
    """Keys begin with the name, in lower case and wire form; the rest is the caller's."""

    def __init__(self, settings: CacheSettings) -> None:
        self._shards = [_Shard()]
        self._hits = self._negative_hits = self._misses = self._stale = 0
        self._evictions = self._prefetches = 0
        self.configure(settings)

    def configure(self, settings: CacheSettings) -> None:
        """Take other settings. Answers are kept as far as there is room."""
        self._low_s = int(settings.min_ttl.total_seconds())
        self._high_s = int(settings.max_ttl.total_seconds())
        self._negative_s = int(settings.negative_ttl.total_seconds())
        self._prefetch = settings.prefetch
        stale = settings.serve_stale
        self._stale_us = int(stale.max_age.total_seconds()) * _SECOND_US if stale.enabled else 0
        count = SHARDS if settings.max_entries >= SHARDED_FROM else 1
        self._entries_max = settings.max_entries // count
        self._bytes_max = settings.max_bytes // count
        before = self._shards
        if count != len(before):
            self._shards = [_Shard() for _ in range(count)]
            for shard in before:
                for key, entry in shard.entries.items():
                    self._shard(key).put(key, entry)
        for shard in self._shards:
            self._evictions += shard.make_room(self._entries_max, self._bytes_max)

    def __len__(self) -> int:
        return sum(len(shard.entries) for shard in self._shards)

    def find(self, key: bytes, now_us: int) -> tuple[Entry | None, int]:
        """What is kept for a question, and how long it is still good: not above 0 where it is
        stale, or nothing."""
        shard = self._shards[hash(key) % len(self._shards)]
        entry = shard.entries.get(key)
        if entry is None:
            self._misses += 1
            return None, 0
        left_us = entry.stored_us + entry.ttl_us - now_us
        if left_us > 0:
            shard.entries.move_to_end(key)
            if entry.hits < PREFETCH_HITS:
                entry.hits += 1
            self._hits += 1
            if entry.message.is_negative:
                self._negative_hits += 1
            return entry, left_us
        self._misses += 1
        if -left_us >= self._stale_us:
            shard.remove(key)
            return None, 0
        return entry, left_us

    def same_until_us(self, entry: Entry) -> int:
        """Until when the answer may be given without asking here: then it ends, or somebody who
        asks makes it fresh."""
        part_us = entry.ttl_us // PREFETCH_PART if self._prefetch else 0
        return entry.stored_us + entry.ttl_us - part_us

    def served_stale(self, key: bytes) -> None:
        """A stale answer was given: somebody still wants it."""
        self._stale += 1
        entries = self._shard(key).entries
        if key in entries:
            entries.move_to_end(key)

    def is_due(self, entry: Entry, left_us: int) -> bool:
        """Whether to fetch it again before it expires; said once."""
        if not self._prefetch or entry.hits != PREFETCH_HITS:
            return False
        if left_us * PREFETCH_PART > entry.ttl_us:
            return False
        entry.hits = PREFETCH_ASKED
        self._prefetches += 1
        return True

    def bounded(self, message: Message) -> Message:
        """The message with its TTLs within our bounds; that is what clients see, too."""
        ttl_s = message.ttl_s
        if ttl_s is None:
            return message
        high_s = self._high_s
        if len(message.ttls_at) == 1 and self._low_s <= ttl_s <= high_s and not message.is_negative:
            return message  # its only TTL is the smallest
        if message.is_negative:
            # RFC 2308 section 5: the SOA of the answer shows how long it is kept.
            high_s = min(high_s, max(min(ttl_s, self._negative_s), self._low_s))
        changed = with_ttls_between(message, self._low_s, high_s)
        if changed is message and self._low_s <= ttl_s <= high_s:
            return message
        return msgspec.structs.replace(changed, ttl_s=min(max(ttl_s, self._low_s), high_s))

    def store(self, key: bytes, message: Message, now_us: int, upstream: str) -> None:
        """Keep a message, bounded before, if it may be kept; what was kept before is not true any
        more, in either case."""
        if not message.ttl_s:
            # RFC 1035 section 3.2.1: of no use but for the question at hand.
            shard = self._shard(key)
            if key in shard.entries:
                shard.remove(key)
            return
        self.put(key, message, now_us, message.ttl_s * _SECOND_US, upstream)

    def put(self, key: bytes, message: Message, stored_us: int, ttl_us: int, upstream: str) -> None:
        size = len(key) + len(message.body) + ENTRY_BYTES
        if size > self._bytes_max:
            return
        shard = self._shards[hash(key) % len(self._shards)]
        shard.put(key, Entry(message, stored_us, ttl_us, upstream, size))
        if len(shard.entries) > self._entries_max or shard.bytes > self._bytes_max:
            self._evictions += shard.make_room(self._entries_max, self._bytes_max)

    def flush(self, name: Name | None = None, *, subtree: bool = False) -> int:
        """Forget everything, a name, or a name and what is below it; how many answers that was."""
        count = 0
        wanted = None if name is None else names.key(name)
        for shard in self._shards:
            found = [
                key
                for key in shard.entries
                if wanted is None or _is_meant(key, wanted, subtree=subtree)
            ]
            for key in found:
                shard.remove(key)
            count += len(found)
        return count

    def kept(self, clock_us: int, now_us: int) -> Iterator[KeptAnswer]:
        """What is kept, to be written down bit by bit while the cache goes on. `clock_us` is wall
        time, `now_us` monotonic."""
        for shard in self._shards:
            for key, entry in list(shard.entries.items()):
                yield _kept(key, entry, clock_us - now_us)

    def restore(self, answers: Iterable[KeptAnswer], clock_us: int, now_us: int) -> int:
        """Take back what was written down; how many are still of use. The time between counts. An
        answer is never better than it was when it was written at `clock_us` or before."""
        count = 0
        for kept in answers:
            left_us = min(kept.expires_us - clock_us, kept.ttl_us)
            if kept.ttl_us > 0 and left_us > -self._stale_us:
                stored_us = now_us + left_us - kept.ttl_us
                self.put(kept.key, kept.message, stored_us, kept.ttl_us, kept.upstream)
                count += 1
        return count

    def entries(self) -> Iterator[tuple[bytes, Entry]]:
        """All of them. Not while the cache changes."""
        return chain.from_iterable(shard.entries.items() for shard in self._shards)

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            entries=len(self),
            bytes=sum(shard.bytes for shard in self._shards),
            hits=self._hits,
            negative_hits=self._negative_hits,
            misses=self._misses,
            stale=self._stale,
            evictions=self._evictions,
            prefetches=self._prefetches,
        )

    def _shard(self, key: bytes) -> _Shard:
        return self._shards[hash(key) % len(self._shards)]


def _kept(key: bytes, entry: Entry, offset_us: int) -> KeptAnswer:
    expires_us = entry.stored_us + entry.ttl_us + offset_us
    return KeptAnswer(key, expires_us, entry.ttl_us, entry.upstream, entry.message)


def _is_meant(key: bytes, wanted: bytes, *, subtree: bool) -> bool:
    if not subtree:
        return key.startswith(wanted)  # a name ends with its zero octet, so it is all of it
    at = 0
    while not key.startswith(wanted, at):
        if not key[at]:
            return False
        at += key[at] + 1
    return True
