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
from kudurru.domain.ports import Clock, EventLog, Reply
from kudurru.projections.early_zones import EarlyZones
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.pipeline import Pipeline

RCODE_AT, RCODE_MASK = 3, 15
"""RFC 1035 section 4.1.1."""


class EarlyHandler:
    """The pipeline that it is given, but between `begin` and `end`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._early: Pipeline | None = None
        self._answered: Counter[int] = Counter()  # by response code
        self.handle = pipeline.handle  # an attribute, so that it costs nothing later
        self.hears_repeats = pipeline.hears_repeats
        self.weigh = pipeline.weigh
        self.repeated = pipeline.repeated
        self.answered = pipeline.answered
        self.missed = pipeline.missed
        self.names_id = pipeline.names_id

    @property
    def tells_clients_apart(self) -> bool:
        return self._pipeline.tells_clients_apart

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
        self.handle = self._pipeline.handle

    def _handle(
        self,
        packet: bytes,
        client: str,
        proto: str,
        client_id: str = "",
        listener: str = "",
        *,
        is_noted: bool = True,
    ) -> Reply | Later[Reply | None] | None:
        assert self._early is not None
        reply = self._early.handle(packet, client, proto)
        if isinstance(reply, Reply):
            rcode = reply.wire[RCODE_AT] & RCODE_MASK
            if rcode in (NOERROR, NXDOMAIN):
                self._answered[rcode] += 1
                return Reply(reply.wire, False)  # nothing is remembered of what is early
        return self._pipeline.handle(packet, client, proto, client_id, listener, is_noted=is_noted)

    def samples(self) -> Iterator[Sample]:
        """What was answered so, for the metrics."""
        for rcode, count in self._answered.items():
            yield Sample("dns_responses_total", ("none", RCODE_NAMES[rcode], "early"), count)
