"""A resolver on scripted upstreams: no sockets, and time in the hands of the test."""

from collections.abc import Callable, Sequence

import dns.flags
import dns.message
import dns.rrset

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.neighbours import FixedNeighbours
from kudurru.adapters.memory.timers import ManualTimers
from kudurru.domain.chance import Chance
from kudurru.domain.dns.forwarding import Strategy
from kudurru.domain.dns.upstreams import UpstreamAddress, parse_upstream
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.filtering.decision import Filters
from kudurru.domain.later import Later
from kudurru.domain.ports import Exchange, Reply
from kudurru.domain.settings import CacheSettings
from kudurru.projections.message_cache import MessageCache
from kudurru.projections.pipeline.forward import Forwarder, Group, Upstream
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.pipeline import Pipeline
from kudurru.projections.pipeline.policy import Policy
from kudurru.projections.pipeline.resolver import CachingResolver, Route, Rules

SECOND_US = 1_000_000
CLIENT = "192.168.1.9"

Said = Sequence[tuple[float, bytes]] | bytes | str | None
"""What is said to a query: octets at once, octets after seconds, why it failed, or nothing."""
Script = Callable[[dns.message.Message, bytes], Said]


class ScriptedCarrier:
    """A `Carrier` whose upstream is a function of the query."""

    def __init__(self, rig: "Rig", text: str, proto: str) -> None:
        self.rig, self.text, self.proto = rig, text, proto
        self.given_up: list[Exchange] = []

    def send(self, exchange: Exchange) -> None:
        query = dns.message.from_wire(exchange.packet)
        if query.question[0].name != dns.name.root:  # else: whether it lives
            self.rig.asked.append((self.text, self.proto, query))
        script = self.rig.scripts.get(f"{self.proto}:{self.text}") or self.rig.scripts[self.text]
        said = script(query, exchange.packet)
        if said is None:
            self.rig.waiting.append((exchange, query))
        if isinstance(said, str):
            self.rig.timers.call_later(0, lambda: exchange.failed(said))
        elif isinstance(said, bytes):
            self._later(0, exchange, said)
        else:
            for seconds, octets in said or ():
                self._later(seconds, exchange, octets)

    def _later(self, seconds: float, exchange: Exchange, octets: bytes) -> None:
        def deliver() -> None:
            if exchange not in self.given_up and exchange.received(octets):
                self.given_up.append(exchange)

        self.rig.timers.call_later(int(seconds * SECOND_US), deliver)

    def forget(self, exchange: Exchange) -> None:
        self.given_up.append(exchange)

    async def close(self) -> None: ...


