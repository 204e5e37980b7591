"""From a query's octets to the answer's: ingress, then zones; what nobody answers is refused.

The pipeline is one plain call per query, and whatever goes wrong inside costs that query only.
"""

from collections import defaultdict
from collections.abc import Callable

import msgspec

from kudurru.domain.dns.lookup import FORMERR, NOT_OURS, RCODE_NAMES, SERVFAIL, Answer
from kudurru.domain.dns.messages import (
    HEADER_SIZE,
    KEEPALIVE,
    PADDING,
    PADDING_BLOCK,
    TCP_MAX,
    Query,
    Unanswerable,
    compose,
    error_reply,
    find_option,
    pack_option,
    parse_query,
)
from kudurru.domain.dns.zone_tree import ZoneSet
from kudurru.domain.ports import STREAM_IDLE_S, Clock, Reply
from kudurru.projections.pipeline.ingress import Identity, Ingress
from kudurru.projections.pipeline.zones import Zones

UDP = "udp"
STREAMS = frozenset({"tcp", "tls"})
ENCRYPTED = frozenset({"tls", "https", "h3", "quic"})
_BAD_OPTION = Answer(FORMERR, is_lasting=False)
_KEEPALIVE_OPTION = pack_option(KEEPALIVE, (STREAM_IDLE_S * 10).to_bytes(2, "big"))
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
    ) -> None:
        self._ingress = Ingress(identity, is_synced, is_lameduck)
        self._zones = Zones(zones)
        self._clock = clock
        self._on_exception = on_exception
        self._requests: dict[str, int] = defaultdict(int)
        self._responses: dict[int | None, int] = defaultdict(int)
        self._unhandled_exceptions = 0

    def handle(
        self,
        packet: bytes,
        client: str,  # noqa: ARG002  # part of the port; access lists and the limiter will ask
        proto: str,
    ) -> Reply | None:
        """The reply to one message; None: send nothing. Never raises."""
        self._requests[proto] += 1
        query: Query | Unanswerable | None = None
        try:
            query = parse_query(packet)
            if isinstance(query, Unanswerable):
                self._responses[query.rcode] += 1
                return Reply(query.reply, False) if query.reply is not None else None
            answer = self._answer(query, proto)
            wire = _composed(query, answer, proto)
        except Exception as error:
            return self._failed(error, packet, query)
        self._responses[answer.rcode] += 1
        return Reply(wire, answer.is_lasting)

    def statistics(self) -> PipelineStatistics:
        responses = {
            NO_REPLY if rcode is None else RCODE_NAMES[rcode]: count
            for rcode, count in self._responses.items()
        }
        return PipelineStatistics(
            requests=dict(self._requests),
            responses=responses,
            dropped={"malformed": self._responses.get(None, 0)},
            unhandled_exceptions=self._unhandled_exceptions,
        )

    def _answer(self, query: Query, proto: str) -> Answer:
        if query.options and proto in STREAMS and find_option(query.options, KEEPALIVE):
            return _BAD_OPTION  # RFC 7828 section 3.2.1: a query carries no timeout
        answer = self._ingress.answer(query)
        if answer is None:
            answer = self._zones.answer(query, self._clock.now_us() // 1_000_000)
        return NOT_OURS if answer is None else answer

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


def _composed(query: Query, answer: Answer, proto: str) -> bytes:
    """The answer as a transport carries it: streams tell how long they may idle when they are
    asked (RFC 7828 section 3.3.2), encrypted ones pad when the query is padded (RFC 8467)."""
    if proto == UDP:
        return compose(query, answer, query.udp_max)
    options, block = b"", 0
    if query.options:
        if proto in STREAMS and find_option(query.options, KEEPALIVE) is not None:
            options = _KEEPALIVE_OPTION
        if proto in ENCRYPTED and find_option(query.options, PADDING) is not None:
            block = PADDING_BLOCK
    return compose(query, answer, TCP_MAX, options=options, block=block)
