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
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Final, NamedTuple

import msgspec

from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.messages import (
    COOKIE,
    EDNS_VERSION,
    HEADER_SIZE,
    Query,
    find_option,
    pack_option,
    truncated_reply,
)
from kudurru.domain.dns.zone_tree import CLASS_IN
from kudurru.domain.notation import Network
from kudurru.domain.ports import Clock
from kudurru.domain.settings import RatelimitSettings
from kudurru.projections.pipeline.ingress import HEALTH_NAME

DROP: Final = b""
"""The verdict that sends nothing."""

_MINUTE_US = 60_000_000
_MAPPED = bytes(10) + b"\xff\xff"  # IPv4 addresses among those of IPv6 (RFC 4291 section 2.5.5.2)
_BITS = {4: 32, 16: 128}

# Offsets in a query without its ID.
_COUNTS_AT = 2
_NAME_AT = HEADER_SIZE - 2
_CLASS_AT = _NAME_AT + len(HEALTH_NAME) + 2
_NOT_A_QUERY = 0xF8  # QR and opcode


class RatelimitStatistics(msgspec.Struct, frozen=True, kw_only=True):
    slipped: int
    dropped: int
    buckets: int


class _Level(NamedTuple):
    """Networks of one size."""

    shift: int
    mark: int  # tells the buckets of this level from those of others
    limit: int  # queries a minute, and at once


class _Bucket:
    """Of one network. `full_at` is when it will hold its whole allowance again, in microseconds
    times the limit, so that every limit divides evenly. `owed` counts up to a hundred for each
    slip: the share is spread evenly and without chance."""

    __slots__ = ("full_at", "owed")

    def __init__(self) -> None:
        self.full_at = 0
        self.owed = 99  # so that the first query over the limit is a slip, unless there are none


class RateLimiter:
    """Implements `domain.ports.QueryLimiter`.

    Levels are charged from the smallest network up, and what one level refuses does not reach the
    next: a limited address does not drain its network.
    """

    def __init__(
        self, settings: RatelimitSettings, clock: Clock, cookies: Cookies | None = None
    ) -> None:
        self._clock = clock
        self._cookies = cookies
        self._slipped = self._dropped = 0
        self.configure(settings)

    def configure(self, settings: RatelimitSettings) -> None:
        """Take new limits. All buckets are full then."""
        self._is_enabled = settings.enabled
        self._slip = settings.slip
        self._buckets_max = settings.max_buckets
        self._levels = {4: _levels(settings.ipv4, 4), 16: _levels(settings.ipv6, 16)}
        self._exempt = {4: _prefixes(settings.exempt, 4), 16: _prefixes(settings.exempt, 6)}
        self._buckets: OrderedDict[int, _Bucket] = OrderedDict()  # least recently used first

    def statistics(self) -> RatelimitStatistics:
        return RatelimitStatistics(
            slipped=self._slipped, dropped=self._dropped, buckets=len(self._buckets)
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
            free = frozenset(i for i, query in enumerate(queries) if _is_health_query(query))
        charged = [c for i, c in enumerate(clients) if i not in free] if free else clients
        if charged.count(clients[0]) == len(clients):  # most batches of a busy server
            counts: dict[bytes, int] = {clients[0]: len(clients)}
        else:
            counts = Counter(charged)
        now_us = self._clock.monotonic_us()
        limited = {}
        for client, count in counts.items():
            allowed = self._take(client, count, now_us)
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

    def _take(self, client: bytes, count: int, now_us: int) -> int:
        """How many of `count` queries are within every limit; they are charged."""
        size = len(client)
        if size == 16 and client.startswith(_MAPPED):
            client, size = client[12:], 4
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

    def _over(self, client: bytes, query: bytes) -> bytes:
        """What a query over the limit gets."""
        client = client[12:] if client.startswith(_MAPPED) else client
        shift, mark, _ = self._levels[len(client)][0]
        bucket = self._bucket(int.from_bytes(client, "big") >> shift << 9 | mark)
        bucket.owed += self._slip
        if bucket.owed >= 100:
            bucket.owed -= 100
            reply = truncated_reply(b"\0\0" + query, partial(self._cookie, client))
            if reply is not None:
                self._slipped += 1
                return reply[2:]
        self._dropped += 1
        return DROP

    def _cookie(self, client: bytes, query: Query) -> bytes:
        shown = find_option(query.options, COOKIE)
        if shown is None or self._cookies is None or query.edns_version != EDNS_VERSION:
            return b""
        now_s = self._clock.now_us() // 1_000_000
        verdict = self._cookies.judge(shown, str(ip_address(client)), now_s)
        return b"" if verdict is None else pack_option(COOKIE, verdict.cookie)

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


def _levels(limits: Mapping[int, int], size: int) -> tuple[_Level, ...]:
    """Levels that are on, smallest networks first."""
    bits = _BITS[size]
    return tuple(
        _Level(bits - length, length << 1 | (size == 16), limits[length])
        for length in sorted(limits, reverse=True)
        if limits[length]
    )


def _prefixes(networks: Iterable[Network], version: int) -> tuple[tuple[int, int], ...]:
    """(shift, prefix) of networks."""
    found = []
    for network in networks:
        if network.version == version:
            shift = network.max_prefixlen - network.prefixlen
            found.append((shift, int(network.network_address) >> shift))
    return tuple(found)


def _may_ask_for_health(queries: Sequence[bytes]) -> bool:
    """One look at all of them finds that none does, as nearly always."""
    return bool(queries) and b"".join(queries).lower().find(HEALTH_NAME) >= 0


def _is_health_query(query: bytes) -> bool:
    return (
        query[_NAME_AT : _NAME_AT + len(HEALTH_NAME)].lower() == HEALTH_NAME
        and not query[0] & _NOT_A_QUERY
        and query[_COUNTS_AT : _COUNTS_AT + 2] == b"\0\1"
        and query[_CLASS_AT : _CLASS_AT + 2] == CLASS_IN.to_bytes(2, "big")
    )
