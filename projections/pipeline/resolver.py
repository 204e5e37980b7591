"""The stage that answers what no zone here holds: special names, the cache, then upstreams.

Clients who ask the same at the same time wait for one answer (RFC 5452 section 5: two outstanding
queries would double a forger's chances). While an upstream does not answer, what was true before is
better than nothing (RFC 8767).
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from ipaddress import IPv6Address, ip_address
from typing import Literal

import msgspec

from kudurru.domain.dns import names, special_names
from kudurru.domain.dns.lookup import FORMERR, NOERROR, NOTIMP, NXDOMAIN, REFUSED, SERVFAIL
from kudurru.domain.dns.messages import CD, RD, Query
from kudurru.domain.dns.rebinding import PRIVATE, leads_inside
from kudurru.domain.dns.records import CLASS_IN
from kudurru.domain.dns.resolved import Resolved, dangling_alias, joined
from kudurru.domain.dns.responses import Malformed, Message
from kudurru.domain.later import Later
from kudurru.domain.notation import Network
from kudurru.domain.ports import Clock, Timer, Timers
from kudurru.projections.message_cache import Entry, MessageCache
from kudurru.projections.pipeline.forward import (
    DOWN,
    PLAIN_MAX,
    TIMEOUT,
    Forwarder,
    Group,
    Outcome,
    Question,
)

WAITING_MAX = 10_000
"""Clients that wait for upstreams. A few megabytes; what is more is told to try elsewhere."""

FOLLOWED_MAX = 8
"""Questions that follow aliases of one: each may be a chain of its own, and who serves a zone could
go on for ever."""

FAILURE_US = 5_000_000
"""For how long it is remembered that upstreams cannot resolve a name (RFC 9520 section 3.2)."""

FAILURES_MAX = 10_000
CLIENTS_REMEMBERED = 4096

STALE_ANSWER, BLOCKED, NO_REACHABLE, NETWORK_ERROR = 3, 15, 22, 23
"""Extended errors (RFC 8914 section 4)."""

_SERVFAIL = Message(SERVFAIL)
_REBOUND = Resolved(Message(REFUSED), "local", extended_error=BLOCKED)
_FULL = Resolved(_SERVFAIL, "local", extended_error=NO_REACHABLE)
_UNTOLD = frozenset({FORMERR, NOTIMP})  # codes between us and an upstream, not for clients


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings say of resolving."""

    clients: Literal["private", "all"] | tuple[Network, ...] = "private"
    special_names: bool = True
    canary: bool = True
    designation: bool = True
    rebind_protection: bool = True
    private_domains: frozenset[bytes] = frozenset()  # keys; their names may have private addresses
    is_stale_served: bool = True
    stale_ttl_s: int = 30
    client_timeout_us: int = 1_800_000


class Route(msgspec.Struct, frozen=True):
    """Where questions go. `scope` tells answers of different upstreams apart in the cache."""

    group: Group
    scope: bytes
    is_inside: bool = False  # somebody pointed a domain there: its addresses may be private


Way = Literal["forward", "special", "nobody", "not-allowed"]
"""What becomes of a question that no zone here answers and no policy blocks: upstreams are asked,
it is a special name, there are no upstreams for it, or its client may not recurse."""


class ResolverStatistics(msgspec.Struct, frozen=True, kw_only=True):
    waiting: int
    refused_full: int
    rebound: int  # answers that led inside


class _Flight:
    """A question under way, and who waits for it."""

    __slots__ = ("depth", "is_late", "key", "onward", "stale", "timer", "waiting")

    def __init__(self, key: bytes, stale: Entry | None, depth: int = 0) -> None:
        self.key = key
        self.depth = depth  # aliases that were followed until here
        self.stale = stale
        self.waiting: list[Later[Resolved]] = []
        self.timer: Timer | None = None
        self.is_late = False  # clients get the stale answer at once
        self.onward: _Flight | None = None  # the one that this one waits for

    def leads_to(self, other: "_Flight") -> bool:
        """Whether it waits for another one, by however many steps."""
        flight: _Flight | None = self
        while flight is not None and flight is not other:
            flight = flight.onward
        return flight is other


