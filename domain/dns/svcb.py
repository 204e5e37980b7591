"""Parameters of SVCB and HTTPS records (RFC 9460).

In AliasMode (priority 0) parameters should not be there and are ignored by clients (section 2.4.2):
their keys are kept in order, their values are not looked into. Keys without a name here are
written `key12345`, and so are those that a current BIND or NSD does not know by name.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from kudurru.domain.dns import names, rdata_fields
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.rdata_fields import octets, quoted
from kudurru.domain.dns.record_types import BadRecord

MANDATORY = 0
ALPN = 1
NO_DEFAULT_ALPN = 2
_INVALID_KEY = 65535


def parse(tokens: list[str], origin: Name | None) -> bytes:
    """Rdata of `priority target [key[=value] ...]`."""
    if len(tokens) < 2:
        raise BadRecord("a priority and a target are wanted")
    priority = rdata_fields.number(tokens[0], 0xFFFF)
    target = rdata_fields.name(tokens[1], origin)
    values: dict[int, bytes] = {}
    for token in tokens[2:]:
        word, _, text = token.partition("=")
        key = _key_from_text(word)
        if key in values:
            raise BadRecord(f"parameter {word} is there twice")
        values[key] = _value_from_text(word, key, text, is_alias=priority == 0)
    if priority:
        _check_together(values)
    parts = [priority.to_bytes(2, "big"), target]
    for key in sorted(values):
        parts += [key.to_bytes(2, "big"), len(values[key]).to_bytes(2, "big"), values[key]]
    return b"".join(parts)


def show(rdata: bytes) -> str:
    """Canonical text. Raises BadRecord where the rdata is malformed."""
    priority = int.from_bytes(rdata_fields.take(rdata, 0, 2), "big")
    end = rdata_fields.name_end(rdata, 2)
    values = _values_from_wire(rdata, end)
    words = [str(priority), names.to_text(rdata[2:end])]
    for key, value in values.items():
        try:
            _param(key).check(value)
            words.append(_word(_param(key).name, _param(key).show(value)))
        except BadRecord:
            if priority:
                raise
            words.append(_word(f"key{key}", quoted(value)))
    if priority:
        _check_together(values)
    return " ".join(words)


def _word(name: str, value: str) -> str:
    return name if value in ("", '""') else f"{name}={value}"


def _values_from_wire(rdata: bytes, at: int) -> dict[int, bytes]:
    values: dict[int, bytes] = {}
    previous = -1
    while at < len(rdata):
        key = int.from_bytes(rdata_fields.take(rdata, at, 2), "big")
        size = int.from_bytes(rdata_fields.take(rdata, at + 2, 2), "big")
        if key <= previous or key == _INVALID_KEY:
            raise BadRecord(f"parameter {key} is out of order, there twice, or reserved")
        values[key] = rdata_fields.take(rdata, at + 4, size)
        previous = key
        at += 4 + size
    return values


def _check_together(values: dict[int, bytes]) -> None:
    """Self-consistency of a ServiceMode record (RFC 9460 sections 2.4.3, 7.1.1 and 8)."""
    listed = values.get(MANDATORY, b"")
    for i in range(0, len(listed), 2):
        key = int.from_bytes(listed[i : i + 2], "big")
        if key not in values:
            raise BadRecord(f"mandatory lists {_param(key).name}, which is not there")
    if NO_DEFAULT_ALPN in values and ALPN not in values:
        raise BadRecord("no-default-alpn without alpn")


# ---------------------------------------------------------------- values

_KEY = re.compile(r"key(0|[1-9][0-9]{0,4})", re.I | re.A)


def _key_from_text(word: str) -> int:
    known = _KEYS.get(word.lower())
    if known is not None:
        return known
    match = _KEY.fullmatch(word)
    if match is None or int(match[1]) >= _INVALID_KEY:
        raise BadRecord(f"unknown parameter {word!r}; write key12345 for one without a name")
    return int(match[1])


def _value_from_text(word: str, key: int, text: str, *, is_alias: bool) -> bytes:
    param = _param(key)
    value = octets(text)
    if len(value) > 0xFFFF:
        raise BadRecord(f"the value of {word} is longer than 65535 octets")
    is_generic = _KEYS.get(word.lower()) is None
    try:
        if not is_generic and (value or not is_alias):
            value = param.parse(value)
        if not is_alias:
            param.check(value)
    except BadRecord as error:
        raise BadRecord(f"{word}: {error}") from None
    return value


class _Param(NamedTuple):
    """A parameter: its value from text octets, its value as text, and what it may be."""

    name: str
    parse: Callable[[bytes], bytes]
    show: Callable[[bytes], str]
    check: Callable[[bytes], None]


def _param(key: int) -> _Param:
    return _PARAMS.get(key) or _Param(f"key{key}", bytes, quoted, _anything)


def _anything(_value: bytes) -> None:
    return


def _nothing(value: bytes) -> None:
    if value:
        raise BadRecord("no value is allowed")


def _text(value: bytes) -> str:
    """Text of a list or number value: ASCII, or it is wrong anyway."""
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        raise BadRecord(f"{value!r} is not ASCII") from None


def _whole(size: int) -> Callable[[bytes], None]:
    def check(value: bytes) -> None:
        if not value or len(value) % size:
            raise BadRecord(f"{len(value)} octets; one or more of {size} are wanted")

    return check


# ---- lists of strings: RFC 9460 appendix A.1

_ITEM = re.compile(rb"((?:[^\\,]|\\.)*+)(,|$)", re.DOTALL)
_ITEM_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def _parse_items(value: bytes) -> bytes:
    """A comma-separated list, `\\,` and `\\\\` in its items, to counted strings."""
    if not value:
        return b""
    parts = []
    at = 0
    while True:
        match = _ITEM.match(value, at)
        if match is None:
            raise BadRecord("a backslash at the end of the list")
        parts.append(rdata_fields.counted(_ITEM_ESCAPE.sub(rb"\1", match[1])))
        at = match.end()
        if not match[2]:
            return b"".join(parts)


def _items(value: bytes) -> list[bytes]:
    found = []
    at = 0
    while at < len(value):
        item = rdata_fields.take_counted(value, at)
        if not item:
            raise BadRecord("an empty item in the list")
        found.append(item)
        at += 1 + len(item)
    return found


def _show_items(value: bytes) -> str:
    escaped = [re.sub(rb"[\\,]", rb"\\\g<0>", item) for item in _items(value)]
    return quoted(b",".join(escaped))


def _check_items(value: bytes) -> None:
    _items(value)


def _check_alpn(value: bytes) -> None:
    if not _items(value):
        raise BadRecord("a list of protocols is wanted")


# ---- the others


def _parse_mandatory(value: bytes) -> bytes:
    keys = [_key_from_text(word) for word in _text(value).split(",")]
    return b"".join([key.to_bytes(2, "big") for key in sorted(keys)])


def _keys_of(value: bytes) -> list[int]:
    _whole(2)(value)
    return [int.from_bytes(value[i : i + 2], "big") for i in range(0, len(value), 2)]


def _check_mandatory(value: bytes) -> None:
    """RFC 9460 section 8: ascending, no key twice, not itself."""
    keys = _keys_of(value)
    if MANDATORY in keys:
        raise BadRecord("it must not list itself")
    if any(low >= high for low, high in pairwise(keys)):
        raise BadRecord("a key is listed twice or out of order")


def _show_mandatory(value: bytes) -> str:
    return ",".join([_param(key).name for key in _keys_of(value)])


def _parse_port(value: bytes) -> bytes:
    return rdata_fields.number(_text(value), 0xFFFF).to_bytes(2, "big")


def _check_port(value: bytes) -> None:
    if len(value) != 2:
        raise BadRecord("a port is wanted")


def _parse_hints(parse_one: Callable[[str], bytes]) -> Callable[[bytes], bytes]:
    return lambda value: b"".join([parse_one(text) for text in _text(value).split(",")])


def _show_ipv4(value: bytes) -> str:
    return ",".join([".".join(map(str, value[i : i + 4])) for i in range(0, len(value), 4)])


def _show_ipv6(value: bytes) -> str:
    return ",".join([rdata_fields.ipv6_text(value[i : i + 16]) for i in range(0, len(value), 16)])


_DNS_VARIABLE = re.compile(r"\{[^{}]*\bdns\b[^{}]*\}")


def _check_dohpath(value: bytes) -> None:
    """RFC 9461 section 5: a relative URI template in UTF-8 with the variable `dns`."""
    try:
        template = value.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRecord("not UTF-8") from None
    if not template.startswith("/") or not _DNS_VARIABLE.search(template):
        raise BadRecord("a path with the variable dns is wanted, like /dns-query{?dns}")


def _parse_groups(value: bytes) -> bytes:
    groups = [rdata_fields.number(word, 0xFFFF) for word in _text(value).split(",")]
    return b"".join([group.to_bytes(2, "big") for group in groups])


def _check_groups(value: bytes) -> None:
    groups = _keys_of(value)
    if len(set(groups)) != len(groups):
        raise BadRecord("a group is listed twice")


def _parse_shares(value: bytes) -> bytes:
    """Transports with percentages, `do53:100,dot:10`, as counted name and one octet each."""
    parts = []
    for word in _text(value).split(","):
        transport, _, share = word.partition(":")
        parts.append(rdata_fields.counted(transport.encode("ascii")))
        parts.append(rdata_fields.number(share, 100).to_bytes(1, "big"))
    return b"".join(parts)


def _check_shares(value: bytes) -> None:
    seen: set[bytes] = set()
    at = 0
    while at < len(value) or not seen:
        transport = rdata_fields.take_counted(value, at)
        at += 1 + len(transport)
        if not transport or transport in seen or rdata_fields.take(value, at, 1)[0] > 100:
            raise BadRecord("a transport is empty, listed twice, or over 100 percent")
        seen.add(transport)
        at += 1


# IANA registry "Service Parameter Keys (SvcParamKeys)". Names that RFC 9460 and 9461 brought are
# shown; later ones are read but shown as keyNNN, which every server loads.
_PARAMS = {
    MANDATORY: _Param("mandatory", _parse_mandatory, _show_mandatory, _check_mandatory),
    ALPN: _Param("alpn", _parse_items, _show_items, _check_alpn),
    NO_DEFAULT_ALPN: _Param("no-default-alpn", bytes, quoted, _nothing),
    3: _Param("port", _parse_port, lambda value: str(value[0] << 8 | value[1]), _check_port),
    4: _Param("ipv4hint", _parse_hints(rdata_fields.ipv4), _show_ipv4, _whole(4)),
    5: _Param(
        "ech",
        lambda value: rdata_fields.from_base64(_text(value)),
        rdata_fields.to_base64,
        _whole(1),
    ),
    6: _Param("ipv6hint", _parse_hints(rdata_fields.ipv6), _show_ipv6, _whole(16)),
    7: _Param("dohpath", bytes, quoted, _check_dohpath),
    8: _Param("key8", bytes, quoted, _nothing),
    9: _Param("key9", _parse_groups, quoted, _check_groups),
    10: _Param("key10", _parse_items, quoted, _check_items),
    11: _Param("key11", bytes, quoted, _nothing),
    12: _Param("key12", _parse_shares, quoted, _check_shares),
}
_KEYS = {param.name: key for key, param in _PARAMS.items() if not param.name.startswith("key")}
_KEYS |= {"ohttp": 8, "tls-supported-groups": 9, "docpath": 10, "pvd": 11, "oots": 12}
_KEYS |= {"echconfig": 5}  # the name of drafts, still found in zones
