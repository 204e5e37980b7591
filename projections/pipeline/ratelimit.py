"""Who may ask how often over UDP: token buckets per network, after the design of response rate
limits in other servers, but on queries.

A UDP source address may be forged, so it is the victim that we protect: of what is over the limit a
share gets an empty answer with TC, which brings a real client back over TCP, and the rest nothing.
The limiter stands before everything else, also before the memo, so that a flood of nonsense is
charged like any other.

The empty answer carries the cookie of a query that has one: a client that expects a cookie discards
an answer without (RFC 7873 section 5.3), and would not come back over TCP.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Final, NamedTuple, Protocol

import msgspec

from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.health import HEALTH_NAME, is_health_query
from kudurru.domain.dns.messages import (
    COOKIE,
    EDNS_VERSION,
    Query,
    find_option,
    pack_option,
    truncated_reply,
)
from kudurru.domain.ports import Clock
from kudurru.domain.settings import RatelimitSettings

DROP: Final = b""
"""The verdict that sends nothing."""

_MINUTE_US = 60_000_000
_LIMIT_MAX = 1 << 40  # a minute: more than any host receives, and it fits everywhere
_BUCKETS_MAX = 1 << 31
_MAPPED = bytes(10) + b"\xff\xff"  # IPv4 addresses among those of IPv6 (RFC 4291 section 2.5.5.2)
_BITS = {4: 32, 16: 128}


class RatelimitStatistics(msgspec.Struct, frozen=True, kw_only=True):
    slipped: int
    dropped: int
    buckets: int


class Level(NamedTuple):
    """Networks of one size: octets of an address, bits of the prefix; `limit` queries a minute, and
    at once."""

    size: int
    bits: int
    limit: int


class Buckets(Protocol):
    """Allowances of networks. Clients are addresses of 4 or 16 octets; IPv4 addresses among those
    of IPv6 are IPv4 addresses."""

    def configure(
        self,
        *,
        is_enabled: bool,
        slip: int,
        buckets_max: int,
        levels: Sequence[tuple[int, int, int]],
        exempt: Sequence[tuple[bytes, int]],
    ) -> None:
        """Take new limits. All buckets are full then. `levels` are as `Level` has them, the
        smallest networks first; `exempt` are octets and bits. Who counts by itself has to know
        whether the limiter `is_enabled`."""
        ...

    def take(self, client: bytes, count: int, now_us: int) -> int:
        """How many of `count` queries are within every limit; they are charged."""
        ...

    def slips(self, client: bytes) -> bool:
        """Whether a query over the limit is one of those that get an answer."""
        ...

    def counts(self) -> tuple[int, int, int]:
        """Queries over the limit that slipped and that were dropped, of those that never came to
        the limiter because an engine uses the buckets by itself; buckets."""
        ...


class _Bucket:
    """Of one network. `full_at` is when it will hold its whole allowance again, in microseconds
    times the limit, so that every limit divides evenly. `owed` counts up to a hundred for each
    slip: the share is spread evenly and without chance."""

    __slots__ = ("full_at", "owed")

    def __init__(self) -> None:
        self.full_at = 0
        self.owed = 99  # so that the first query over the limit is a slip, unless there are none


class TokenBuckets:
    """Implements `Buckets`.

    Levels are charged from the smallest network up, and what one level refuses does not reach the
    next: a limited address does not drain its network.
    """

    def configure(
        self,
        *,
        is_enabled: bool,  # noqa: ARG002  # the limiter asks nothing of us when it is not
        slip: int,
        buckets_max: int,
        levels: Sequence[tuple[int, int, int]],
        exempt: Sequence[tuple[bytes, int]],
    ) -> None:
        self._slip = slip
        self._buckets_max = buckets_max
        self._levels: dict[int, list[tuple[int, int, int]]] = {4: [], 16: []}
        for size, bits, limit in levels:
            # The mark tells the buckets of this level from those of others.
            level = _BITS[size] - bits, bits << 1 | (size == 16), limit
            self._levels[size].append(level)
        self._exempt: dict[int, list[tuple[int, int]]] = {4: [], 16: []}
        for network, bits in exempt:
            shift = _BITS[len(network)] - bits
            self._exempt[len(network)].append((shift, int.from_bytes(network, "big") >> shift))
        self._buckets: OrderedDict[int, _Bucket] = OrderedDict()  # least recently used first

    def take(self, client: bytes, count: int, now_us: int) -> int:
        client = unmapped(client)
        size = len(client)
        value = int.from_bytes(client, "big")
        for shift, prefix in self._exempt[size]:
            if value >> shift == prefix:
                return count
        for shift, mark, limit in self._levels[size]:
            bucket = self._bucket(value >> shift << 9 | mark)
            now = now_us * limit
            full_at = bucket.full_at
            left = limit
            if full_at > now:
                left += (now - full_at) // _MINUTE_US
            else:
                full_at = now
            if left < count:
                if not left:
                    return 0
                count = left
            bucket.full_at = full_at + count * _MINUTE_US
        return count

    def slips(self, client: bytes) -> bool:
        client = unmapped(client)
        shift, mark, _ = self._levels[len(client)][0]
        bucket = self._bucket(int.from_bytes(client, "big") >> shift << 9 | mark)
        bucket.owed += self._slip
        if bucket.owed < 100:
            return False
        bucket.owed -= 100
        return True

    def counts(self) -> tuple[int, int, int]:
        return 0, 0, len(self._buckets)

    def _bucket(self, key: int) -> _Bucket:
        buckets = self._buckets
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = _Bucket()
            if len(buckets) > self._buckets_max:
                buckets.popitem(last=False)
        else:
            buckets.move_to_end(key)
        return bucket


class RateLimiter:
    """Implements `domain.ports.QueryLimiter`. `buckets` may be an engine's own, which then counts
    by them without asking here."""

    def __init__(
        self,
        settings: RatelimitSettings,
        clock: Clock,
        cookies: Cookies | None = None,
        buckets: Buckets | None = None,
    ) -> None:
        self.buckets = buckets or TokenBuckets()
        self._clock = clock
        self._cookies = cookies
        self._slipped = self._dropped = 0
        self.configure(settings)

    def configure(self, settings: RatelimitSettings) -> None:
        """Take new limits. All buckets are full then."""
        self._is_enabled = settings.enabled
        self.buckets.configure(
            is_enabled=settings.enabled,
            slip=settings.slip,
            buckets_max=min(settings.max_buckets, _BUCKETS_MAX),
            levels=[*_levels(settings.ipv4, 4), *_levels(settings.ipv6, 16)],
            exempt=[(one.network_address.packed, one.prefixlen) for one in settings.exempt],
        )

    def statistics(self) -> RatelimitStatistics:
        slipped, dropped, buckets = self.buckets.counts()
        return RatelimitStatistics(
            slipped=self._slipped + slipped, dropped=self._dropped + dropped, buckets=buckets
        )

    def admit(
        self,
        clients: Sequence[bytes],
        queries: Sequence[bytes],
        *,
        unknown: Sequence[bytes] | None = None,
    ) -> Sequence[bytes | None] | None:
        if not self._is_enabled:
            return None
        free: frozenset[int] = frozenset()
        if _may_ask_for_health(queries if unknown is None else unknown):
            free = frozenset(i for i, query in enumerate(queries) if is_health_query(query))
        charged = [c for i, c in enumerate(clients) if i not in free] if free else clients
        if charged.count(clients[0]) == len(clients):  # most batches of a busy server
            counts: dict[bytes, int] = {clients[0]: len(clients)}
        else:
            counts = Counter(charged)
        now_us = self._clock.monotonic_us()
        limited = {}
        for client, count in counts.items():
            allowed = self.buckets.take(client, count, now_us)
            if allowed < count:
                limited[client] = allowed
        if not limited:
            return None
        verdicts: list[bytes | None] = []
        for i, client in enumerate(clients):
            allowed = limited.get(client, 1)
            if i in free or allowed:
                verdicts.append(None)
                if client in limited and i not in free:
                    limited[client] -= 1
            else:
                verdicts.append(self._over(client, queries[i]))
        return verdicts

    def _over(self, client: bytes, query: bytes) -> bytes:
        """What a query over the limit gets."""
        reply = self.truncated(client, query) if self.buckets.slips(client) else None
        if reply is None:
            self._dropped += 1
            return DROP
        self._slipped += 1
        return reply

    def truncated(self, client: bytes, query: bytes) -> bytes | None:
        """The empty answer that sends the client of a message to TCP, both without their ID. None
        where nothing may be sent."""
        address = unmapped(client)
        reply = truncated_reply(b"\0\0" + query, partial(self._cookie, address))
        return reply[2:] if reply is not None else None

    def _cookie(self, client: bytes, query: Query) -> bytes:
        shown = find_option(query.options, COOKIE)
        if shown is None or self._cookies is None or query.edns_version != EDNS_VERSION:
            return b""
        now_s = self._clock.now_us() // 1_000_000
        verdict = self._cookies.judge(shown, str(ip_address(client)), now_s)
        return b"" if verdict is None else pack_option(COOKIE, verdict.cookie)


def unmapped(client: bytes) -> bytes:
    """An IPv4 client is one client, also where its address is written as one of IPv6."""
    return client[12:] if len(client) == 16 and client.startswith(_MAPPED) else client


def _levels(limits: Mapping[int, int], size: int) -> Iterator[Level]:
    """Levels that are on, smallest networks first."""
    for length in sorted(limits, reverse=True):
        if limits[length]:
            yield Level(size, length, min(limits[length], _LIMIT_MAX))


def _may_ask_for_health(queries: Sequence[bytes]) -> bool:
    """One look at all of them finds that none does, as nearly always."""
    return bool(queries) and b"".join(queries).lower().find(HEALTH_NAME) >= 0