class Rig:
    """A pipeline with a resolver. `scripts` are by the text of the upstream, or by "tcp:" and the
    text for what is asked over TCP only."""

    def __init__(
        self,
        *upstreams: str,
        strategy: Strategy = "strict",
        fallback: Sequence[str] = (),
        by_domain: dict[bytes, Sequence[str]] | None = None,
        rules: Rules | None = None,
        cache: CacheSettings | None = None,
        zones: Sequence[Zone] = (),
        waiting_max: int = 10_000,
        filters: Filters | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.asked: list[tuple[str, str, dns.message.Message]] = []
        self.scripts: dict[str, Script] = {}
        self.waiting: list[tuple[Exchange, dns.message.Message]] = []  # for what nobody said
        self.upstreams: dict[str, Upstream] = {}
        self.cache = MessageCache(cache or CacheSettings())
        chance = Chance(SeededEntropy(7))
        self.forwarder = Forwarder(self.clock, self.timers, chance, strategy=strategy)
        self.resolver = CachingResolver(
            self.forwarder, self.cache, self.clock, self.timers, waiting_max=waiting_max
        )
        default = Route(Group(self._all(upstreams), self._all(fallback)), b"default")
        routes = {
            domain: Route(Group(self._all(texts)), b"by-domain", is_inside=True)
            for domain, texts in (by_domain or {}).items()
        }
        self.resolver.configure(rules or Rules(), default, routes)
        self.pipeline = Pipeline(
            ZoneSet(zones),
            lambda: True,
            clock=self.clock,
            identity=Identity(),
            is_lameduck=lambda: False,
            on_exception=_raise,
            resolver=self.resolver,
            policy=Policy(lambda: filters, FixedNeighbours()) if filters is not None else None,
        )

    def _all(self, texts: Sequence[str]) -> tuple[Upstream, ...]:
        for text in texts:
            self.upstreams.setdefault(text, Upstream(parse_upstream(text), self))
        return tuple(self.upstreams[text] for text in texts)

    def open(self, address: UpstreamAddress, *, over_tcp: bool = False) -> ScriptedCarrier:
        return ScriptedCarrier(self, address.text, "tcp" if over_tcp else address.transport)

    def ask(
        self,
        name: str,
        rtype: str = "A",
        *,
        proto: str = "udp",
        client: str = CLIENT,
        flags: int = dns.flags.RD,
        **options: object,
    ) -> "Asked":
        query = dns.message.make_query(name, rtype, flags=flags, **options)
        reply = self.pipeline.handle(query.to_wire(), client, proto)
        return Asked(self, query, reply)

    def pass_time(self, seconds: float) -> None:
        self.timers.advance(round(seconds * SECOND_US))

    def asked_names(self) -> list[str]:
        return [str(query.question[0].name).lower() for _, _, query in self.asked]


class Asked:
    """A question of a client, and the answer when it is there."""

    def __init__(
        self, rig: Rig, query: dns.message.Message, reply: Reply | Later[Reply | None] | None
    ) -> None:
        self.rig, self.query = rig, query
        self.replies: list[Reply | None] = []
        self.later = reply if isinstance(reply, Later) else None
        if self.later is not None:
            self.later.then(self.replies.append)
        else:
            assert not isinstance(reply, Later)
            self.replies.append(reply)

    @property
    def is_answered(self) -> bool:
        return bool(self.replies)

    @property
    def wire(self) -> bytes:
        (reply,) = self.replies
        assert reply is not None
        return reply.wire

    @property
    def answer(self) -> dns.message.Message:
        """The answer; time passes until it is there, ten seconds at most."""
        for step in range(100):
            if self.is_answered:
                break
            self.rig.pass_time(0.1 if step else 0)
        found = dns.message.from_wire(self.wire)
        assert self.query.is_response(found)
        return found

    @property
    def rcode(self) -> str:
        return dns.rcode.to_text(self.answer.rcode())

    @property
    def texts(self) -> list[str]:
        """Records of the answer section."""
        return sorted(
            f"{rrset.name} {rrset.ttl} {dns.rdatatype.to_text(rrset.rdtype)} {rdata}"
            for rrset in self.answer.answer
            for rdata in rrset
        )


def _raise(error: Exception) -> None:
    raise error


def question_in(packet: bytes) -> bytes:
    """The question of a query, as octets."""
    return packet[12 : packet.index(0, 12) + 5]


def response(
    query: dns.message.Message,
    answer: Sequence[str] = (),
    authority: Sequence[str] = (),
    additional: Sequence[str] = (),
    *,
    rcode: str = "NOERROR",
    flags: int = 0,
) -> bytes:
    """A response of an upstream, records in presentation format."""
    made = dns.message.make_response(query, recursion_available=True)
    made.set_rcode(dns.rcode.from_text(rcode))
    made.flags |= flags
    for section, texts in zip(
        (made.answer, made.authority, made.additional), (answer, authority, additional), strict=True
    ):
        for text in texts:
            name, *rest = text.split(None, 4)
            ttl, rdclass, rtype, data = rest
            section.append(dns.rrset.from_text(name, int(ttl), rdclass, rtype, data))
    return made.to_wire(max_size=65_535)


def always(*answer: str, **options: object) -> Script:
    """An upstream that says the same to everybody."""
    return lambda query, _: response(query, answer, **options)  # type: ignore[arg-type]


def silent(_query: dns.message.Message, _packet: bytes) -> None:
    """An upstream that is dead."""