class CachingResolver:
    """Implements `pipeline.Resolver`."""

    def __init__(
        self,
        forwarder: Forwarder,
        cache: MessageCache,
        clock: Clock,
        timers: Timers,
        *,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self.cache = cache
        self._forwarder = forwarder
        self._clock = clock
        self._timers = timers
        self._waiting_max = waiting_max
        self._flights: dict[bytes, _Flight] = {}
        self._failures: OrderedDict[bytes, tuple[int, Resolved]] = OrderedDict()
        self._waiting = self._refused_full = self._rebound = 0
        self._by_zone: dict[bytes, Route] = {}
        self.configure(Rules(), None, {})

    def configure(
        self, rules: Rules, default: Route | None, by_domain: Mapping[bytes, Route]
    ) -> None:
        """Take other rules and routes; `by_domain` has them by the key of a domain. What is in
        the cache stays, for as long as the same upstreams would be asked."""
        self._rules = rules
        self._default = default
        self._by_domain = dict(by_domain)
        self._special_zones = special_names.zones(
            with_canary=rules.canary, with_designation=rules.designation
        )
        self._special_ends = special_names.ends_of(self._special_zones)
        self.admits_all = rules.clients == "all"
        self._note_routes()
        self._may_ask = lru_cache(CLIENTS_REMEMBERED)(partial(_is_among, rules.clients))

    def set_zones(self, routes: Mapping[bytes, Route]) -> None:
        """Where names of zones of type Forward go, by key of the zone. They come before what the
        settings say of the same domain."""
        self._by_zone = dict(routes)
        self._note_routes()

    def routes(self) -> list[Route]:
        """All that there are."""
        default = [] if self._default is None else [self._default]
        return [*default, *self._by_domain.values(), *self._by_zone.values()]

    def _note_routes(self) -> None:
        self._has_domains = bool(self._by_domain or self._by_zone)
        self.is_on = self._default is not None or self._has_domains

    def admits(self, client: str) -> bool:
        return self._may_ask(client)

    def statistics(self) -> ResolverStatistics:
        return ResolverStatistics(
            waiting=self._waiting, refused_full=self._refused_full, rebound=self._rebound
        )

    def resolve(
        self, query: Query, client: str, now_us: int, route: Route | None = None
    ) -> Resolved | Later[Resolved] | None:
        """`route` is where a policy sends this client's questions."""
        if query.qclass != CLASS_IN or not self._may_ask(client):
            return None
        name = query.qname.lower()
        route = self.route_for(name, route)
        if route is None:
            return self._special(name, query.qtype)
        flags = query.is_dnssec_ok << 1 | (query.flags & CD != 0)
        key = b"%b%b%c%b" % (name, query.question[-4:], flags, route.scope)  # as `_key`
        entry, left_us = self.cache.find(key, now_us)
        if entry is not None and left_us > 0:
            if self.cache.is_due(entry, left_us):
                self._begin(key, self._question(query, name), route, entry, now_us)
            return Resolved(
                entry.message,
                "cache",
                entry.age_s(now_us),
                None,
                entry.upstream,
                0,
                None,
                entry.stored_us,
                self.cache.same_until_us(entry),
            )
        if not route.is_inside:
            local = self._special(name, query.qtype)
            if local is not None:
                return local
        if not query.flags & RD:
            return None
        return self._ask(key, query, name, route, entry, now_us)

    # --- where it goes ------------------------------------------------------------------

    def way_of(self, name: bytes, qtype: int, client: str, route: Route | None) -> Way:
        """What `resolve` would do with a question that is in no cache; `name` is a key."""
        if route is None and not self.is_on:
            return "nobody"
        if not self._may_ask(client):
            return "not-allowed"
        route = self.route_for(name, route)
        if (route is None or not route.is_inside) and self._special(name, qtype) is not None:
            return "special"
        return "nobody" if route is None else "forward"

    def route_for(self, name: bytes, route: Route | None) -> Route | None:
        """Where a question goes, for a client whose policy sends its questions to `route`."""
        if self._has_domains:
            route = self._routed(name) or route
        return route or self._default

    def _routed(self, name: bytes) -> Route | None:
        """The route of the closest domain above a name, or the name itself."""
        for suffix in _suffixes(name):
            found = self._by_zone.get(suffix) or self._by_domain.get(suffix)
            if found is not None:
                return found
        return None

    def _special(self, name: bytes, qtype: int) -> Resolved | None:
        if not self._rules.special_names:
            return None
        if not name.endswith(self._special_ends):
            return None
        zone = special_names.special_zone(name, self._special_zones)
        if zone is None or special_names.is_of_the_parent(zone, name, qtype):
            return None
        return Resolved(special_names.special_answer(zone, name, qtype), "local")

    def _question(self, query: Query, name: bytes) -> Question:
        tail = query.question[-4:]
        return Question(name, tail, query.is_dnssec_ok, query.flags & CD != 0)

    # --- asking -------------------------------------------------------------------------

    def _ask(
        self,
        key: bytes,
        query: Query,
        name: bytes,
        route: Route,
        stale: Entry | None,
        now_us: int,
    ) -> Resolved | Later[Resolved]:
        flight = self._flights.get(key)
        if flight is None:
            failure = self._failures.get(key)
            if failure is not None and failure[0] > now_us:
                return self._stale(key, stale) if stale is not None else failure[1]
            if self._waiting >= self._waiting_max:
                self._refused_full += 1
                return self._stale(key, stale) if stale is not None else _FULL
            started = self._begin(key, self._question(query, name), route, stale, now_us)
            if isinstance(started, Resolved):
                return started
            flight = started
        if flight.stale is not None:
            if not self._rules.client_timeout_us:
                flight.is_late = True
            if flight.is_late:
                return self._stale(key, flight.stale)
        if self._waiting >= self._waiting_max:
            self._refused_full += 1
            return _FULL
        later: Later[Resolved] = Later()
        flight.waiting.append(later)
        self._waiting += 1
        if flight.stale is not None and flight.timer is None:
            wait_us = self._rules.client_timeout_us
            flight.timer = self._timers.call_later(wait_us, partial(self._too_late, flight))
        return later

    def _begin(
        self,
        key: bytes,
        question: Question,
        route: Route,
        stale: Entry | None,
        now_us: int,
        depth: int = 0,
    ) -> _Flight | Resolved:
        """Ask upstreams; the answer itself where it is known at once."""
        flight = self._flights.get(key)
        if flight is not None:
            return flight
        flight = _Flight(key, stale if self._rules.is_stale_served else None, depth)
        outcome = self._forwarder.ask(question, route.group, now_us)
        if outcome.is_over:
            return self._result(flight, question, route, outcome.value)
        self._flights[key] = flight
        outcome.then(partial(self._landed, flight, question, route))
        return flight

    def _landed(self, flight: _Flight, question: Question, route: Route, outcome: Outcome) -> None:
        message = outcome.message
        found = None
        if message is not None and message.is_negative:
            found = self._followed(flight, question, route, message)
        if found is None:
            self._end(flight, question, route, outcome)
        else:
            found.then(partial(self._end_joined, flight, question, route, outcome))

    def _end(self, flight: _Flight, question: Question, route: Route, outcome: Outcome) -> None:
        del self._flights[flight.key]
        if flight.timer is not None:
            flight.timer.cancel()
        self._tell(flight, self._result(flight, question, route, outcome))

    # --- aliases that lead on -----------------------------------------------------------

    def _followed(
        self, flight: _Flight, question: Question, asked: Route, message: Message
    ) -> Later[Resolved] | None:
        """What the target of an alias has, where an upstream that only serves zones left it open.
        None: the answer is whole, or leads in a circle, or too far."""
        if flight.depth >= FOLLOWED_MAX:
            return None
        target = dangling_alias(question.name + question.tail, message)
        if target is None:
            return None
        route = self.route_for(target, None if asked.is_inside else asked)
        if route is None:
            return None
        return self._ask_for(flight, msgspec.structs.replace(question, name=target), route)

    def _ask_for(self, flight: _Flight, question: Question, route: Route) -> Later[Resolved] | None:
        key = _key(question, route)
        later: Later[Resolved] = Later()
        local = None if route.is_inside else self._special(question.name, question.qtype)
        if local is not None:
            later.settle(local)
            return later
        now_us = self._clock.monotonic_us()
        entry, left_us = self.cache.find(key, now_us)
        if entry is not None and left_us > 0:
            later.settle(Resolved(entry.message, "cache", entry.age_s(now_us)))
            return later
        onward = self._begin(key, question, route, None, now_us, flight.depth + 1)
        if isinstance(onward, Resolved):
            later.settle(onward)
            return later
        if onward.leads_to(flight):
            return None
        flight.onward = onward
        onward.waiting.append(later)
        self._waiting += 1
        return later

    def _end_joined(
        self,
        flight: _Flight,
        question: Question,
        route: Route,
        outcome: Outcome,
        found: Resolved,
    ) -> None:
        flight.onward = None
        message = outcome.message
        assert message is not None
        if found.message.rcode in (NOERROR, NXDOMAIN):
            target = dangling_alias(question.name + question.tail, message)
            assert target is not None
            with suppress(Malformed):  # it would be larger than a message: the alias is an answer
                whole = joined(message, target + question.tail, found.message, found.age_s)
                now_us = self._clock.monotonic_us()
                outcome = msgspec.structs.replace(outcome, message=whole, heard_us=now_us)
        self._end(flight, question, route, outcome)

    def _tell(self, flight: _Flight, resolved: Resolved) -> None:
        waiting, flight.waiting = flight.waiting, []
        self._waiting -= len(waiting)
        for later in waiting:
            later.settle(resolved)

    def _too_late(self, flight: _Flight) -> None:
        """Clients have waited long enough: the stale answer, and upstreams may go on."""
        flight.is_late = True
        assert flight.stale is not None
        self._tell(flight, self._stale(flight.key, flight.stale))

    # --- what is made of it -------------------------------------------------------------

    def _result(
        self, flight: _Flight, question: Question, route: Route, outcome: Outcome
    ) -> Resolved:
        key, stale = flight.key, flight.stale
        message = outcome.message
        if message is None or not outcome.is_good:
            failure = self._failure(key, outcome)
            return failure if stale is None else self._stale(key, stale)
        if self._leads_inside(question.name, route, message):
            self._rebound += 1
            return _REBOUND
        message = self.cache.bounded(message)
        self._failures.pop(key, None)
        self.cache.store(key, message, outcome.heard_us, outcome.upstream)
        return Resolved(
            message,
            "forward",
            0,
            None,
            outcome.upstream,
            outcome.latency_us,
            message.extended_error,
        )

    def _failure(self, key: bytes, outcome: Outcome) -> Resolved:
        message = outcome.message
        if message is None:
            code = NO_REACHABLE if outcome.why in (DOWN, TIMEOUT) else NETWORK_ERROR
            return Resolved(_SERVFAIL, "forward", extended_error=code)
        is_told = message.rcode not in _UNTOLD and message.rcode <= PLAIN_MAX
        rcode = message.rcode if is_told else SERVFAIL
        failed = Resolved(
            Message(rcode),
            "forward",
            upstream=outcome.upstream,
            latency_us=outcome.latency_us,
            extended_error=message.extended_error,
        )
        self._failures[key] = self._clock.monotonic_us() + FAILURE_US, failed
        self._failures.move_to_end(key)
        if len(self._failures) > FAILURES_MAX:
            self._failures.popitem(last=False)
        return failed

    def _stale(self, key: bytes, entry: Entry) -> Resolved:
        self.cache.served_stale(key)
        return Resolved(
            entry.message,
            "stale",
            0,
            self._rules.stale_ttl_s,
            entry.upstream,
            extended_error=STALE_ANSWER,
        )

    def _leads_inside(self, name: bytes, route: Route, message: Message) -> bool:
        rules = self._rules
        if not rules.rebind_protection or route.is_inside or message.rcode != NOERROR:
            return False
        if not leads_inside(message):
            return False
        return not any(suffix in rules.private_domains for suffix in _suffixes(name))


def _key(question: Question, route: Route) -> bytes:
    flags = question.is_dnssec_ok << 1 | question.is_checking_disabled
    return b"%b%b%c%b" % (question.name, question.tail, flags, route.scope)


def _suffixes(name: bytes) -> Iterator[bytes]:
    """A name, and every name above it; the root is the last."""
    at = 0
    while name[at]:
        yield name[at:]
        at += name[at] + 1
    yield names.ROOT


def _is_among(clients: Literal["private", "all"] | tuple[Network, ...], client: str) -> bool:
    if clients == "all":
        return True
    try:
        address = ip_address(client.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    networks = PRIVATE if isinstance(clients, str) else clients
    return any(address in network for network in networks)
