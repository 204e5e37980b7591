"""Asking upstreams: whom, how often, for how long, and what of their answers is believed.

A question is a *flight*. It makes *attempts*, each at one upstream; an attempt sends one query,
again when the first may be lost, over TCP when the answer does not fit, without EDNS where that is
not understood. The first good answer ends the flight. Attempts that lost go on to their end, since
that is how health is known. Nothing here sends or waits itself: carriers and timers call back.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kudurru.domain.chance import Chance
from kudurru.domain.dns.cookie_jar import CookieJar
from kudurru.domain.dns.forwarding import Health, Strategy, choose
from kudurru.domain.dns.lookup import BADCOOKIE, FORMERR, NOTIMP, REFUSED, SERVFAIL
from kudurru.domain.dns.messages import AD, CD, HEADER_SIZE, RD, UDP_EDNS_MAX
from kudurru.domain.dns.queries import PADDING_BLOCK, build_query, mixed
from kudurru.domain.dns.record_types import NS
from kudurru.domain.dns.responses import (
    Malformed,
    Message,
    cookie_of,
    is_answer_but_for_letters,
    is_answer_to,
    is_truncated,
    read_response,
)
from kudurru.domain.dns.upstreams import Transport, UpstreamAddress
from kudurru.domain.later import Later
from kudurru.domain.ports import Carrier, Carriers, Clock, Timers
from kudurru.projections.pipeline.delays import Delays

ATTEMPTS_MAX = 4
"""Upstreams tried for one question, fallback included."""

FORGERIES_MAX = 8
"""Responses with the ID of a query and another question, after which it is asked over TCP."""

NO_EDNS_US = 15 * 60 * 1_000_000
"""How long an upstream that did not understand EDNS is asked without."""

LETTERS_LOST_MAX = 3
"""Answers with the right letters over TCP only, in a row, after which an upstream is one that does
not keep them."""

DOWN, TIMEOUT = "down", "timeout"
"""Why there is no answer: no upstream was tried, or none answered in time."""

FULL = "full"
"""What a carrier says when it takes no more queries: that is our load, and no outage."""

PLAIN_MAX = 15
"""Codes above it are of EDNS, between us and an upstream (RFC 6891 section 6.1.3)."""

_BADVERS = 16
_LAME = frozenset({SERVFAIL, REFUSED, NOTIMP, FORMERR})
"""Codes that say more of the server than of the name: another one is asked."""

_ENCRYPTED: Final[frozenset[Transport]] = frozenset({"dot", "doh", "doh3", "doq"})
_LETTERS_PLAYED: Final[frozenset[Transport]] = frozenset({"udp"})
_RESENT: Final[frozenset[Transport]] = frozenset({"udp", "dnscrypt"})


class Question(msgspec.Struct, frozen=True, gc=False):
    """What is asked. `name` is in lower case, `tail` type and class."""

    name: bytes
    tail: bytes
    is_dnssec_ok: bool = False
    is_checking_disabled: bool = False

    @property
    def qtype(self) -> int:
        return self.tail[0] << 8 | self.tail[1]


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What came of a flight. `message` None: no upstream could be asked, and `why` says why.
    `heard_us`: when the message came, monotonic."""

    message: Message | None
    upstream: str = ""
    latency_us: int = 0
    heard_us: int = 0
    why: str = ""

    @property
    def is_good(self) -> bool:
        message = self.message
        return message is not None and message.rcode not in _LAME and message.rcode <= PLAIN_MAX


class UpstreamStatistics(msgspec.Struct, frozen=True, kw_only=True):
    upstream: str
    requests: Mapping[str, int]  # by transport
    responses: Mapping[int, int]  # by RCODE
    failures: Mapping[str, int]  # by reason
    mismatched: int  # responses that were no answer: forgeries, or late ones
    in_flight: int
    latency_us: int  # of all answers together
    answers: int
    is_healthy: bool
    has_cookies: bool  # it gave ours back


