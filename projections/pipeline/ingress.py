"""The first stage: what is answered or refused before any data is looked at.

EDNS versions, classes, the server's own names of class CHAOS, and the health name.
"""

from collections.abc import Callable

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.health import HEALTH_NAME
from kudurru.domain.dns.images import pack_record
from kudurru.domain.dns.lookup import (
    BADVERS,
    NOERROR,
    NOT_OURS,
    NOT_READY,
    SERVFAIL,
    Answer,
    Placed,
)
from kudurru.domain.dns.messages import EDNS_VERSION, Query
from kudurru.domain.dns.record_types import AAAA, ANY, TXT, A
from kudurru.domain.dns.records import CLASS_IN

CLASS_CHAOS, CLASS_ANY = 3, 255

_NOT_READY = Answer(SERVFAIL, is_lasting=False, extended_error=NOT_READY)
_BAD_VERSION = Answer(BADVERS, is_lasting=False)

_LOOPBACK = {
    A: Placed(None, A, 1, pack_record(A, 0, bytes((127, 0, 0, 1)))),
    AAAA: Placed(None, AAAA, 1, pack_record(AAAA, 0, bytes(15) + b"\x01")),
}


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What this server says of itself over CHAOS; an empty text says nothing (REFUSED)."""

    version: str = ""
    hostname: str = ""


class Ingress:
    """`is_synced` tells whether there is data to serve, `is_lameduck` whether balancers should
    send their clients elsewhere."""

    def __init__(
        self, identity: Identity, is_synced: Callable[[], bool], is_lameduck: Callable[[], bool]
    ) -> None:
        self._is_synced = is_synced
        self._is_lameduck = is_lameduck
        texts = {
            "version.bind.": identity.version,
            "hostname.bind.": identity.hostname,
            "id.server.": identity.hostname,
        }
        self._chaos = {
            names.from_text(name): Answer(NOERROR, True, (_chaos_txt(text),))
            for name, text in texts.items()
            if text
        }

    def answer(self, query: Query) -> Answer | None:
        """None passes the query on."""
        if query.edns_version is not None and query.edns_version > EDNS_VERSION:
            return _BAD_VERSION
        if query.qclass != CLASS_IN:
            if query.qclass != CLASS_ANY:
                return self._other_class(query)
        elif len(query.qname) == len(HEALTH_NAME) and query.qname.lower() == HEALTH_NAME:
            return self._health(query.qtype)
        return None if self._is_synced() else _NOT_READY

    def _health(self, qtype: int) -> Answer:
        """Answers 127.0.0.1 and ::1 while clients are welcome. Never remembered."""
        if self._is_lameduck() or not self._is_synced():
            return _NOT_READY
        found = _LOOPBACK.get(A if qtype == ANY else qtype)
        return Answer(NOERROR, True, (found,) if found else (), is_lasting=False)

    def _other_class(self, query: Query) -> Answer:
        if query.qclass != CLASS_CHAOS:
            return NOT_OURS
        found = self._chaos.get(names.key(query.qname))
        if found is not None and query.qtype not in (TXT, ANY):
            return Answer(NOERROR, True)
        return found or NOT_OURS


def _chaos_txt(text: str) -> Placed:
    octets = text.encode()[:255]
    rdata = len(octets).to_bytes(1, "big") + octets
    return Placed(None, TXT, 1, pack_record(TXT, 0, rdata, CLASS_CHAOS))
