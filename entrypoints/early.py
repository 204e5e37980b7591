"""Answers while a server builds its views, from zones that are read one by one.

Only what a zone of ours has is answered then: whatever policies, forwarding or transfers would have
to say is not known yet, and gets SERVFAIL as before.
"""

from collections import Counter
from collections.abc import Iterator

from kudurru.adapters.metrics import Sample
from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.lookup import NOERROR, NXDOMAIN, RCODE_NAMES
from kudurru.domain.later import Later
from kudurru.domain.ports import Clock, EventLog, QueryHandler, Reply
from kudurru.projections.early_zones import EarlyZones
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.pipeline import Pipeline

RCODE_AT, RCODE_MASK = 3, 15
"""RFC 1035 section 4.1.1."""


class EarlyHandler:
    """Implements `QueryHandler`: the handler that it is given, but between `begin` and `end`."""

    def __init__(self, handler: QueryHandler) -> None:
        self._handler = handler
        self._early: Pipeline | None = None
        self._answered: Counter[int] = Counter()  # by response code
        self.handle = handler.handle  # an attribute, so that it costs nothing later

    def begin(self, log: EventLog, upto: int, clock: Clock, cookies: Cookies) -> None:
        """Raises what reading the log does."""
        zones = EarlyZones(log, upto, clock.now_us() // 1_000_000)
        self._early = Pipeline(
            zones,
            is_synced=lambda: True,
            clock=clock,
            identity=Identity(),
            is_lameduck=lambda: True,  # balancers wait until all is there
            on_exception=lambda error: None,  # noqa: ARG005  # the replay finds what is wrong
            cookies=cookies,
        )
        self.handle = self._handle

    def end(self) -> None:
        self._early = None
        self.handle = self._handler.handle

    def _handle(self, packet: bytes, client: str, proto: str) -> Reply | Later[Reply | None] | None:
        assert self._early is not None
        reply = self._early.handle(packet, client, proto)
        rcode = reply.wire[RCODE_AT] & RCODE_MASK if reply is not None else None
        if reply is None or rcode not in (NOERROR, NXDOMAIN):
            return self._handler.handle(packet, client, proto)
        self._answered[rcode] += 1
        return Reply(reply.wire, False)  # nothing is remembered of what is early

    def samples(self) -> Iterator[Sample]:
        """What was answered so, for the metrics."""
        for rcode, count in self._answered.items():
            yield Sample("dns_responses_total", (RCODE_NAMES[rcode],), count)
