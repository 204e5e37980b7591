"""Settings: from what people write to the value that a key's type takes, and back."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from kudurru.domain.dns.names import from_text
from kudurru.domain.dns.upstreams import check_host, parse_entry
from kudurru.domain.documents import Document, quoting_hint
from kudurru.domain.errors import Cause
from kudurru.domain.notation import (
    Network,
    SocketAddress,
    duration_text,
    parse_duration,
    parse_network,
    parse_size,
    parse_socket_address,
    size_text,
)
from kudurru.domain.settings import Bytes, Domain, Key, SecretFile, Upstream

LayerName = Literal[
    "default", "node file", "settings file", "log", "memory", "environment", "command line"
]
"""In order: a later one wins."""


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from."""

    layer: LayerName
    place: str = ""  # "node.yaml:3", "KUDURRU__LOG__LEVEL", "--dns"

    def __str__(self) -> str:
        return f"{self.layer} {self.place}" if self.place else self.layer


class Given(msgspec.Struct, frozen=True):
    """A value that a layer gives to a key, not read yet."""

    key: Key
    raw: Any  # builtins
    origin: Origin
    document: Document | None = None  # where it stands, for the lines of its parts

    def fault(self, path: str, message: str) -> Cause:
        return Cause(
            path, message, self.document.place(path) if self.document else self.origin.place
        )


def _secret_file(text: str) -> str:
    if "-----BEGIN" in text:
        raise ValueError("a key or certificate is not written here; write file:/path")
    return text.removeprefix("file:")


def _domain(text: str) -> str:
    from_text(text)
    return text


def _upstream(text: str) -> str:
    check_host(parse_entry(text).address)
    return text


_TEXTS: Mapping[Any, tuple[Callable[[str], Any], str]] = {
    str: (str, "text"),
    timedelta: (parse_duration, "a duration such as 30s"),
    Bytes: (parse_size, "a size such as 64 MiB"),
    SocketAddress: (parse_socket_address, "an address such as 127.0.0.1:5300"),
    Network: (parse_network, "a network such as 192.0.2.0/24"),
    SecretFile: (_secret_file, "file:/path"),
    Domain: (_domain, "a domain name"),
    Upstream: (_upstream, "an upstream such as tls://dns.example"),
}
"""Types that are written as text: how each is read, and its name in faults."""


def _ms_text(value: int) -> str:
    return duration_text(timedelta(milliseconds=value))


def read_value(given: Given, faults: list[Cause]) -> Any:
    """The value as its key's type has it. Faults are added, and then the result is of no use."""
    return _Reading(given, faults).read(given.key.type, given.raw, given.key.path)


