"""The stage that answers from the zones served here."""

from kudurru.domain.dns.lookup import NOT_OURS, Answer, Placed, lookup, lookup_behind
from kudurru.domain.dns.messages import Query
from kudurru.domain.dns.zone_set import ZoneSet


class Zones:
    def __init__(self, zones: ZoneSet) -> None:
        self._zones = zones

    def answer(self, query: Query, now_s: int) -> Answer | None:
        """None passes the query on: no zone here answers for the name."""
        answer = lookup(self._zones, query.qname, query.qtype, now_s)
        return None if answer is NOT_OURS else answer

    def behind(self, alias: Placed, qtype: int, now_s: int) -> Answer | None:
        """The answer that begins with this CNAME; None: no zone here answers for its target."""
        return lookup_behind(self._zones, alias, qtype, now_s)
