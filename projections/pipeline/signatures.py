"""Signed queries (RFC 8945): checked before anything else is looked at, and answered signed."""

from collections import defaultdict
from typing import NamedTuple

from kudurru.domain.dns import tsig
from kudurru.domain.dns.lookup import FORMERR, NOTAUTH, Answer
from kudurru.domain.dns.messages import TCP_MAX, Query, compose
from kudurru.domain.dns.tsig import ERROR_NAMES, BadTsig, FindKey, Signer, Unverified

_MALFORMED = Answer(FORMERR, is_lasting=False)
_UNVERIFIED = Answer(NOTAUTH, is_lasting=False)


class Refusal(NamedTuple):
    """The answer to a query whose signature does not hold."""

    rcode: int
    wire: bytes


class Signatures:
    """`find_key` None: no key is known here, and whoever signs learns that."""

    def __init__(self, find_key: FindKey | None = None, *, may_truncate: bool = False) -> None:
        self._find_key = find_key or (lambda _name: None)
        self._may_truncate = may_truncate
        self._counts: dict[str, int] = defaultdict(int)

    def check(self, packet: bytes, query: Query, now_s: int) -> Signer | Refusal:
        """What signs the answer to a query that has a TSIG record, or the answer to send."""
        try:
            signature = tsig.read(packet, query.tsig_at)
            signer = tsig.verify(
                packet, signature, self._find_key, now_s, may_truncate=self._may_truncate
            )
        except BadTsig:
            self._counts["FORMERR"] += 1
            return Refusal(FORMERR, compose(query, _MALFORMED, TCP_MAX))
        except Unverified as refused:
            self._counts[ERROR_NAMES[refused.error]] += 1
            # A few octets longer than the query, whatever the transport.
            return Refusal(NOTAUTH, refused.mark(compose(query, _UNVERIFIED, TCP_MAX), now_s))
        self._counts["NOERROR"] += 1
        return signer

    def statistics(self) -> dict[str, int]:
        """Signed queries by what came of the check."""
        return dict(self._counts)