class _Reading:
    def __init__(self, given: Given, faults: list[Cause]) -> None:
        self.given = given
        self.faults = faults

    def read(self, kind: Any, raw: Any, path: str) -> Any:
        origin = get_origin(kind)
        if kind is Bytes and type(raw) is int:
            return self.number(raw, path)
        if kind in _TEXTS:
            return self.text(kind, raw, path)
        if kind is int:
            return self.number(raw, path)
        if kind is bool:
            return raw if isinstance(raw, bool) else self.wanted("true or false", raw, path)
        if origin is Literal:
            return self.choice(get_args(kind), raw, path)
        if origin is tuple:
            return self.items(get_args(kind)[0], raw, path)
        if origin is Mapping:
            return self.entries(get_args(kind), raw, path)
        if origin in (Union, UnionType):
            return self.either(get_args(kind), raw, path)
        return self.struct(kind, raw, path)

    def text(self, kind: Any, raw: Any, path: str) -> Any:
        parse, words = _TEXTS[kind]
        if kind is timedelta and type(raw) is int and raw == 0:
            raw = "0"  # it is the same in every unit
        if not isinstance(raw, str):
            return self.wanted(words, raw, path)
        try:
            value = parse(raw)
        except ValueError as error:
            return self.fault(path, str(error))
        if kind is Bytes:
            return self.bounded(value, path, size_text)
        if kind is timedelta:
            self.bounded(value // timedelta(milliseconds=1), path, _ms_text)
        return value

    def number(self, raw: Any, path: str) -> Any:
        if not isinstance(raw, int) or isinstance(raw, bool):
            return self.wanted("a number", raw, path)
        return self.bounded(raw, path, str)

    def bounded(self, value: int, path: str, text: Callable[[int], str]) -> Any:
        marks = self.given.key.marks
        if marks.low is not None and value < marks.low:
            return self.fault(path, f"{text(value)} is below {text(marks.low)}, the least")
        if marks.high is not None and value > marks.high:
            return self.fault(path, f"{text(value)} is above {text(marks.high)}, the most")
        return value

    def choice(self, choices: Sequence[str], raw: Any, path: str) -> Any:
        if raw in choices and isinstance(raw, str):
            return raw
        got = repr(raw) if isinstance(raw, str) else kind_of(raw)
        return self.fault(path, f"one of {', '.join(choices)} is wanted, not {got}")

    def items(self, kind: Any, raw: Any, path: str) -> Any:
        if not isinstance(raw, list):
            return self.wanted("a list", raw, path)
        return tuple(self.read(kind, item, f"{path}[{i}]") for i, item in enumerate(raw))

    def entries(self, kinds: Sequence[Any], raw: Any, path: str) -> Any:
        if not isinstance(raw, dict):
            return self.wanted("a map", raw, path)
        read: dict[Any, Any] = {}
        for name, value in raw.items():
            at = f"{path}.{name}"
            if kinds[0] is int:
                read[self.level(name, at)] = self.level_number(value, at)
            else:
                read[self.text(kinds[0], name, at)] = self.read(kinds[1], value, at)
        return read

    def level(self, name: str, path: str) -> Any:
        if not re.fullmatch("[0-9]{1,3}", name):
            return self.fault(path, "the name of this entry is a prefix length, such as 24")
        return self.number(int(name), path)

    def level_number(self, value: Any, path: str) -> Any:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            return self.wanted("a number from 0", value, path)
        return value

    def either(self, kinds: Sequence[Any], raw: Any, path: str) -> Any:
        """`X | None`, where none is written `off`, or a word or a list."""
        if NoneType in kinds:
            return None if raw is False or raw == "off" else self.read(kinds[0], raw, path)
        words = next(kind for kind in kinds if get_origin(kind) is Literal)
        lists = next(kind for kind in kinds if get_origin(kind) is tuple)
        if isinstance(raw, list):
            return self.read(lists, raw, path)
        if raw in get_args(words) and isinstance(raw, str):
            return raw
        return self.wanted(f"{', '.join(get_args(words))} or a list", raw, path)

    def struct(self, kind: type[msgspec.Struct], raw: Any, path: str) -> Any:
        if not isinstance(raw, dict):
            return self.wanted("a map", raw, path)
        hints = get_type_hints(kind)
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        for name in sorted(raw.keys() - fields.keys()):
            self.fault(f"{path}.{name}", f"no such field; there are {', '.join(fields)}")
        missing = [name for name, field in fields.items() if field.required and name not in raw]
        for name in missing:
            self.fault(path, f"{name} is missing")
        values = {
            field.name: self.read(hints[field.name], raw[name], f"{path}.{name}")
            for name, field in fields.items()
            if name in raw
        }
        return None if missing else kind(**values)

    def wanted(self, words: str, raw: Any, path: str) -> None:
        document = self.given.document
        source = document.text_of(path) if document else None
        hint = f"; {quoting_hint(source)}" if words == "text" and source is not None else ""
        self.fault(path, f"{words} is wanted, not {kind_of(raw)}{hint}")

    def fault(self, path: str, message: str) -> None:
        self.faults.append(self.given.fault(path, message))


def kind_of(raw: Any) -> str:
    """What was given instead, for a fault."""
    match raw:
        case None:
            return "nothing"
        case bool():
            return "true" if raw else "false"
        case int():
            return f"the number {raw}"
        case str():
            return f"the text {raw[:60]!r}"
        case list():
            return "a list"
        case _:
            return "a map"


def shown(kind: Any, value: Any) -> Any:
    """A value as builtins, as a file gives it."""
    if kind is Bytes:
        return size_text(value)
    if kind is SecretFile:
        return f"file:{value}" if value else ""
    match value:
        case None:
            return "off"
        case timedelta():
            return duration_text(value)
        case tuple():
            return [shown(type(item), item) for item in value]
        case dict():
            return {str(name): shown(type(item), item) for name, item in value.items()}
        case msgspec.Struct() if not isinstance(value, SocketAddress):
            fields = msgspec.structs.fields(value)
            pairs = [(f.encode_name, getattr(value, f.name)) for f in fields]
            return {name: shown(type(item), item) for name, item in pairs if item != ()}
        case bool() | int() | str():
            return value
        case _:
            return str(value)