class Upstream:
    """One upstream: how to reach it, how it is doing."""

    def __init__(self, address: UpstreamAddress, carriers: Carriers) -> None:
        self.address = address
        self.health = Health()
        self.keeps_letters = address.transport in _LETTERS_PLAYED
        self.letters_lost = 0
        self.cookies = CookieJar() if address.transport == "udp" else None
        self.no_edns_until_us = 0
        self.requests: dict[str, int] = defaultdict(int)
        self.responses: dict[int, int] = defaultdict(int)
        self.failures: dict[str, int] = defaultdict(int)
        self.mismatched = self.in_flight = self.latency_us = self.answers = 0
        self._carriers = carriers
        self._main: Carrier | None = None
        self._tcp: Carrier | None = None

    def carrier(self, *, over_tcp: bool) -> Carrier:
        if over_tcp:
            if self._tcp is None:
                self._tcp = self._carriers.open(self.address, over_tcp=True)
            return self._tcp
        if self._main is None:
            self._main = self._carriers.open(self.address)
        return self._main

    def statistics(self) -> UpstreamStatistics:
        return UpstreamStatistics(
            upstream=self.address.text,
            requests=dict(self.requests),
            responses=dict(self.responses),
            failures=dict(self.failures),
            mismatched=self.mismatched,
            in_flight=self.in_flight,
            latency_us=self.latency_us,
            answers=self.answers,
            is_healthy=self.health.is_up,
            has_cookies=self.cookies is not None and self.cookies.is_expected,
        )

    async def close(self) -> None:
        for carrier in (self._main, self._tcp):
            if carrier is not None:
                await carrier.close()
        self._main = self._tcp = None


class Group(msgspec.Struct, frozen=True):
    """Upstreams that stand for each other, and those to ask when all of them fail."""

    upstreams: tuple[Upstream, ...]
    fallback: tuple[Upstream, ...] = ()


class Forwarder:
    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        chance: Chance,
        *,
        strategy: Strategy = "parallel",
        timeout_us: int = 2_000_000,
    ) -> None:
        self.clock = clock
        self.chance = chance
        self.strategy: Strategy = strategy
        self.timeout_us = timeout_us
        self.delays = Delays(clock, timers)

    def ask(self, question: Question, group: Group, now_us: int) -> Later[Outcome]:
        """What upstreams of a group say. Settled within ATTEMPTS_MAX time-outs."""
        later: Later[Outcome] = Later()
        _Flight(self, question, group, later).start(now_us)
        return later


class _Flight:
    __slots__ = (
        "_fallback", "_group", "_lame", "_later", "_left", "_tries", "_under_way", "_why",
        "forwarder", "question",
    )  # fmt: skip

    def __init__(
        self, forwarder: Forwarder, question: Question, group: Group, later: Later[Outcome]
    ) -> None:
        self.forwarder = forwarder
        self.question = question
        self._later = later
        self._group = group.upstreams
        self._fallback = group.fallback
        self._left: list[Upstream] = []  # still to be asked, in order
        self._under_way = 0
        self._tries = 0
        self._lame: Outcome | None = None  # the best answer so far that is none
        self._why = DOWN

    @property
    def is_over(self) -> bool:
        return self._later.is_over

    def start(self, now_us: int) -> None:
        self._ask_all(self._group, now_us)
        self._end_when_done(now_us)

    def launch(self, now_us: int) -> None:
        """Ask the next upstream, if there is one."""
        if not self._left or self._tries >= ATTEMPTS_MAX:
            return
        self._tries += 1
        self._under_way += 1
        _Attempt(self, self._left.pop(0), now_us).start()

    def succeeded(self, outcome: Outcome) -> None:
        self._under_way -= 1
        if outcome.is_good:
            self._later.settle(outcome)
        else:
            self._lame = self._lame or outcome
            self._go_on()

    def failed(self, why: str) -> None:
        self._under_way -= 1
        self._why = why
        self._go_on()

    def _go_on(self) -> None:
        if not self.is_over:
            now_us = self.forwarder.clock.monotonic_us()
            self.launch(now_us)
            self._end_when_done(now_us)

    def _end_when_done(self, now_us: int) -> None:
        """With nothing under way it is the fallback's turn, and then over."""
        while not self._under_way and not self.is_over:
            fallback, self._fallback = self._fallback, ()
            if fallback:
                self._ask_all(fallback, now_us)
            else:
                self._later.settle(self._lame or Outcome(None, why=self._why))

    def _ask_all(self, upstreams: Sequence[Upstream], now_us: int) -> None:
        if len(upstreams) == 1 and not upstreams[0].health.failures:
            self._left = [upstreams[0]]  # as `choose` would have it
            self.launch(now_us)
            return
        forwarder = self.forwarder
        healths = [upstream.health for upstream in upstreams]
        plan = choose(healths, forwarder.strategy, now_us, forwarder.chance)
        self._left = [upstreams[i] for i in plan.order]
        for _ in range(plan.at_once):
            self.launch(now_us)


