"""The fields rdata is made of, each as a pair: from text to octets, and back.

A record type is a sequence of fields (`records.py` has the table), so a new type is one line there.
Text comes as tokens: words of a master file as written, quoted ones with their quotes. Every
character of a token is one octet (Latin-1 of the file's bytes), so that UTF-8 passes unchanged.

`parse` takes as many tokens as it needs and raises BadRecord. `show` reads the field at an offset,
answers its canonical text and the offset behind it, and raises BadRecord where the octets are not
what `parse` could have made; it is therefore the check of wire data too.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct as Layout
from typing import NamedTuple

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import BadRecord, type_from_text, type_to_text

Tokens = Iterator[str]


class Field(NamedTuple):
    parse: Callable[[Tokens, Name | None], bytes]
    show: Callable[[bytes, int], tuple[str, int]]


# ---------------------------------------------------------------- text of octets

_ESCAPED = re.compile(r"\\([0-9]{3}|[^0-9]|)", re.DOTALL)
_UNSAFE = re.compile(rb'["\\\x00-\x1f\x7f-\xff]')


def octets(token: str) -> bytes:
    """Octets of a quoted or bare word, escapes resolved (RFC 1035 section 5.1)."""
    if token[:1] == '"':
        token = token[1:-1]
    if "\\" in token:
        token = _ESCAPED.sub(_unescape, token)
    return token.encode("latin-1")


def _unescape(match: "re.Match[str]") -> str:
    escaped = match[1]
    if len(escaped) == 1:
        return escaped
    if not escaped or int(escaped) > 255:
        bad = match.string[match.start() : match.start() + 4]
        raise BadRecord(f"bad escape {bad!r}; write \\DDD with three digits, at most 255")
    return chr(int(escaped))


def quoted(value: bytes) -> str:
    """A word in quotes, with what is not printable ASCII as \\DDD."""
    if _UNSAFE.search(value):
        value = _UNSAFE.sub(_escape, value)
    return f'"{value.decode("ascii")}"'


def _escape(match: "re.Match[bytes]") -> bytes:
    octet = match[0]
    return b"\\" + octet if octet in b'"\\' else b"\\%03d" % octet[0]


# ---------------------------------------------------------------- values of one token


def number(token: str, most: int) -> int:
    """Decimal number between 0 and `most`."""
    if not (token.isascii() and token.isdecimal()):
        raise BadRecord(f"{token!r} is not a number")
    if len(token) > 10 or int(token) > most:
        raise BadRecord(f"{token} is too large; at most {most}")
    return int(token)


_TTL = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.I | re.A)
_UNIT_S = (604800, 86400, 3600, 60, 1)


def seconds(token: str, most: int) -> int:
    """Seconds, plain or with units as BIND reads them: 1h30m."""
    if token.isdecimal():
        return number(token, most)
    match = _TTL.fullmatch(token)
    if match is None or not token:
        raise BadRecord(f"{token!r} is not a time; write seconds, or units like 1w2d3h4m5s")
    found = sum(
        number(count, most) * unit for count, unit in zip(match.groups("0"), _UNIT_S, strict=True)
    )
    if found > most:
        raise BadRecord(f"{token} is {found} seconds; at most {most}")
    return found


_OCTET = {str(value): value for value in range(256)}


def ipv4(token: str) -> bytes:
    """Four octets of a dotted quad; no leading zeros, as inet_pton."""
    try:
        a, b, c, d = token.split(".")
        return bytes((_OCTET[a], _OCTET[b], _OCTET[c], _OCTET[d]))
    except (ValueError, KeyError):
        raise BadRecord(f"{token!r} is not an IPv4 address") from None


def ipv6(token: str) -> bytes:
    """Sixteen octets (RFC 4291 section 2.2)."""
    text = token
    if "." in text:  # the last 32 bits may be a dotted quad
        text, _, quad = text.rpartition(":")
        low = ipv4(quad).hex()
        text = f"{text}:{low[:4]}:{low[4:]}"
    head, gap, tail = text.partition("::")
    left = head.split(":") if head else []
    right = tail.split(":") if tail else []
    missing = 8 - len(left) - len(right)
    if (missing > 0) if gap else (missing == 0):
        groups = [group.zfill(4) if group else "" for group in left + ["0"] * missing + right]
        digits = "".join(groups)
        # An empty group is none, and `fromhex` would pass over blanks.
        if len(digits) == 32 and "" not in groups and digits.isalnum():
            try:
                return bytes.fromhex(digits)
            except ValueError:
                pass
    raise BadRecord(f"{token!r} is not an IPv6 address")


_GROUPS = Layout("!8H")
_ZEROS = re.compile(r"(?:^|:)0(?::0)+(?=:|$)")


def ipv6_text(address: bytes) -> str:
    """Text of RFC 5952, always in hexadecimal groups."""
    text = "%x:%x:%x:%x:%x:%x:%x:%x" % _GROUPS.unpack(address)  # noqa: UP031  # a third quicker
    if "0:0" not in text:
        return text
    runs = list(_ZEROS.finditer(text))
    if not runs:
        return text
    longest = max(runs, key=lambda run: run.end() - run.start() + (run.start() == 0))
    return f"{text[: longest.start()]}::{text[longest.end() :].lstrip(':')}"


def from_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise BadRecord(f"not base64: {error}") from None


def from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        if len(text) % 2:
            raise BadRecord(f"an odd number of hexadecimal digits: {len(text)}") from None
        raise BadRecord(f"not hexadecimal: {text[:40]!r}") from None


# ---------------------------------------------------------------- reading wire


def take(rdata: bytes, at: int, size: int) -> bytes:
    part = rdata[at : at + size]
    if len(part) != size:
        raise BadRecord(f"{size} octets wanted at offset {at}, {len(part)} there")
    return part


def take_counted(rdata: bytes, at: int) -> bytes:
    """Octets behind a length octet."""
    return take(rdata, at + 1, take(rdata, at, 1)[0])


def name_end(rdata: bytes, at: int) -> int:
    """Offset behind the uncompressed name at an offset."""
    i = at
    try:
        while size := rdata[i]:
            if size > names.LABEL_MAX:
                raise BadRecord("a compressed name, or an undefined label type")
            i += size + 1
    except IndexError:
        raise BadRecord("the name is cut short") from None
    if i + 1 - at > names.NAME_MAX:
        raise BadRecord("the name is longer than 255 octets")
    return i + 1


def _rest(rdata: bytes, at: int) -> bytes:
    if at >= len(rdata):
        raise BadRecord("the last field is empty")
    return rdata[at:]


# ---------------------------------------------------------------- fields


def _unsigned(size: int) -> Field:
    most = (1 << 8 * size) - 1

    def parse(tokens: Tokens, _origin: Name | None) -> bytes:
        return number(next(tokens), most).to_bytes(size, "big")

    def show(rdata: bytes, at: int) -> tuple[str, int]:
        return str(int.from_bytes(take(rdata, at, size), "big")), at + size

    return Field(parse, show)


U8 = _unsigned(1)
U16 = _unsigned(2)
U32 = _unsigned(4)


def _mnemonic(size: int, meanings: dict[str, int]) -> Field:
    """A number that may be written as a word; shown as the number."""
    plain = _unsigned(size)

    def parse(tokens: Tokens, origin: Name | None) -> bytes:
        token = next(tokens)
        value = meanings.get(token.upper())
        return (
            value.to_bytes(size, "big")
            if value is not None
            else plain.parse(iter((token,)), origin)
        )

    return Field(parse, plain.show)


# IANA registry "DNS Security Algorithm Numbers"
_ALGORITHMS = {
    "RSAMD5": 1, "DH": 2, "DSA": 3, "RSASHA1": 5, "DSA-NSEC3-SHA1": 6, "RSASHA1-NSEC3-SHA1": 7,
    "RSASHA256": 8, "RSASHA512": 10, "ECC-GOST": 12, "ECDSAP256SHA256": 13, "ECDSAP384SHA384": 14,
    "ED25519": 15, "ED448": 16, "INDIRECT": 252, "PRIVATEDNS": 253, "PRIVATEOID": 254,
}  # fmt: skip
ALGORITHM = _mnemonic(1, _ALGORITHMS)

# RFC 4398 section 2.1
CERT_TYPE = _mnemonic(
    2,
    {
        "PKIX": 1, "SPKI": 2, "PGP": 3, "IPKIX": 4, "ISPKI": 5, "IPGP": 6, "ACPKIX": 7,
        "IACPKIX": 8, "URI": 253, "OID": 254,
    },
)  # fmt: skip


def _parse_seconds(tokens: Tokens, _origin: Name | None) -> bytes:
    return seconds(next(tokens), 0xFFFFFFFF).to_bytes(4, "big")


SECONDS = Field(_parse_seconds, U32.show)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _parse_time(tokens: Tokens, _origin: Name | None) -> bytes:
    """YYYYMMDDHHmmSS or seconds (RFC 4034 section 3.2), modulo 2^32 (section 3.1.5)."""
    token = next(tokens)
    if len(token) != 14 or not (token.isascii() and token.isdecimal()):
        return number(token, 0xFFFFFFFF).to_bytes(4, "big")
    try:
        moment = datetime.strptime(f"{token}+0000", "%Y%m%d%H%M%S%z")
    except ValueError as error:
        raise BadRecord(f"{token!r} is not a time: {error}") from None
    return ((moment - _EPOCH) // timedelta(seconds=1) % 2**32).to_bytes(4, "big")


def _show_time(rdata: bytes, at: int) -> tuple[str, int]:
    moment = _EPOCH + timedelta(seconds=int.from_bytes(take(rdata, at, 4), "big"))
    return f"{moment:%Y%m%d%H%M%S}", at + 4


TIME = Field(_parse_time, _show_time)

IPV4 = Field(
    lambda tokens, _: ipv4(next(tokens)),
    lambda rdata, at: (".".join(map(str, take(rdata, at, 4))), at + 4),
)
IPV6 = Field(
    lambda tokens, _: ipv6(next(tokens)),
    lambda rdata, at: (ipv6_text(take(rdata, at, 16)), at + 16),
)

# Targets repeat (mail exchangers, name servers): a small memo saves time, and memory too, since
# equal names then are one object. 4096 names are about half a megabyte.
name = lru_cache(4096)(names.from_text)


def _show_name(rdata: bytes, at: int) -> tuple[str, int]:
    end = name_end(rdata, at)
    return names.to_text(rdata[at:end]), end


NAME = Field(lambda tokens, origin: name(next(tokens), origin), _show_name)


# ---- character strings and words

_WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|(?:[^"\\]|\\.)+', re.DOTALL)


def counted(value: bytes) -> bytes:
    if len(value) > 255:
        raise BadRecord(f"a string of {len(value)} octets; at most 255, so cut it into several")
    return bytes((len(value),)) + value


def strings(tokens: list[str]) -> bytes:
    """Character strings (RFC 1035 section 3.3.14), at least one."""
    parts = []
    for token in tokens:
        if '"' in token[1:-1]:  # v="a b" written without space: two strings, as BIND reads it
            parts += [counted(octets(word)) for word in _WORDS.findall(token)]
        else:
            parts.append(counted(octets(token)))
    if not parts:
        raise BadRecord("a string is missing")
    return b"".join(parts)


def _show_string(rdata: bytes, at: int) -> tuple[str, int]:
    value = take_counted(rdata, at)
    return quoted(value), at + 1 + len(value)


def _show_strings(rdata: bytes, at: int) -> tuple[str, int]:
    shown: list[str] = []
    while at < len(rdata) or not shown:
        text, at = _show_string(rdata, at)
        shown.append(text)
    return " ".join(shown), at


STRING = Field(lambda tokens, _: counted(octets(next(tokens))), _show_string)
STRINGS = Field(lambda tokens, _: strings(list(tokens)), _show_strings)
OPTIONAL_STRING = Field(
    lambda tokens, _: b"".join([counted(octets(token)) for token in list(tokens)[:1]]),
    lambda rdata, at: _show_string(rdata, at) if at < len(rdata) else ("", at),
)


def _parse_tag(tokens: Tokens, _origin: Name | None) -> bytes:
    """Property tag (RFC 8659 section 4.1): letters and digits."""
    tag = octets(next(tokens))
    if not tag.isalnum():
        raise BadRecord(f"a property tag holds letters and digits only, not {tag!r}")
    return counted(tag)


def _show_tag(rdata: bytes, at: int) -> tuple[str, int]:
    tag = take_counted(rdata, at)
    if not tag.isalnum():
        raise BadRecord("a property tag that is empty or not letters and digits")
    return tag.decode("ascii"), at + 1 + len(tag)


TAG = Field(_parse_tag, _show_tag)
VALUE = Field(
    lambda tokens, _: octets(next(tokens)),
    lambda rdata, at: (quoted(rdata[at:]), len(rdata)),
)


def _parse_target_uri(tokens: Tokens, _origin: Name | None) -> bytes:
    target = octets(next(tokens))
    if not target:  # RFC 7553 section 4.4
        raise BadRecord("the target of a URI record must not be empty")
    return target


URI_TARGET = Field(_parse_target_uri, lambda rdata, at: (quoted(_rest(rdata, at)), len(rdata)))

# ---- binary data


def _parse_rest_hex(tokens: Tokens, _origin: Name | None) -> bytes:
    return _rest(from_hex("".join(tokens)), 0)


def _parse_rest_base64(tokens: Tokens, _origin: Name | None) -> bytes:
    return _rest(from_base64("".join(tokens)), 0)


def to_base64(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode("ascii")


HEX = Field(_parse_rest_hex, lambda rdata, at: (_rest(rdata, at).hex().upper(), len(rdata)))
BASE64 = Field(_parse_rest_base64, lambda rdata, at: (to_base64(_rest(rdata, at)), len(rdata)))


def _parse_salt(tokens: Tokens, _origin: Name | None) -> bytes:
    digits = next(tokens)
    return b"\x00" if digits == "-" else counted(from_hex(digits))


def _show_salt(rdata: bytes, at: int) -> tuple[str, int]:
    salt = take_counted(rdata, at)
    return salt.hex().upper() or "-", at + 1 + len(salt)


SALT = Field(_parse_salt, _show_salt)  # RFC 5155 section 3.3


def _parse_hash(tokens: Tokens, _origin: Name | None) -> bytes:
    token = next(tokens)
    try:
        value = base64.b32hexdecode(token.upper() + "=" * (-len(token) % 8))
    except ValueError:
        raise BadRecord(f"{token!r} is not base32hex") from None
    return counted(_rest(value, 0))


def _show_hash(rdata: bytes, at: int) -> tuple[str, int]:
    value = _rest(take_counted(rdata, at), 0)
    return base64.b32hexencode(value).decode("ascii").rstrip("="), at + 1 + len(value)


HASH = Field(_parse_hash, _show_hash)  # RFC 5155 section 3.3


def _hex_groups(size: int, digits: int, separator: str) -> Field:
    """Octets in groups of hexadecimal digits: EUI (RFC 7043), locators (RFC 6742)."""
    width = digits // 2
    shape = re.compile(separator.join([f"[0-9a-f]{{{digits}}}"] * (size // width)), re.I)

    def parse(tokens: Tokens, _origin: Name | None) -> bytes:
        token = next(tokens)
        if not shape.fullmatch(token):
            raise BadRecord(f"{token!r} is not {size // width} groups of {digits} digits")
        return bytes.fromhex(token.replace(separator, ""))

    def show(rdata: bytes, at: int) -> tuple[str, int]:
        return take(rdata, at, size).hex(separator, width), at + size

    return Field(parse, show)


EUI48 = _hex_groups(6, 2, "-")
EUI64 = _hex_groups(8, 2, "-")
LOCATOR64 = _hex_groups(8, 4, ":")

# ---- types

TYPE = Field(
    lambda tokens, _: type_from_text(next(tokens)).to_bytes(2, "big"),
    lambda rdata, at: (type_to_text(int.from_bytes(take(rdata, at, 2), "big")), at + 2),
)


def _parse_types(tokens: Tokens, _origin: Name | None) -> bytes:
    """Type bit maps (RFC 4034 section 4.1.2); they may be empty."""
    windows: dict[int, bytearray] = {}
    for rtype in {type_from_text(token) for token in tokens}:
        bits = windows.setdefault(rtype >> 8, bytearray(32))
        bits[(rtype & 0xFF) >> 3] |= 0x80 >> (rtype & 7)
    parts = []
    for window in sorted(windows):
        bits = windows[window].rstrip(b"\x00")
        parts.append(bytes((window, len(bits))) + bits)
    return b"".join(parts)


def _show_types(rdata: bytes, at: int) -> tuple[str, int]:
    shown: list[str] = []
    previous = -1
    while at < len(rdata):
        window = rdata[at]
        bits = take_counted(rdata, at + 1)
        if window <= previous or not 0 < len(bits) <= 32 or not bits[-1]:
            raise BadRecord("a type bit map out of order, empty, or with a zero octet at its end")
        previous = window
        shown += [
            type_to_text(window << 8 | i << 3 | bit)
            for i, octet in enumerate(bits)
            for bit in range(8)
            if octet & 0x80 >> bit
        ]
        at += 2 + len(bits)
    return " ".join(shown), at


TYPES = Field(_parse_types, _show_types)
