"""DNS cookies (RFC 7873) in the form that servers share (RFC 9018).

A client that shows a cookie we made can receive at the address it sends from. Nothing is kept for
that: a server cookie is a hash over the client's cookie, its address and the time. Each day has its
own secret, made from one that stays, and the time inside a cookie tells which day's it is; so
nodes that hold the same secret honour each other's cookies, and nothing is written when a day ends.
"""

import hashlib
import hmac
from ipaddress import ip_address

import msgspec

CLIENT_SIZE = 8
_FULL_SIZE = 24
_SIZES = frozenset({CLIENT_SIZE, *range(16, 41)})  # RFC 7873 section 4

SECRET_SIZE = 32

# RFC 9018 section 4.3.
_AGE_MAX_S = 3600
_AHEAD_MAX_S = 300  # of our clock: other nodes make cookies too
_RENEW_AFTER_S = 1800

_VERSION = b"\x01\x00\x00\x00"  # and three octets that are reserved
DAY_S = 86_400

RECENT_MAX = 4096
"""Cookies found right that are not computed again: of as many clients as ask within minutes."""


class Verdict(msgspec.Struct, frozen=True):
    """`cookie` goes into the answer. `is_proven`: the client showed one that we made for it."""

    cookie: bytes
    is_proven: bool


class Cookies:
    def __init__(self, secret: bytes) -> None:
        """`secret`: SECRET_SIZE octets that stay, the same on all nodes."""
        self._secret = secret
        self._day = b""
        self._day_no = -1
        self._recent: dict[tuple[str, bytes], int] = {}  # until when each may be given back

    def judge(self, option: bytes, client: str, now_s: int) -> Verdict | None:
        """What to answer to the cookie of a query. None: its length is one that no cookie has,
        which is FORMERR (RFC 7873 section 5.2.2)."""
        if len(option) not in _SIZES:
            return None
        if self._recent.get((client, option), 0) > now_s:
            return Verdict(option, True)
        own, shown = option[:CLIENT_SIZE], option[CLIENT_SIZE:]
        address = ip_address(client).packed
        age_s = self._age_s(own, shown, address, now_s)
        if age_s is not None and age_s <= _RENEW_AFTER_S:
            if len(self._recent) >= RECENT_MAX:
                self._recent.clear()
            self._recent[client, option] = now_s - age_s + _RENEW_AFTER_S
            return Verdict(option, True)
        stamp = (now_s & 0xFFFFFFFF).to_bytes(4, "big")
        fresh = own + server_cookie(self._key(now_s), own, _VERSION + stamp, address)
        return Verdict(fresh, age_s is not None)

    def _age_s(self, own: bytes, shown: bytes, address: bytes, now_s: int) -> int | None:
        """Age of a server cookie that we made and that still counts."""
        if len(shown) != _FULL_SIZE - CLIENT_SIZE or shown[0] != _VERSION[0]:
            return None
        head = shown[:8]
        age_s = now_s - int.from_bytes(head[4:], "big") & 0xFFFFFFFF
        if age_s >= 1 << 31:  # RFC 1982: the time is ahead of ours
            age_s -= 1 << 32
        if not -_AHEAD_MAX_S <= age_s <= _AGE_MAX_S:
            return None
        key = self._key(now_s - age_s)
        is_ours = hmac.compare_digest(server_cookie(key, own, head, address), shown)
        return age_s if is_ours else None

    def key_of(self, day_no: int) -> bytes:
        """The key of a day since 1970, 16 octets."""
        number = day_no.to_bytes(8, "big", signed=True)
        return hashlib.blake2s(number, key=self._secret, digest_size=16).digest()

    def _key(self, at_s: int) -> bytes:
        day_no = at_s // DAY_S
        if day_no != self._day_no:
            self._day = self.key_of(day_no)
            self._day_no = day_no
        return self._day


def server_cookie(key: bytes, own: bytes, head: bytes, address: bytes) -> bytes:
    """RFC 9018 section 4.4, 16 octets. `own` is the client's cookie, `head` version, reserved
    octets and time, `address` the client's, of 4 or 16 octets."""
    return head + siphash_2_4(key, own + head + address)


def siphash_2_4(key: bytes, message: bytes) -> bytes:
    """SipHash-2-4 of Aumasson and Bernstein with a key of 16 octets; 8 octets, little-endian."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    state = (
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    )
    whole = len(message) & ~7
    last = message[whole:].ljust(7, b"\x00") + bytes((len(message) & 0xFF,))
    for at in range(0, whole, 8):
        state = _block(state, int.from_bytes(message[at : at + 8], "little"))
    a, b, c, d = _block(state, int.from_bytes(last, "little"))
    a, b, c, d = _rounds(a, b, c ^ 0xFF, d, 4)
    return (a ^ b ^ c ^ d).to_bytes(8, "little")


def _block(state: tuple[int, int, int, int], word: int) -> tuple[int, int, int, int]:
    a, b, c, d = state
    a, b, c, d = _rounds(a, b, c, d ^ word, 2)
    return a ^ word, b, c, d


def _rounds(a: int, b: int, c: int, d: int, count: int) -> tuple[int, int, int, int]:
    mask = 0xFFFFFFFFFFFFFFFF
    for _ in range(count):
        a = a + b & mask
        b = (b << 13 & mask | b >> 51) ^ a
        a = a << 32 & mask | a >> 32
        c = c + d & mask
        d = (d << 16 & mask | d >> 48) ^ c
        a = a + d & mask
        d = (d << 21 & mask | d >> 43) ^ a
        c = c + b & mask
        b = (b << 17 & mask | b >> 47) ^ c
        c = c << 32 & mask | c >> 32
    return a, b, c, d
