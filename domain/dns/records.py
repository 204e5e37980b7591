"""Record data between text and wire.

Text is presentation format (RFC 1035 section 5.1 and the RFC of each type) with absolute names;
wire is uncompressed rdata as it goes into answers. Most types are a row of fields in `_KINDS`;
dnspython reads the rare ones, and any type may be written `\\# length hex` (RFC 3597 section 5).

Canonical text is what `rdata_to_text` makes: it is hashed (content hash of a zone), so the form
of a type must not change once released.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kudurru.domain.dns import rdata_fields as f
from kudurru.domain.dns import record_types, svcb
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.record_types import BadRecord, type_from_text, type_to_text

RDATA_MAX = 65535
CLASS_IN = 1

Parse = Callable[[list[str], Name | None], bytes]
Show = Callable[[bytes], str]


def rdata_from_text(rtype: int, text: str, origin: Name | None = None) -> bytes:
    """Wire from presentation format. Relative names are completed with `origin`; without one every
    name counts as absolute. Raises BadRecord."""
    if not text.isascii():
        text = _latin(text)
    return rdata_from_tokens(rtype, split(text), origin)


def rdata_from_tokens(rtype: int, tokens: list[str], origin: Name | None) -> bytes:
    """Wire from the words of a record, quotes and escapes as written, a character per octet.
    Raises BadRecord."""
    if record_types.is_meta_type(rtype):
        raise BadRecord(f"{type_to_text(rtype)} is not a type of zone data")
    if tokens and tokens[0] == "\\#":
        return _from_generic(rtype, tokens)
    try:
        return bounded(parser_of(rtype)(tokens, origin))
    except BadName as error:
        raise BadRecord(str(error)) from None


def target_from_text(rtype: int, text: str) -> bytes:
    """Wire of a target of a DNSRecordSet: names are absolute with or without the final dot, and a
    text target that does not begin with a quote is one string, cut into pieces of 255 octets.
    Raises BadRecord."""
    at_once = _ONE_WORD_TYPES.get(rtype)
    if at_once is not None:
        try:
            return at_once(text)
        except (BadRecord, BadName):
            pass  # the long way reads generic text, or says what is wrong
    if rtype in (record_types.TXT, record_types.SPF) and text[:1] != '"':
        value = _latin(text).encode("latin-1")
        pieces = [value[i : i + 255] for i in range(0, len(value), 255)] or [b""]
        return bounded(b"".join(map(f.counted, pieces)))
    return rdata_from_text(rtype, text)


def rdata_to_text(rtype: int, rdata: bytes) -> str:
    """Canonical presentation, which `rdata_from_text` reads back to the same octets. Rdata of an
    unknown type, and malformed rdata of a known one, comes out as `\\# length hex`."""
    try:
        return _kind(rtype).show(rdata)
    except BadRecord:
        return generic_text(rdata)


def check_rdata(rtype: int, rdata: bytes) -> None:
    """Raises BadRecord where octets are not well-formed rdata of the type (names uncompressed)."""
    _kind(rtype).show(bounded(rdata))


def canonical_rdata(rtype: int, rdata: bytes) -> bytes:
    """Identity of a record: names lowered for the types of RFC 4034 section 6.2, as RFC 6840
    section 5.1 corrects it. Equal results are duplicates (RFC 2181 section 5)."""
    names_at = _NAMES_AT.get(rtype)
    if names_at is None:
        return rdata
    start, stop = names_at(rdata)
    return rdata[:start] + rdata[start:stop].lower() + rdata[stop:]


def target_name(rtype: int, rdata: bytes) -> Name | None:
    """The name a record leads to, for chains and additional data; None where its type has none."""
    start = _TARGET_AT.get(rtype)
    if start is None:
        return None
    try:
        return Name(rdata[start : f.name_end(rdata, start)])
    except BadRecord:
        return None


def compressible(rtype: int) -> tuple[int, int] | None:
    """Offset of the first name and how many follow each other, for the types whose names may be
    compressed in answers (RFC 3597 section 4)."""
    return _COMPRESSIBLE.get(rtype)


_TARGET_AT = {
    record_types.NS: 0, record_types.CNAME: 0, record_types.DNAME: 0, record_types.PTR: 0,
    record_types.MX: 2, record_types.SRV: 6, record_types.SVCB: 2, record_types.HTTPS: 2,
}  # fmt: skip
_COMPRESSIBLE = {
    record_types.NS: (0, 1), record_types.CNAME: (0, 1), record_types.PTR: (0, 1),
    record_types.MX: (2, 1), record_types.SOA: (0, 2),
}  # fmt: skip


def _latin(text: str) -> str:
    """UTF-8 octets of a text, as one character each."""
    try:
        return text.encode("utf-8").decode("latin-1")
    except UnicodeEncodeError:
        raise BadRecord("the text holds half a surrogate pair") from None


def bounded(rdata: bytes) -> bytes:
    """The rdata itself. Raises BadRecord where it is too long for a record."""
    if len(rdata) > RDATA_MAX:
        raise BadRecord(f"{len(rdata)} octets of data; at most {RDATA_MAX}")
    return rdata


_TOKEN = re.compile(
    r'[\s()]+|(?P<word>"(?:[^"\\]|\\.)*+"|(?:[^\s"\\();]|\\.)++(?:(?<==)"(?:[^"\\]|\\.)*+")?)',
    re.ASCII | re.DOTALL,
)


# Numbers, addresses and names with a blank between them, as most are
_PLAIN_WORDS = re.compile(r"[0-9A-Za-z.:_-]+(?: [0-9A-Za-z.:_-]+)*+", re.ASCII)


def split(text: str) -> list[str]:
    """Words of one record. A semicolon must be quoted: there are no comments here. Raises
    BadRecord."""
    if _PLAIN_WORDS.fullmatch(text):
        return text.split(" ")
    if text[:1] == '"' and "\\" not in text and text.find('"', 1) == len(text) - 1:
        return [text]
    tokens = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadRecord(_WHY_NOT.get(text[at], f"{text[at]!r} cannot stand here"))
        if match.lastgroup:
            tokens.append(match[0])
        at = match.end()
    return tokens


_WHY_NOT = {
    ";": "a semicolon must stand in quotes, or as \\;",
    '"': "a quote is not closed",
    "\\": "a backslash at the end",
}


# ---------------------------------------------------------------- generic form, RFC 3597


def generic_text(rdata: bytes) -> str:
    """`\\# length hex`, which suits any type."""
    return f"\\# {len(rdata)} {rdata.hex().upper()}".rstrip()


def _from_generic(rtype: int, tokens: list[str]) -> bytes:
    if len(tokens) < 2:
        raise BadRecord("\\# wants a length and hexadecimal digits")
    size = f.number(tokens[1], RDATA_MAX)
    rdata = f.from_hex("".join(tokens[2:]))
    if len(rdata) != size:
        raise BadRecord(f"\\# announces {size} octets, {len(rdata)} are there")
    check_rdata(rtype, rdata)
    return rdata


# ---------------------------------------------------------------- kinds


class _Kind(NamedTuple):
    parse: Parse
    show: Show


def _of(*fields: f.Field, rule: Callable[[bytes], None] | None = None) -> _Kind:
    """A type that is a row of fields; `rule` checks what one field alone cannot."""
    shows = tuple(field.show for field in fields)

    def parse(tokens: list[str], origin: Name | None) -> bytes:
        words = iter(tokens)
        try:
            rdata = b"".join([field.parse(words, origin) for field in fields])
        except StopIteration:
            raise BadRecord(f"too few fields: {len(tokens)}") from None
        if (extra := next(words, None)) is not None:
            raise BadRecord(f"{extra!r} stands behind the last field")
        if rule is not None:
            rule(rdata)
        return rdata

    def show(rdata: bytes) -> str:
        at = 0
        shown = []
        for show_field in shows:
            text, at = show_field(rdata, at)
            if text:
                shown.append(text)
        if at != len(rdata):
            raise BadRecord(f"{len(rdata) - at} octets behind the last field")
        if rule is not None:
            rule(rdata)
        return " ".join(shown)

    return _Kind(parse, show)


def _check_digest(rdata: bytes) -> None:
    """Length of a DS digest by its type (RFC 4034, 4509, 6605, 9563); CDS may be 0 (RFC 8078)."""
    wanted = {1: 20, 2: 32, 3: 32, 4: 48, 5: 32, 6: 32}.get(rdata[3])
    if wanted is not None and len(rdata) - 4 != wanted:
        raise BadRecord(f"digest type {rdata[3]} has {wanted} octets, {len(rdata) - 4} are there")


def _check_fingerprint(rdata: bytes) -> None:
    """Length of an SSHFP fingerprint by its type (RFC 4255, 6594)."""
    wanted = {1: 20, 2: 32}.get(rdata[1])
    if wanted is not None and len(rdata) - 2 != wanted:
        raise BadRecord(
            f"fingerprint type {rdata[1]} has {wanted} octets, {len(rdata) - 2} are there"
        )


# ---- the frequent types are read by hand: a zone is made of them


def _parse_a(tokens: list[str], _origin: Name | None) -> bytes:
    (address,) = _exactly(tokens, 1)
    return f.ipv4(address)


def _parse_aaaa(tokens: list[str], _origin: Name | None) -> bytes:
    (address,) = _exactly(tokens, 1)
    return f.ipv6(address)


def _show_a(rdata: bytes) -> str:
    if len(rdata) != 4:
        raise BadRecord(f"4 octets wanted, {len(rdata)} are there")
    return "{}.{}.{}.{}".format(*rdata)


def _show_aaaa(rdata: bytes) -> str:
    return f.ipv6_text(rdata) if len(rdata) == 16 else _IPV6.show(rdata)


def _parse_name(tokens: list[str], origin: Name | None) -> bytes:
    (target,) = _exactly(tokens, 1)
    return f.name(target, origin)


def _show_name(rdata: bytes) -> str:
    text, at = f.NAME.show(rdata, 0)
    if at != len(rdata):
        raise BadRecord(f"{len(rdata) - at} octets behind the last field")
    return text


def _parse_mx(tokens: list[str], origin: Name | None) -> bytes:
    preference, exchange = _exactly(tokens, 2)
    return f.number(preference, 0xFFFF).to_bytes(2, "big") + f.name(exchange, origin)


def _parse_strings(tokens: list[str], _origin: Name | None) -> bytes:
    return f.strings(tokens)


def _exactly(tokens: list[str], count: int) -> list[str]:
    if len(tokens) != count:
        raise BadRecord(f"{count} fields are wanted, {len(tokens)} are there")
    return tokens


def _with(parse: Parse, kind: _Kind) -> _Kind:
    return _Kind(parse, kind.show)


_IPV6 = _of(f.IPV6)
_NAME = _Kind(_parse_name, _show_name)
_TEXT = _with(_parse_strings, _of(f.STRINGS))
_PREFERENCE = _with(_parse_mx, _of(f.U16, f.NAME))
_SIGNATURE = _of(f.TYPE, f.ALGORITHM, f.U8, f.U32, f.TIME, f.TIME, f.U16, f.NAME, f.BASE64)
_DIGEST = _of(f.U16, f.ALGORITHM, f.U8, f.HEX, rule=_check_digest)
_KEY = _of(f.U16, f.U8, f.ALGORITHM, f.BASE64)
_ASSOCIATION = _of(f.U8, f.U8, f.U8, f.HEX)
_TWO_NAMES = _of(f.NAME, f.NAME)
_SERVICE = _Kind(svcb.parse, svcb.show)

_ROWS: dict[str, _Kind] = {
    "A": _Kind(_parse_a, _show_a),
    "AAAA": _Kind(_parse_aaaa, _show_aaaa),
    "AFSDB": _PREFERENCE,
    "AVC": _TEXT,
    "BRID": _of(f.BASE64),
    "CAA": _of(f.U8, f.TAG, f.VALUE),
    "CDNSKEY": _KEY,
    "CDS": _DIGEST,
    "CERT": _of(f.CERT_TYPE, f.U16, f.ALGORITHM, f.BASE64),
    "CNAME": _NAME,
    "CSYNC": _of(f.U32, f.U16, f.TYPES),
    "DHCID": _of(f.BASE64),
    "DLV": _DIGEST,
    "DNAME": _NAME,
    "DNSKEY": _KEY,
    "DS": _DIGEST,
    "EID": _of(f.HEX),
    "EUI48": _of(f.EUI48),
    "EUI64": _of(f.EUI64),
    "GID": _of(f.U32),
    "HHIT": _of(f.BASE64),
    "HINFO": _of(f.STRING, f.STRING),
    "HTTPS": _SERVICE,
    "ISDN": _of(f.STRING, f.OPTIONAL_STRING),
    "KX": _PREFERENCE,
    "L32": _of(f.U16, f.IPV4),
    "L64": _of(f.U16, f.LOCATOR64),
    "LP": _PREFERENCE,
    "MB": _NAME,
    "MD": _NAME,
    "MF": _NAME,
    "MG": _NAME,
    "MINFO": _TWO_NAMES,
    "MR": _NAME,
    "MX": _PREFERENCE,
    "NAPTR": _of(f.U16, f.U16, f.STRING, f.STRING, f.STRING, f.NAME),
    "NID": _of(f.U16, f.LOCATOR64),
    "NIMLOC": _of(f.HEX),
    "NINFO": _TEXT,
    "NS": _NAME,
    "NSAP-PTR": _NAME,
    "NSEC": _of(f.NAME, f.TYPES),
    "NSEC3": _of(f.U8, f.U8, f.U16, f.SALT, f.HASH, f.TYPES),
    "NSEC3PARAM": _of(f.U8, f.U8, f.U16, f.SALT),
    "OPENPGPKEY": _of(f.BASE64),
    "PTR": _NAME,
    "PX": _of(f.U16, f.NAME, f.NAME),
    "RESINFO": _TEXT,
    "RKEY": _KEY,
    "RP": _TWO_NAMES,
    "RRSIG": _SIGNATURE,
    "RT": _PREFERENCE,
    "SIG": _SIGNATURE,
    "SMIMEA": _ASSOCIATION,
    "SOA": _of(f.NAME, f.NAME, f.U32, f.SECONDS, f.SECONDS, f.SECONDS, f.SECONDS),
    "SPF": _TEXT,
    "SRV": _of(f.U16, f.U16, f.U16, f.NAME),
    "SSHFP": _of(f.U8, f.U8, f.HEX, rule=_check_fingerprint),
    "SVCB": _SERVICE,
    "TA": _DIGEST,
    "TALINK": _TWO_NAMES,
    "TLSA": _ASSOCIATION,
    "TXT": _TEXT,
    "UID": _of(f.U32),
    "UINFO": _of(f.STRING),
    "URI": _of(f.U16, f.U16, f.URI_TARGET),
    "WALLET": _TEXT,
    "X25": _of(f.STRING),
    "ZONEMD": _of(f.U32, f.U8, f.U8, f.HEX),
}
_KINDS = {type_from_text(mnemonic): kind for mnemonic, kind in _ROWS.items()}


def _one_name(text: str) -> bytes:
    if not _PLAIN_NAME.fullmatch(text):
        raise BadRecord("to be looked at more closely")
    return f.name(text, None)


_PLAIN_NAME = re.compile(r"[0-9A-Za-z._-]+", re.ASCII)
_ONE_WORD_TYPES: dict[int, Callable[[str], bytes]] = {
    record_types.A: f.ipv4,
    record_types.AAAA: f.ipv6,
    record_types.CNAME: _one_name,
    record_types.NS: _one_name,
    record_types.PTR: _one_name,
}
"""The types of most records, read without taking the text to words first."""


def parser_of(rtype: int) -> Parse:
    """The reader of a type's words. It raises BadRecord and BadName."""
    return _kind(rtype).parse


