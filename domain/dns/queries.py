"""Queries to other servers."""

from functools import lru_cache
from struct import Struct as Layout

from kudurru.domain.dns.messages import EDNS_VERSION, HEADER_SIZE, PADDING, pack_option
from kudurru.domain.dns.record_types import OPT

_HEADER = Layout("!HHHHHH")
_OPT = Layout("!BHHBBHH")

QUERIES_REMEMBERED = 256
"""Kinds of queries: a few flags, and the cookies of upstreams or lengths of padding."""

PADDING_BLOCK = 128
"""Queries over encrypted transports are padded to a multiple of it (RFC 8467 section 4.1)."""


def build_query(
    question: bytes,
    flags: int,
    *,
    udp_size: int | None,
    is_dnssec_ok: bool = False,
    block: int = 0,
    options: bytes = b"",
) -> bytes:
    """A query with ID 0. `flags` are of RD, CD and AD; `udp_size` None leaves EDNS out. `options`
    are of EDNS; where queries are padded to a `block` there are none."""
    if block and udp_size is not None:
        size = HEADER_SIZE + len(question) + 11 + 4
        options = pack_option(PADDING, bytes(-size % block))
    head, tail = _around_question(flags, udp_size, is_dnssec_ok, options)
    return head + question + tail


@lru_cache(QUERIES_REMEMBERED)
def _around_question(
    flags: int, udp_size: int | None, is_dnssec_ok: bool, options: bytes
) -> tuple[bytes, bytes]:
    """The octets before and behind the question of a query."""
    if udp_size is None:
        return _HEADER.pack(0, flags, 1, 0, 0, 0), b""
    dnssec = 0x8000 if is_dnssec_ok else 0
    opt = _OPT.pack(0, OPT, udp_size, 0, EDNS_VERSION, dnssec, len(options))
    return _HEADER.pack(0, flags, 1, 0, 0, 1), opt + options


_LETTERS = bytes(0x20 if chr(octet).isalpha() and octet < 128 else 0 for octet in range(256))


def mixed(name: bytes, chance: int) -> bytes:
    """A name in lower case with its letters in random case, by the bits of `chance`
    (draft-vixie-dnsext-dns0x20). Length octets are no letters: they are below 64."""
    size = len(name)
    letters = int.from_bytes(name.translate(_LETTERS), "big")
    return (int.from_bytes(name, "big") ^ letters & chance).to_bytes(size, "big")
