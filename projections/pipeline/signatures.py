"""Signed queries (RFC 8945): checked before anything else is looked at, and answered signed."""

from collections import defaultdict
from typing import NamedTuple

from kudurru.domain.dns import tsig
from kudurru.domain.dns.lookup import FORMERR, NOTAUTH, Answer
from kudurru.domain.dns.messages import TCP_MAX, Query, compose, error_reply
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.tsig import ERROR_NAMES, BadTsig, FindKey, Signature, Signer, Unverified

_MALFORMED = Answer(FORMERR, is_lasting=False)
_UNVERIFIED = Answer(NOTAUTH, is_lasting=False)


class Refusal(NamedTuple):
    """The answer to a query whose signature does not hold."""

    rcode: int
    wire: bytes
    key: Name | None = None


class Opened(NamedTuple):
    """A message without its TSIG record."""

    message: bytes
    signer: Signer | None  # None: it was not signed
    signed_s: int = 0  # unix time at which it was
    mac: bytes = b""


class Signatures:
    """`find_key` None: no key is known here, and whoever signs learns that."""

    def __init__(self, find_key: FindKey | None = None, *, may_truncate: bool = False) -> None:
        self._find_key = find_key or (lambda _name: None)
        self._may_truncate = may_truncate
        self._counts: dict[str, int] = defaultdict(int)

    def check(self, packet: bytes, query: Query, now_s: int) -> Signer | Refusal:
        """What signs the answer to a query that has a TSIG record, or the answer to send."""
        try:
            return self._verified(packet, tsig.read(packet, query.tsig_at), now_s)
        except BadTsig:
            self._counts["FORMERR"] += 1
            return Refusal(FORMERR, compose(query, _MALFORMED, TCP_MAX))
        except Unverified as refused:
            # A few octets longer than the query, whatever the transport.
            return Refusal(NOTAUTH, refused.mark(compose(query, _UNVERIFIED, TCP_MAX), now_s))

    def opened(self, packet: bytes, now_s: int) -> Opened | Refusal:
        """A message of any opcode without its signature, and what signs the answer, or the answer
        to send. Who claimed to have signed one that does not hold is in `Refusal.key`."""
        try:
            signature = tsig.find(packet)
            if signature is None:
                return Opened(packet, None)
            signer = self._verified(packet, signature, now_s)
        except BadTsig:
            self._counts["FORMERR"] += 1
            return Refusal(FORMERR, error_reply(packet, FORMERR))
        except Unverified as refused:
            reply = refused.mark(error_reply(packet, NOTAUTH), now_s)
            return Refusal(NOTAUTH, reply, refused.key_name)
        return Opened(signature.unsigned(packet), signer, signature.time_s, signature.mac)

    def _verified(self, packet: bytes, signature: Signature, now_s: int) -> Signer:
        try:
            signer = tsig.verify(
                packet, signature, self._find_key, now_s, may_truncate=self._may_truncate
            )
        except Unverified as refused:
            self._counts[ERROR_NAMES[refused.error]] += 1
            raise
        self._counts["NOERROR"] += 1
        return signer

    def statistics(self) -> dict[str, int]:
        """Signed queries by what came of the check."""
        return dict(self._counts)