def _kind(rtype: int) -> _Kind:
    return _KINDS.get(rtype) or _Kind(partial(_parse_unnamed, rtype), generic_text)


def _parse_unnamed(rtype: int, _tokens: list[str], _origin: Name | None) -> bytes:
    raise BadRecord(f"{type_to_text(rtype)} has no text form here; write \\# length hex")


# ---- rare types are dnspython's. It is imported late because it is slow to load

_LOC = type_from_text("LOC")


def _check_place(rdata: bytes) -> None:
    """RFC 1876 section 2: dnspython bounds the degrees, and takes 90 degrees 1 minute."""
    for at, degrees in ((4, 90), (8, 180)):
        if abs(int.from_bytes(rdata[at : at + 4], "big") - 2**31) > degrees * 3_600_000:
            raise BadRecord(f"a {'latitude' if at == 4 else 'longitude'} above {degrees} degrees")


def _parse_rare(rtype: int, tokens: list[str], origin: Name | None) -> bytes:
    import dns.name
    import dns.rdata
    from dns.rdataclass import IN
    from dns.rdatatype import RdataType

    where = dns.name.from_wire(origin, 0)[0] if origin is not None else dns.name.root
    try:
        text = " ".join(tokens)
        wire = dns.rdata.from_text(IN, RdataType(rtype), text, where, relativize=False).to_wire()
    except Exception as error:  # beside DNSException it lets errors of its helpers through
        raise BadRecord(str(error) or type(error).__name__) from None
    assert wire is not None
    if rtype == _LOC:
        _check_place(wire)
    return wire


