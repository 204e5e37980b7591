"""The resolver as the settings have it: upstreams, groups, routes and the cache, put together."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kudurru.adapters.clock import SystemEntropy
from kudurru.adapters.dns.upstream.carriers import Carriers, why_not_spoken
from kudurru.adapters.metrics import Sample, rcode_label
from kudurru.adapters.timers import LoopTimers
from kudurru.domain.chance import Chance
from kudurru.domain.dns import names
from kudurru.domain.dns.messages import HEADER_SIZE, after_name
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import AAAA, AXFR, IXFR, A
from kudurru.domain.dns.records import CLASS_IN
from kudurru.domain.dns.responses import addresses_of
from kudurru.domain.dns.upstreams import ForDomains, UpstreamAddress, parse_entry
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.later import Later
from kudurru.domain.ports import Clock, Reply
from kudurru.domain.settings import (
    AclSettings,
    CacheSettings,
    ResolverSettings,
    UpstreamSettings,
)
from kudurru.projections.message_cache import MessageCache
from kudurru.projections.pipeline.forward import Forwarder, Group, Outcome, Question, Upstream
from kudurru.projections.pipeline.pipeline import Pipeline
from kudurru.projections.pipeline.resolver import CachingResolver, Route, Rules, Way

log = logging.getLogger("kudurru")

DEFAULT = "default"


class Resolving:
    """The resolver of one server, and what it asks. Belongs to the running loop.

    Raises Invalid where an upstream is known by name only and nobody can be asked for it.
    """

    def __init__(
        self,
        upstreams: UpstreamSettings,
        resolver: ResolverSettings,
        cache: CacheSettings,
        acl: AclSettings,
        clock: Clock,
    ) -> None:
        chance = Chance(SystemEntropy())
        timers = LoopTimers()
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._upstreams: dict[str, Upstream] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._forwarder = Forwarder(clock, timers, chance)
        self._carriers = Carriers(chance, clock, self._look_up)
        self._bootstrap = Group(())
        self._forwards: Mapping[Name, tuple[str, ...]] = {}
        self.cache = MessageCache(cache)
        self.resolver = CachingResolver(self._forwarder, self.cache, clock, timers)
        self.on_flush: Callable[[], None] = lambda: None
        """Hears that the cache forgot something by order: what came of it is over, too."""
        self.configure(upstreams, resolver, cache, acl)

    def configure(
        self,
        upstreams: UpstreamSettings,
        resolver: ResolverSettings,
        cache: CacheSettings,
        acl: AclSettings,
    ) -> None:
        """Take settings. Upstreams that are still named keep their connections and health."""
        check_upstreams(upstreams)
        self._groups = upstreams.groups
        self._policy_routes: dict[tuple[str, ...], Route | None] = {}
        self._carriers.ca = upstreams.ca
        self._forwarder.strategy = upstreams.strategy
        self._forwarder.timeout_us = _microseconds(upstreams.timeout.total_seconds())
        self._bootstrap = Group(tuple(map(self._upstream, _addresses(upstreams.bootstrap))))
        fallback = tuple(map(self._upstream, _addresses(upstreams.fallback)))
        default, by_domain = self._routes(upstreams, fallback)
        self.cache.configure(cache)
        self.resolver.configure(_rules(resolver, cache, acl), default, by_domain)
        self._close_unused()

    def take_zones(self, forwards: Mapping[Name, tuple[str, ...]]) -> None:
        """Send names of zones of type Forward where they say. Harmless when nothing changed."""
        if forwards is not self._forwards:
            self._forwards = forwards
            routes: dict[bytes, Route] = {}
            for apex, texts in forwards.items():
                try:
                    routes[apex] = self.route(texts, is_inside=True)
                except ValueError as fault:  # accepted by a version that looked less closely
                    log.error("zone %s is not forwarded: %s", names.to_text(apex), fault)
            self.resolver.set_zones(routes)
            self._close_unused()

    def route(self, upstreams: Iterable[str], *, is_inside: bool = False) -> Route:
        """Where a policy or a zone sends its questions. Raises ValueError."""
        return self._route(_addresses(upstreams), (), is_inside=is_inside)

    def route_of(self, upstreams: tuple[str, ...]) -> Route | None:
        """Where a policy sends its questions: upstreams, and groups by name. None where they make
        no sense, so that the default counts."""
        if upstreams not in self._policy_routes:
            try:
                addresses = self._members(self._groups, upstreams)
                route: Route | None = self._route(addresses, (), is_inside=False)
            except ValueError:
                route = None
            self._policy_routes[upstreams] = route
        return self._policy_routes[upstreams]

    def admits(self, client: str) -> bool:
        """Implements `filtering.Onward`."""
        return self.resolver.admits(client)

    def way_of(
        self, key: Name, rtype: int, client: str, upstreams: Sequence[str]
    ) -> tuple[Way, Sequence[str]]:
        """Implements `filtering.Onward`."""
        route = self.route_of(tuple(upstreams)) if upstreams else None
        way = self.resolver.way_of(key, rtype, client, route)
        found = self.resolver.route_for(key, route)
        if way != "forward" or found is None:
            return way, ()
        return way, [one.address.text for one in found.group.upstreams]

    def samples(self) -> Iterator[Sample]:
        yield from _cache_samples(self.cache)
        seen = self.resolver.statistics()
        yield Sample("resolver_waiting", (), seen.waiting)
        yield Sample("resolver_refused_full_total", (), seen.refused_full)
        yield Sample("resolver_rebind_blocked_total", (), seen.rebound)
        for upstream in self._upstreams.values():
            yield from _upstream_samples(upstream)

    def unhealthy(self) -> list[str]:
        """Upstreams that do not answer just now."""
        return [text for text, one in self._upstreams.items() if not one.statistics().is_healthy]

    def flush(self, name: str, *, subtree: bool = False) -> int:
        """How many answers were forgotten; an empty name is all. Raises Invalid."""
        try:
            wire = names.from_text(name) if name else None
        except names.BadName as fault:
            raise Invalid("name", [Cause("", str(fault))]) from None
        count = self.cache.flush(wire, subtree=subtree)
        self.on_flush()
        return count

    def _close_unused(self) -> None:
        """Close upstreams that nothing names any more; their metrics go with them."""
        policies = [route for route in self._policy_routes.values() if route is not None]
        groups = [route.group for route in (*self.resolver.routes(), *policies)]
        used = {
            upstream.address.text
            for group in (self._bootstrap, *groups)
            for upstream in (*group.upstreams, *group.fallback)
        }
        for text in self._upstreams.keys() - used:
            task = self._loop.create_task(self._upstreams.pop(text).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._closing)
        for upstream in self._upstreams.values():
            await upstream.close()

    # --- routes -------------------------------------------------------------------------

    def _routes(
        self, upstreams: UpstreamSettings, fallback: tuple[Upstream, ...]
    ) -> tuple[Route | None, dict[bytes, Route]]:
        """The default route, and those of domains."""
        entries = [parse_entry(text) for text in upstreams.groups.get(DEFAULT, ())]
        everywhere = [entry.address for entry in entries if not entry.domains]
        default = self._route(everywhere, fallback) if everywhere else None
        wanted: dict[bytes, list[UpstreamAddress]] = {}
        for entry in entries:
            for domain in entry.domains:
                wanted.setdefault(domain, []).append(entry.address)
        for text, texts in upstreams.conditional.items():
            domain = names.key(names.from_text(text))
            wanted.setdefault(domain, []).extend(self._members(upstreams.groups, texts))
        return default, {
            domain: self._route(addresses, (), is_inside=True)
            for domain, addresses in wanted.items()
        }

    def _members(
        self, groups: Mapping[str, tuple[str, ...]], texts: Iterable[str]
    ) -> list[UpstreamAddress]:
        """Addresses of a list in which the name of a group stands for its upstreams."""
        found: list[UpstreamAddress] = []
        for text in texts:
            found += _addresses(groups[text]) if text in groups else _addresses([text])
        return found

    def _route(
        self,
        addresses: Iterable[UpstreamAddress],
        fallback: tuple[Upstream, ...],
        *,
        is_inside: bool = False,
    ) -> Route:
        members = tuple(map(self._upstream, addresses))
        texts = sorted(one.address.text for one in members)
        scope = hashlib.blake2b("\n".join(texts).encode(), digest_size=8).digest()
        return Route(Group(members, fallback), scope, is_inside)

    def _upstream(self, address: UpstreamAddress) -> Upstream:
        known = self._upstreams.get(address.text)
        if known is None:
            known = self._upstreams[address.text] = Upstream(address, self._carriers)
        return known

    # --- names of upstreams -------------------------------------------------------------

    def _look_up(self, host: str) -> Later[tuple[str, ...]]:
        """Addresses of an upstream's name, by the bootstrap servers: IPv4 first, since it works
        nearly everywhere."""
        found: Later[tuple[str, ...]] = Later()
        name = names.key(names.from_text(host))
        now_us = self._clock.monotonic_us()
        asked = [
            self._forwarder.ask(
                Question(name, bytes((0, rtype, 0, CLASS_IN))), self._bootstrap, now_us
            )
            for rtype in (A, AAAA)
        ]
        outcomes: dict[int, Outcome] = {}

        def take(i: int, outcome: Outcome) -> None:
            outcomes[i] = outcome
            if len(outcomes) == len(asked):
                found.settle(_hosts(outcomes[0]) + _hosts(outcomes[1]))

        for i, one in enumerate(asked):
            one.then(lambda outcome, i=i: take(i, outcome))  # type: ignore[misc]  # bound per turn
        return found


async def resolved(pipeline: Pipeline, packet: bytes, client: str) -> bytes:
    """The answer that a client gets, as over TCP; a drop is SERVFAIL. It asks to see, so the query
    log has nothing of it. Raises Invalid for what is no question: who asks only says which client
    it is, and to that updates, notifies and transfers must not be entrusted."""
    if len(packet) < HEADER_SIZE:
        raise Invalid("query", [Cause("", f"{len(packet)} octets are no DNS message")])
    if packet[2] & _OPCODE:
        raise Invalid("query", [Cause("", "only questions are asked this way (opcode QUERY)")])
    if _asked_type(packet) in (AXFR, IXFR):
        raise Invalid("query", [Cause("", "no transfers this way; `kudurru zone export` does it")])
    reply = pipeline.handle(packet, client, "tcp", is_noted=False)
    if isinstance(reply, Later):
        reply = await _awaited(reply)
    return packet[:2] + b"\x80\x02" + packet[4:] if reply is None else reply.wire


_OPCODE = 0x78  # of the third octet


def _asked_type(packet: bytes) -> int | None:
    """Type of the first question, where there is one."""
    try:
        at = after_name(packet, HEADER_SIZE)
        return packet[at] << 8 | packet[at + 1]
    except IndexError:
        return None


async def _awaited(later: Later[Reply | None]) -> Reply | None:
    found: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
    later.then(found.set_result)
    try:
        return await found
    finally:
        later.cancel()  # does nothing but where the caller is gone


def _hosts(outcome: Outcome) -> tuple[str, ...]:
    if outcome.message is None:
        return ()
    return tuple(_text(octets) for _, octets in addresses_of(outcome.message))


def _text(octets: bytes) -> str:
    from ipaddress import ip_address

    return str(ip_address(octets))


def _addresses(texts: Iterable[str]) -> list[UpstreamAddress]:
    entries: list[ForDomains] = [parse_entry(text) for text in texts]
    return [entry.address for entry in entries]


def check_upstreams(upstreams: UpstreamSettings) -> None:
    """Raises Invalid for upstreams that could never be asked."""
    lists = [*upstreams.groups.values(), upstreams.fallback, *upstreams.conditional.values()]
    texts = [text for texts in lists for text in texts if text not in upstreams.groups]
    addresses = _addresses(texts)
    causes = [
        Cause("upstreams", f"{address.text!r}: {why}")
        for address in addresses
        if (why := why_not_spoken(address.transport)) is not None
    ]
    causes += _bootstrap_faults(upstreams, addresses)
    if causes:
        raise Invalid("settings", causes)


def _bootstrap_faults(
    upstreams: UpstreamSettings, addresses: Iterable[UpstreamAddress]
) -> Iterator[Cause]:
    if any(not address.addresses for address in _addresses(upstreams.bootstrap)):
        fault = "bootstrap servers are asked for names, so give them as addresses"
        yield Cause("upstreams.bootstrap", fault)
    if upstreams.bootstrap:
        return
    for address in addresses:
        if not address.addresses:
            fault = (
                f"{address.text!r} has no address: add #ip=ADDRESS to it, or name resolvers by "
                "address in upstreams.bootstrap"
            )
            yield Cause("upstreams", fault)


def _rules(resolver: ResolverSettings, cache: CacheSettings, acl: AclSettings) -> Rules:
    stale = cache.serve_stale
    return Rules(
        clients=acl.recursion,
        special_names=resolver.special_names,
        canary=resolver.browser_canary,
        designation=resolver.designation,
        rebind_protection=resolver.rebind_protection,
        private_domains=frozenset(
            names.key(names.from_text(text)) for text in resolver.private_domains
        ),
        is_stale_served=stale.enabled,
        stale_ttl_s=int(stale.answer_ttl.total_seconds()),
        client_timeout_us=_microseconds(stale.client_timeout.total_seconds()),
    )


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _cache_samples(cache: MessageCache) -> Iterator[Sample]:
    seen = cache.statistics()
    yield Sample("cache_entries", (), seen.entries)
    yield Sample("cache_bytes", (), seen.bytes)
    yield Sample("cache_hits_total", ("positive",), seen.hits - seen.negative_hits)
    yield Sample("cache_hits_total", ("negative",), seen.negative_hits)
    yield Sample("cache_misses_total", (), seen.misses)
    yield Sample("cache_served_stale_total", (), seen.stale)
    yield Sample("cache_prefetch_total", (), seen.prefetches)
    yield Sample("cache_evictions_total", (), seen.evictions)


def _upstream_samples(upstream: Upstream) -> Iterator[Sample]:
    seen = upstream.statistics()
    label = seen.upstream
    for proto, count in seen.requests.items():
        yield Sample("upstream_requests_total", (label, proto), count)
    for rcode, count in seen.responses.items():
        yield Sample("upstream_responses_total", (label, rcode_label(rcode)), count)
    for reason, count in seen.failures.items():
        yield Sample("upstream_failures_total", (label, reason), count)
    yield Sample("upstream_mismatched_total", (label,), seen.mismatched)
    yield Sample("upstream_cookies", (label,), seen.has_cookies)
    yield Sample("upstream_inflight", (label,), seen.in_flight)
    yield Sample("upstream_latency_seconds_total", (label,), seen.latency_us / 1_000_000)
    yield Sample("upstream_healthy", (label,), seen.is_healthy)
