"""What the EDNS options of a query ask of its answer.

Cookies (RFC 7873, 9018) prove where a client is, and never keep it from an answer: one without a
cookie of ours, or with an old one, gets its answer and a fresh cookie (RFC 7873 section 5.2.3,
5.2.4). Streams tell how long they may idle (RFC 7828), encrypted transports pad (RFC 8467), NSID
names the node (RFC 5001). Options that we do not know are skipped (RFC 6891 section 6.1.2).
"""

import msgspec

from kudurru.domain.dns.cookies import CLIENT_SIZE, Cookies
from kudurru.domain.dns.lookup import BADCOOKIE, FORMERR, NOERROR, Answer
from kudurru.domain.dns.messages import (
    COOKIE,
    EDNS_VERSION,
    EXTENDED_ERROR,
    KEEPALIVE,
    NSID,
    PADDING,
    PADDING_BLOCK,
    Query,
    find_option,
    pack_option,
)
from kudurru.domain.ports import STREAM_IDLE_S

STREAMS = frozenset({"tcp", "tls"})
ENCRYPTED = frozenset({"tls", "https", "h3", "quic"})

NSID_MAX = 192
"""Octets of a node's name that are told: with the longest question and all other options they fit
into the smallest answer, of 512 octets."""

_KEEPALIVE = pack_option(KEEPALIVE, (STREAM_IDLE_S * 10).to_bytes(2, "big"))
_BAD_OPTION = Answer(FORMERR, is_lasting=False)
_COOKIE_ONLY = Answer(NOERROR, is_lasting=False)
_BAD_COOKIE = Answer(BADCOOKIE, is_lasting=False)


class Asked(msgspec.Struct, frozen=True, gc=False):
    """`answer`, where the options alone decide it; `options` go into the answer, which is padded
    to a multiple of `block` octets. `has_cookie`: they begin with one, for this client only."""

    answer: Answer | None = None
    options: bytes = b""
    block: int = 0
    has_cookie: bool = False


NOTHING_ASKED = Asked()


class Edns:
    """`cookies` None: they are skipped like unknown options. `node` is what NSID says."""

    def __init__(self, cookies: Cookies | None, node: str) -> None:
        self._cookies = cookies
        self._nsid = pack_option(NSID, node.encode()[:NSID_MAX]) if node else b""

    def read(self, query: Query, client: str, proto: str, now_s: int) -> Asked:
        if not query.options or query.edns_version != EDNS_VERSION:
            return NOTHING_ASKED
        answer, options, has_cookie = self._cookie(query, client, now_s)
        if find_option(query.options, NSID) is not None:
            options += self._nsid
        if proto in STREAMS:
            keepalive = find_option(query.options, KEEPALIVE)
            if keepalive is not None:
                options += _KEEPALIVE
            if keepalive:
                answer = _BAD_OPTION  # RFC 7828 section 3.2.1: a query carries no timeout
        padded = proto in ENCRYPTED and find_option(query.options, PADDING) is not None
        return Asked(answer, options, PADDING_BLOCK if padded else 0, has_cookie)

    def _cookie(self, query: Query, client: str, now_s: int) -> tuple[Answer | None, bytes, bool]:
        shown = find_option(query.options, COOKIE)
        if shown is None or self._cookies is None:
            return (None if query.question else _BAD_OPTION), b"", False
        verdict = self._cookies.judge(shown, client, now_s)
        if verdict is None:
            return _BAD_OPTION, b"", True
        answer = None
        if not query.question:
            # RFC 7873 section 5.4: a query for a cookie only, the one case where a wrong one is
            # an error.
            is_wrong = len(shown) > CLIENT_SIZE and not verdict.is_proven
            answer = _BAD_COOKIE if is_wrong else _COOKIE_ONLY
        return answer, pack_option(COOKIE, verdict.cookie), True


def extended_error(code: int | None, text: str = "") -> bytes:
    """The option that says more than the response code does (RFC 8914)."""
    if code is None:
        return b""
    return pack_option(EXTENDED_ERROR, code.to_bytes(2, "big") + text.encode())