def _show_rare(rtype: int, rdata: bytes) -> str:
    import dns.rdata
    from dns.rdataclass import IN
    from dns.rdatatype import RdataType

    try:
        text = dns.rdata.from_wire(IN, RdataType(rtype), rdata, 0, len(rdata)).to_text()
    except Exception as error:
        raise BadRecord(str(error) or type(error).__name__) from None
    if _parse_rare(rtype, split(text), None) != rdata:
        raise BadRecord("the data does not survive being written as text")
    return text


_RARE = ("AMTRELAY", "APL", "DSYNC", "GPOS", "HIP", "IPSECKEY", "KEY", "LOC", "NSAP", "WKS")
_KINDS |= {
    rtype: _Kind(partial(_parse_rare, rtype), partial(_show_rare, rtype))
    for rtype in map(type_from_text, _RARE)
}


# ---------------------------------------------------------------- where names are

_Where = Callable[[bytes], tuple[int, int]]


def _from(start: int, *, behind: int = 0) -> _Where:
    """Names from an offset up to so many octets behind them."""
    return lambda rdata: (start, len(rdata) - behind)


def _naptr_name(rdata: bytes) -> tuple[int, int]:
    at = 4
    for _ in range(3):
        at += 1 + (rdata[at] if at < len(rdata) else 0)
    return at, len(rdata)


def _signer_name(rdata: bytes) -> tuple[int, int]:
    try:
        return 18, f.name_end(rdata, 18)
    except BadRecord:
        return 18, 18


_NAMES_AT: dict[int, _Where] = {
    type_from_text(mnemonic): where
    for where, mnemonics in (
        (_from(0), "NS MD MF CNAME MB MG MR PTR MINFO RP DNAME"),
        (_from(0, behind=20), "SOA"),
        (_from(2), "MX AFSDB RT PX KX"),
        (_from(6), "SRV"),
        (_naptr_name, "NAPTR"),
        (_signer_name, "SIG RRSIG"),
    )
    for mnemonic in mnemonics.split()
}
