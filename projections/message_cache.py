"""Answers of upstreams, kept for as long as they say (RFC 1035 section 3.2.1, RFC 2308).

A whole answer is kept under its question, and is never taken apart to answer another one. What is
expired stays as a stale answer (RFC 8767) until it is too old or its room is needed. The least
recently used answers go first. Time is monotonic: a wall clock that jumps ages nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.responses import KeptAnswer, Message, with_ttls_between
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


class MessageCache:
    """Keys begin with the name, in lower case and wire form; the rest is the caller's."""

    def __init__(self, settings: CacheSettings) -> None:
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()  # least recently used first
        self._bytes = 0
        self._hits = self._negative_hits = self._misses = self._stale = 0
        self._evictions = self._prefetches = 0
        self.configure(settings)

    def configure(self, settings: CacheSettings) -> None:
        """Take other settings. Answers are kept as far as there is room."""
        self._entries_max = settings.max_entries
        self._bytes_max = settings.max_bytes
        self._low_s = int(settings.min_ttl.total_seconds())
        self._high_s = int(settings.max_ttl.total_seconds())
        self._negative_s = int(settings.negative_ttl.total_seconds())
        self._prefetch = settings.prefetch
        stale = settings.serve_stale
        self._stale_us = int(stale.max_age.total_seconds()) * _SECOND_US if stale.enabled else 0
        self._make_room()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: bytes, now_us: int) -> tuple[Entry | None, int]:
        """What is kept for a question, and how long it is still good: not above 0 where it is
        stale, or nothing."""
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
            return None, 0
        left_us = entry.stored_us + entry.ttl_us - now_us
        if left_us > 0:
            self._entries.move_to_end(key)
            if entry.hits < PREFETCH_HITS:
                entry.hits += 1
            self._hits += 1
            if entry.message.is_negative:
                self._negative_hits += 1
            return entry, left_us
        self._misses += 1
        if -left_us >= self._stale_us:
            self._remove(key)
            return None, 0
        return entry, left_us

    def served_stale(self, key: bytes) -> None:
        """A stale answer was given: somebody still wants it."""
        self._stale += 1
        if key in self._entries:
            self._entries.move_to_end(key)

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
        if message.is_negative:
            # RFC 2308 section 5: the SOA of the answer shows how long it is kept.
            high_s = min(high_s, max(min(ttl_s, self._negative_s), self._low_s))
        changed = with_ttls_between(message, self._low_s, high_s)
        if changed is message and self._low_s <= ttl_s <= high_s:
            return message
        return msgspec.structs.replace(changed, ttl_s=min(max(ttl_s, self._low_s), high_s))

    def store(self, key: bytes, message: Message, now_us: int, upstream: str) -> None:
        """Keep a message, bounded before, if it may be kept."""
        if not message.ttl_s:
            return  # RFC 1035 section 3.2.1: of no use but for the question at hand
        self.put(key, message, now_us, message.ttl_s * _SECOND_US, upstream)

    def put(self, key: bytes, message: Message, stored_us: int, ttl_us: int, upstream: str) -> None:
        size = len(key) + len(message.body) + ENTRY_BYTES
        if size > self._bytes_max:
            return
        if key in self._entries:
            self._remove(key)
        self._entries[key] = Entry(message, stored_us, ttl_us, upstream, size)
        self._bytes += size
        self._make_room()

    def flush(self, name: Name | None = None, *, subtree: bool = False) -> int:
        """Forget everything, a name, or a name and what is below it; how many answers that was."""
        if name is None:
            count = len(self._entries)
            self._entries.clear()
            self._bytes = 0
            return count
        wanted = names.key(name)
        found = [key for key in self._entries if _is_meant(key, wanted, subtree=subtree)]
        for key in found:
            self._remove(key)
        return len(found)

    def kept(self, clock_us: int, now_us: int) -> list[Callable[[], KeptAnswer]]:
        """What is kept, to be written down bit by bit: nothing is copied here but references.
        `clock_us` is wall time, `now_us` monotonic."""
        return [
            partial(_kept, key, entry, clock_us - now_us) for key, entry in self._entries.items()
        ]

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
        """All of them, least recently used first. Not while the cache changes."""
        return iter(self._entries.items())

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            entries=len(self._entries),
            bytes=self._bytes,
            hits=self._hits,
            negative_hits=self._negative_hits,
            misses=self._misses,
            stale=self._stale,
            evictions=self._evictions,
            prefetches=self._prefetches,
        )

    def _remove(self, key: bytes) -> None:
        self._bytes -= self._entries.pop(key).size

    def _make_room(self) -> None:
        while len(self._entries) > self._entries_max or self._bytes > self._bytes_max:
            _, entry = self._entries.popitem(last=False)
            self._bytes -= entry.size
            self._evictions += 1


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