class _Attempt:
    """One question at one upstream, until an answer or the time-out."""

    __slots__ = (
        "_cookie_differed", "_exchanges", "_flight", "_has_asked_again", "_has_tried_tcp",
        "_is_over", "_letters_differed", "_mismatched", "_probe", "_reminder", "_sent_us",
        "_upstream", "_was_bad_cookie", "_with_edns",
    )  # fmt: skip

    def __init__(self, flight: _Flight, upstream: Upstream, now_us: int) -> None:
        self._flight = flight
        self._upstream = upstream
        self._exchanges: list[_Exchange] = []
        self._is_over = self._has_asked_again = False
        self._has_tried_tcp = self._letters_differed = self._cookie_differed = False
        self._was_bad_cookie = False
        self._mismatched = 0
        self._probe: _Probe | None = None
        self._sent_us = now_us
        self._with_edns = now_us >= upstream.no_edns_until_us
        forwarder = flight.forwarder
        self._reminder = forwarder.delays.remind(self, forwarder.timeout_us // 3, now_us)

    def start(self) -> None:
        upstream = self._upstream
        if not upstream.health.is_up:
            upstream.health.is_probed = True
        upstream.in_flight += 1
        self._send(self._sent_us)

    def _send(self, now_us: int, *, over_tcp: bool = False) -> None:
        flight, upstream = self._flight, self._upstream
        question = flight.question
        transport = upstream.address.transport
        name = question.name
        is_exact = upstream.keeps_letters and not over_tcp
        if is_exact:
            name = mixed(name, flight.forwarder.chance.bits(len(name)))
        asked = name + question.tail
        flags = RD | CD if question.is_checking_disabled else RD
        if upstream.address.is_trusted:
            flags |= AD  # RFC 6840 section 5.7: we can make use of the answer's
        cookie = self._cookie(now_us)
        packet = build_query(
            asked,
            flags,
            udp_size=UDP_EDNS_MAX if self._with_edns else None,
            is_dnssec_ok=question.is_dnssec_ok,
            block=PADDING_BLOCK if transport in _ENCRYPTED else 0,
            options=cookie,
        )
        carrier = upstream.carrier(over_tcp=over_tcp)
        exchange = _Exchange(self, carrier, packet, asked, is_exact, over_tcp, now_us, cookie)
        self._exchanges.append(exchange)
        upstream.requests["tcp" if over_tcp and transport == "udp" else transport] += 1
        carrier.send(exchange)

    def _cookie(self, now_us: int) -> bytes:
        """The option for a query; the second one has none where the first may be lost for it."""
        jar = self._upstream.cookies
        if jar is None or not self._with_edns or (self._has_asked_again and not jar.is_expected):
            return b""
        return jar.option(now_us, self._flight.forwarder.chance)

    def _send_over_tcp(self) -> None:
        if not self._has_tried_tcp:
            self._has_tried_tcp = True
            self._send(self._now_us(), over_tcp=True)

    def _now_us(self) -> int:
        return self._flight.forwarder.clock.monotonic_us()

    # --- timers -------------------------------------------------------------------------

    def fall_due(self) -> None:
        """A third of the time-out is over, and then all of it."""
        if self._has_asked_again:
            self._fail(TIMEOUT)
            return
        self._has_asked_again = True
        forwarder, now_us = self._flight.forwarder, self._now_us()
        left_us = forwarder.timeout_us - forwarder.timeout_us // 3
        self._reminder = forwarder.delays.remind(self, left_us, now_us)
        self._ask_whether_it_lives()
        if self._flight.is_over or self._has_tried_tcp:
            return
        if self._upstream.address.transport in _RESENT:
            self._send(now_us)  # a lost packet costs a third of the time
        if forwarder.strategy != "strict" and not self._flight.is_over:
            self._flight.launch(now_us)  # whoever is slow may be gone

    def _ask_whether_it_lives(self) -> None:
        """A name may be hard to resolve and its upstream well: an easy question tells, in time
        for the verdict."""
        upstream = self._upstream
        if upstream.health.is_up and upstream.health.heard_us <= self._sent_us:
            self._probe = _Probe(upstream, self._flight.forwarder.clock)
            self._probe.carrier.send(self._probe)

    # --- from exchanges -----------------------------------------------------------------

    def received(self, exchange: "_Exchange", packet: bytes) -> bool:
        """Whether it is an answer to the exchange's query."""
        if self._is_over:
            return True
        upstream = self._upstream
        if not is_answer_to(exchange.question, packet):
            if not is_answer_but_for_letters(exchange.question, packet):
                upstream.mismatched += 1
                self._mismatched += 1
                if self._mismatched == FORGERIES_MAX and not exchange.is_over_tcp:
                    self._send_over_tcp()  # somebody tries IDs: nobody can over a connection
                return False
            if exchange.is_exact:
                # A forgery, or a server that does not keep letters: TCP tells (RFC 5452 section
                # 9.3 asks for what cannot be guessed).
                upstream.mismatched += 1
                self._letters_differed = True
                self._send_over_tcp()
                return False
        if is_truncated(packet):
            self._exchanges.remove(exchange)
            if exchange.is_over_tcp or upstream.address.transport not in _RESENT:
                self._fail("malformed")
            else:
                self._send_over_tcp()
            return True
        if exchange.cookie and not self._is_shown_a_cookie(exchange, packet):
            return False
        self._take(exchange, packet)
        return True

    def _is_shown_a_cookie(self, exchange: "_Exchange", packet: bytes) -> bool:
        """Whether a response shows the cookie that it must (RFC 7873 section 5.3). If not, it is a
        forgery, or cookies do not come through any more: TCP tells."""
        upstream = self._upstream
        jar = upstream.cookies
        assert jar is not None, "who sent a cookie has a jar"
        shown = jar.judge(exchange.cookie, cookie_of(exchange.question, packet))
        if exchange.is_over_tcp or (shown == "none" and not jar.is_expected):
            return True
        if shown == "good":
            jar.came_back()
            return True
        upstream.mismatched += 1
        self._cookie_differed = True
        self._send_over_tcp()
        return False

    def _take(self, exchange: "_Exchange", packet: bytes) -> None:
        upstream = self._upstream
        try:
            message = read_response(
                exchange.question, packet, is_trusted=upstream.address.is_trusted
            )
        except Malformed:
            self._heard(exchange)
            self._fail("malformed")
            return
        is_about_cookies = message.rcode == BADCOOKIE or (message.rcode == FORMERR and packet[11])
        if exchange.cookie and is_about_cookies and self._ask_past_cookies(exchange, message.rcode):
            return
        if self._with_edns and message.rcode in (FORMERR, NOTIMP, _BADVERS) and not packet[11]:
            # RFC 6891 section 7: it does not know EDNS.
            now_us = self._now_us()
            upstream.no_edns_until_us = now_us + NO_EDNS_US
            self._with_edns = False
            self._exchanges.remove(exchange)
            self._send(now_us, over_tcp=self._has_tried_tcp)
            return
        self._note_defences(exchange)
        now_us = self._heard(exchange)
        latency_us = now_us - exchange.sent_us
        self._exchanges.remove(exchange)  # over, as its carrier is told
        upstream.responses[message.rcode] += 1
        upstream.latency_us += latency_us
        upstream.answers += 1
        self._finish()
        self._flight.succeeded(Outcome(message, upstream.address.text, latency_us, now_us))

    def failed(self, exchange: "_Exchange", why: str) -> None:
        """One exchange came to nothing; another of this attempt may still answer."""
        if self._is_over:
            return
        self._exchanges.remove(exchange)
        if not self._exchanges:
            self._fail(why)

    # --- inside -------------------------------------------------------------------------

    def _ask_past_cookies(self, exchange: "_Exchange", rcode: int) -> bool:
        """Ask again where a server wants another cookie, or knows EDNS and no cookies (RFC 7873
        section 5.3)."""
        jar = self._upstream.cookies
        assert jar is not None, "who sent a cookie has a jar"
        if exchange.is_over_tcp or (rcode == FORMERR and jar.is_expected):
            return False
        self._exchanges.remove(exchange)
        now_us = self._now_us()
        if rcode == FORMERR:
            jar.leave_out(now_us)
            self._send(now_us)
        elif self._was_bad_cookie:
            self._send_over_tcp()
        else:
            self._was_bad_cookie = True
            self._send(now_us)
        return True

    def _note_defences(self, exchange: "_Exchange") -> None:
        """What an answer that was taken says of letters and cookies."""
        upstream = self._upstream
        if upstream.cookies is not None and (
            (self._cookie_differed and exchange.is_over_tcp)
            or (self._has_asked_again and self._with_edns and not exchange.cookie)
        ):
            upstream.cookies.was_lost(self._now_us())
        if exchange.is_exact:
            upstream.letters_lost = 0
        elif self._letters_differed and exchange.is_over_tcp:
            upstream.letters_lost += 1
            upstream.keeps_letters = upstream.letters_lost < LETTERS_LOST_MAX

    def _heard(self, exchange: "_Exchange") -> int:
        """The time, and its upstream's health knows."""
        now_us = self._now_us()
        self._upstream.health.heard(now_us, now_us - exchange.sent_us)
        return now_us

    def _fail(self, why: str) -> None:
        upstream = self._upstream
        upstream.failures[why] += 1
        if why == FULL:
            upstream.health.given_up()
        else:
            upstream.health.failed(self._now_us(), self._sent_us)
        self._finish()
        self._flight.failed(why)

    def _finish(self) -> None:
        self._is_over = True
        self._reminder.pop(self, None)
        self._upstream.in_flight -= 1
        exchanges, self._exchanges = self._exchanges, []  # they know us, and would keep us
        for exchange in exchanges:
            exchange.carrier.forget(exchange)
        if self._probe is not None:
            self._probe.carrier.forget(self._probe)


class _Probe:
    """An exchange that only tells whether an upstream answers at all."""

    __slots__ = ("_clock", "_sent_us", "_upstream", "carrier")

    packet = build_query(b"\0" + NS.to_bytes(2, "big") + b"\0\1", RD, udp_size=None)

    def __init__(self, upstream: Upstream, clock: Clock) -> None:
        self._upstream = upstream
        self._clock = clock
        self._sent_us = clock.monotonic_us()
        self.carrier = upstream.carrier(over_tcp=False)

    def received(self, packet: bytes) -> bool:
        if not is_answer_to(self.packet[HEADER_SIZE:], packet):
            return False
        now_us = self._clock.monotonic_us()
        self._upstream.health.heard(now_us, now_us - self._sent_us)
        return True

    def failed(self, why: str) -> None:
        """The attempt that asked finds out by itself."""


class _Exchange:
    """Implements `domain.ports.Exchange`."""

    __slots__ = (
        "_attempt",
        "carrier",
        "cookie",
        "is_exact",
        "is_over_tcp",
        "packet",
        "question",
        "sent_us",
    )

    def __init__(
        self,
        attempt: _Attempt,
        carrier: Carrier,
        packet: bytes,
        question: bytes,
        is_exact: bool,
        is_over_tcp: bool,
        sent_us: int,
        cookie: bytes,
    ) -> None:
        self._attempt = attempt
        self.cookie = cookie  # the option
        self.carrier = carrier
        self.packet = packet
        self.question = question  # with the letters as they were sent
        self.is_exact = is_exact  # letters count
        self.is_over_tcp = is_over_tcp
        self.sent_us = sent_us

    def received(self, packet: bytes) -> bool:
        return self._attempt.received(self, packet)

    def failed(self, why: str) -> None:
        self._attempt.failed(self, why)
