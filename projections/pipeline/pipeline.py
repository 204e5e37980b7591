"""From a query's octets to the answer's: ingress, zones, policy; what nobody answers is refused.

The pipeline is one plain call per query, and whatever goes wrong inside costs that query only.
"""

from collections import defaultdict
from collections.abc import Callable

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.lookup import NOT_OURS, RCODE_NAMES, SERVFAIL, Answer
from kudurru.domain.dns.messages import (
    HEADER_SIZE,
    TCP_MAX,
    Query,
    Unanswerable,
    compose,
    error_reply,
    parse_query,
    truncated,
)
from kudurru.domain.dns.record_types import CNAME
from kudurru.domain.dns.zone_tree import ZoneSet
from kudurru.domain.filtering.answers import DROPPED, TRUNCATED
from kudurru.domain.ports import Clock, Reply
from kudurru.projections.pipeline.edns import Asked, Edns, extended_error
from kudurru.projections.pipeline.ingress import CLASS_ANY, Identity, Ingress
from kudurru.projections.pipeline.policy import Policy
from kudurru.projections.pipeline.zones import Zones

UDP = "udp"
NO_REPLY = "none"
"""The response code under which a drop is counted."""


class PipelineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counted since the pipeline was made. Answers that an engine repeats are not among them."""

    requests: dict[str, int]  # by protocol
    responses: dict[str, int]  # by name of the response code, "none" for drops
    dropped: dict[str, int]  # by reason
    unhandled_exceptions: int


class Pipeline:
    """Handler of queries for the packet engines.

    Before there is data to serve (`is_synced`) every query but those about the server itself gets
    SERVFAIL: "try another server" is right, "no such name" would be a lie. `on_exception` is told
    of every exception that a stage let through; the query gets SERVFAIL.
    """

    def __init__(
        self,
        zones: ZoneSet,
        is_synced: Callable[[], bool],
        *,
        clock: Clock,
        identity: Identity,
        is_lameduck: Callable[[], bool],
        on_exception: Callable[[Exception], None],
        cookies: Cookies | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._policy = policy
        self._edns = Edns(cookies, identity.hostname)
        self._ingress = Ingress(identity, is_synced, is_lameduck)
        self._zones = Zones(zones)
        self._clock = clock
        self._on_exception = on_exception
        self._requests: dict[str, int] = defaultdict(int)
        self._responses: dict[int | None, int] = defaultdict(int)
        self._unhandled_exceptions = 0
        self._dropped_by_policy = 0

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        """The reply to one message; None: send nothing. Never raises."""
        self._requests[proto] += 1
        query: Query | Unanswerable | None = None
        try:
            query = parse_query(packet)
            if isinstance(query, Unanswerable):
                self._responses[query.rcode] += 1
                return Reply(query.reply, False) if query.reply is not None else None
            now_s = self._clock.now_us() // 1_000_000
            asked = self._edns.read(query, client, proto, now_s)
            answer = asked.answer or self._answer(query, client, proto, now_s)
            if answer is DROPPED:
                self._dropped_by_policy += 1
                self._responses[None] += 1
                return None
            wire = self._compose(query, answer, proto, asked)
        except Exception as error:
            return self._failed(error, packet, query)
        self._responses[answer.rcode] += 1
        return Reply(wire, answer.is_lasting and not asked.is_personal)

    def _compose(self, query: Query, answer: Answer, proto: str, asked: Asked) -> bytes:
        if answer is TRUNCATED:
            return truncated(query, answer, asked.options)
        return compose(
            query,
            answer,
            query.udp_max if proto == UDP else TCP_MAX,
            options=asked.options + extended_error(answer),
            block=asked.block,
        )

    def statistics(self) -> PipelineStatistics:
        responses = {
            NO_REPLY if rcode is None else RCODE_NAMES[rcode]: count
            for rcode, count in self._responses.items()
        }
        return PipelineStatistics(
            requests=dict(self._requests),
            responses=responses,
            dropped={
                "malformed": self._responses.get(None, 0) - self._dropped_by_policy,
                "policy": self._dropped_by_policy,
            },
            unhandled_exceptions=self._unhandled_exceptions,
        )

    def _answer(self, query: Query, client: str, proto: str, now_s: int) -> Answer:
        answer = self._ingress.answer(query)
        if answer is None:
            answer = self._zones.answer(query, now_s)
            if answer is None:
                answer = self._filtered(query, client, proto, now_s)
            if query.qclass == CLASS_ANY:
                # RFC 1035 section 6.2: nobody has the authority over all classes.
                answer = msgspec.structs.replace(answer, is_authoritative=False)
        return answer

    def _filtered(self, query: Query, client: str, proto: str, now_s: int) -> Answer:
        """What policies make of a question that no zone answers."""
        if self._policy is None:
            return NOT_OURS
        caller = self._policy.caller(client, proto)
        decision = self._policy.judge(caller, names.key(query.qname), query.qtype, now_s)
        answer = self._policy.answer(query, decision, proto) or NOT_OURS
        if answer.answer and answer.answer[0].rtype == CNAME:
            answer = self._zones.behind(answer.answer[0], query.qtype, now_s)
        if answer.is_lasting and not self._policy.is_lasting(decision):
            # The next client may get another one.
            answer = msgspec.structs.replace(answer, is_lasting=False)
        return answer

    def _failed(
        self, error: Exception, packet: bytes, query: Query | Unanswerable | None
    ) -> Reply | None:
        self._unhandled_exceptions += 1
        self._on_exception(error)
        if isinstance(query, Query):
            wire = compose(query, Answer(SERVFAIL), TCP_MAX)
        elif len(packet) >= HEADER_SIZE:
            wire = error_reply(packet, SERVFAIL)
        else:
            self._responses[None] += 1
            return None
        self._responses[SERVFAIL] += 1
        return Reply(wire, False)
