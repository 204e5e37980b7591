"""From a query's octets to the answer's: signature, ingress, transfers, then zones; what nobody
answers is refused.

The pipeline is one plain call per query, and whatever goes wrong inside costs that query only.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec

from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.lookup import (
    NOERROR,
    NOT_OURS,
    PROHIBITED,
    RCODE_NAMES,
    REFUSED,
    SERVFAIL,
    Answer,
)
from kudurru.domain.dns.messages import (
    HEADER_SIZE,
    TCP_MAX,
    Query,
    Unanswerable,
    compose,
    error_reply,
    parse_query,
)
from kudurru.domain.dns.record_types import AXFR, IXFR
from kudurru.domain.dns.tsig import Signer
from kudurru.domain.dns.zone_tree import ZoneSet
from kudurru.domain.ports import Clock, Reply
from kudurru.projections.pipeline.edns import Edns, extended_error
from kudurru.projections.pipeline.ingress import CLASS_ANY, Identity, Ingress
from kudurru.projections.pipeline.signatures import Refusal, Signatures
from kudurru.projections.pipeline.transfers import Sender, Transfers
from kudurru.projections.pipeline.zones import Zones

UDP = "udp"
TRANSFER_TYPES = (AXFR, IXFR)

_NO_TRANSFER = Answer(REFUSED, extended_error=PROHIBITED)
NO_REPLY = "none"
"""The response code under which a drop is counted."""


class PipelineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counted since the pipeline was made. Answers that an engine repeats are not among them."""

    requests: dict[str, int]  # by protocol
    responses: dict[str, int]  # by name of the response code, "none" for drops
    dropped: dict[str, int]  # by reason
    unhandled_exceptions: int
    signed: dict[str, int]  # signed queries, by TSIG error


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
        signatures: Signatures | None = None,
        transfers: Transfers | None = None,
    ) -> None:
        self._edns = Edns(cookies, identity.hostname)
        self._ingress = Ingress(identity, is_synced, is_lameduck)
        self._signatures = signatures or Signatures()
        self._transfers = transfers
        self._zones = Zones(zones)
        self._clock = clock
        self._on_exception = on_exception
        self._requests: dict[str, int] = defaultdict(int)
        self._responses: dict[int | None, int] = defaultdict(int)
        self._unhandled_exceptions = 0

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        """The reply to one message; None: send nothing. Never raises."""
        self._requests[proto] += 1
        query: Query | Unanswerable | None = None
        try:
            query = parse_query(packet)
            if isinstance(query, Unanswerable):
                self._responses[query.rcode] += 1
                return Reply(query.reply, False) if query.reply is not None else None
            return self._reply(packet, query, client, proto)
        except Exception as error:
            return self._failed(error, packet, query)

    def _reply(self, packet: bytes, query: Query, client: str, proto: str) -> Reply:
        now_s = self._clock.now_us() // 1_000_000
        limit = query.udp_max if proto == UDP else TCP_MAX
        signer: Signer | None = None
        if query.tsig_at:
            checked = self._signatures.check(packet, query, now_s)
            if isinstance(checked, Refusal):
                self._responses[checked.rcode] += 1
                return Reply(checked.wire, False)
            signer = checked
            limit -= signer.size
        asked = self._edns.read(query, client, proto, now_s)
        answer = asked.answer or self._ingress.answer(query)
        if answer is None and query.qtype in TRANSFER_TYPES:
            sender = Sender(client, proto, signer.key.name if signer is not None else None)
            found = self._transfer(packet, query, sender, limit, asked.options)
            if not isinstance(found, Answer):
                return self._stream(found, signer)
            answer = found
        answer = answer or self._answer(query, now_s)
        options = asked.options + extended_error(answer)
        wire = compose(query, answer, limit, options=options, block=asked.block)
        self._responses[answer.rcode] += 1
        if signer is not None:
            return Reply(signer.sign(wire, now_s), False)
        return Reply(wire, answer.is_lasting and not asked.is_personal)

    def _transfer(
        self, packet: bytes, query: Query, sender: Sender, room: int, options: bytes
    ) -> Answer | Iterator[bytes]:
        if self._transfers is None:
            return _NO_TRANSFER
        return self._transfers.answer(packet, query, sender, room=room, options=options)

    def _stream(self, messages: Iterator[bytes], signer: Signer | None) -> Reply:
        """The reply that is a transfer: its first message, and what makes the others."""
        if signer is not None:
            messages = self._signed(messages, signer)
        first = next(messages)
        self._responses[NOERROR] += 1
        return Reply(first, False, messages)

    def _signed(self, messages: Iterator[bytes], signer: Signer) -> Iterator[bytes]:
        for message in messages:
            yield signer.sign(message, self._clock.now_us() // 1_000_000)

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
            signed=self._signatures.statistics(),
        )

    def _answer(self, query: Query, now_s: int) -> Answer:
        answer = self._zones.answer(query, now_s) or NOT_OURS
        if query.qclass == CLASS_ANY:
            # RFC 1035 section 6.2: nobody has the authority over all classes.
            answer = msgspec.structs.replace(answer, is_authoritative=False)
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
