"""Settings for people and editors: JSON Schema and the reference page, from the table."""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from kudurru.domain.notation import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    Network,
    SocketAddress,
    duration_text,
    size_text,
)
from kudurru.domain.settings import KEYS, SECTIONS, Bytes, Domain, Key, SecretFile, Upstream
from kudurru.domain.settings_values import shown

_ADDRESS_PATTERN = r"(?:[0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"

_TEXT_SCHEMAS: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    timedelta: {
        "anyOf": [{"enum": [0]}, {"type": "string", "pattern": f"^{DURATION_PATTERN}$"}],
    },
    SocketAddress: {"type": "string", "pattern": f"^{_ADDRESS_PATTERN}$"},
    Network: {"type": "string", "pattern": "^[0-9A-Fa-f:.]+(?:/[0-9]{1,3})?$"},
    # Without a pattern: who checks one shows what does not match, and that may be the secret.
    SecretFile: {"type": "string"},
    Domain: {"type": "string"},
    Upstream: {"type": "string", "pattern": r"^\S+$"},
}

_TEXT_NAMES: Mapping[Any, str] = {
    str: "text",
    bool: "boolean",
    int: "number",
    timedelta: "duration",
    Bytes: "size",
    SocketAddress: "address:port",
    Network: "network",
    SecretFile: "file:/path",
    Domain: "domain",
    Upstream: "upstream",
}


def settings_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a settings file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kudurru settings",
        **settings_object("#"),
    }


def settings_object(place: str) -> dict[str, Any]:
    """The part of a schema, of draft 7 or later, that stands at a place in it and describes a
    settings file. Keys may be nested or flat, and flat in any part of their path; what is flat
    refers to what is nested."""
    return _section("", place) | {"type": "object"}


def _section(prefix: str, root: str) -> dict[str, Any]:
    """What may stand below a prefix that ends in a dot, or at the top. A section may be empty, as
    when all its keys are commented out."""
    properties, entries = {}, {}
    for path in sorted(SECTIONS | KEYS.keys()):
        if not path.startswith(prefix):
            continue
        name = path.removeprefix(prefix)
        properties[name] = {"$ref": _place(path, root)} if "." in name else _nested(path, root)
        if path in KEYS and KEYS[path].is_map:
            entry = _type_schema(get_args(KEYS[path].type)[1], KEYS[path])
            entries[f"^{re.escape(name)}\\."] = entry
    found = _object(properties) | {"type": ["object", "null"]}
    return found | {"patternProperties": entries} if entries else found


def _nested(path: str, root: str) -> dict[str, Any]:
    if path not in SECTIONS:
        return key_schema(KEYS[path])
    section = _section(f"{path}.", root)
    if path not in KEYS:
        return section
    # `listeners`: the list, or a map of the keys beside it
    key = key_schema(KEYS[path])
    return {"description": KEYS[path].marks.doc, "anyOf": [key, section | {"type": "object"}]}


def _place(path: str, root: str) -> str:
    """Where a key or section is that is nested all through, as a JSON pointer."""
    found, above = root, ""
    for name in path.split("."):
        choice = "/anyOf/1" if above in KEYS else ""
        found += f"{choice}/properties/{name}"
        above = f"{above}.{name}" if above else name
    return found


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def key_schema(key: Key) -> dict[str, Any]:
    marks = key.marks
    return {
        "description": marks.doc,
        **_type_schema(key.type, key),
        "default": shown(key.type, key.default),
        "x-kudurru-scope": marks.scope,
        "x-kudurru-restart": marks.restart,
    }


def _type_schema(kind: Any, key: Key) -> dict[str, Any]:
    origin, inner = get_origin(kind), get_args(kind)
    bounds = {"minimum": key.marks.low, "maximum": key.marks.high}
    bounds = {name: b for name, b in bounds.items() if b is not None and not key.is_map}
    if kind is Bytes:
        return {
            "anyOf": [
                {"type": "integer", **bounds},
                {"type": "string", "pattern": f"^(?:{SIZE_PATTERN})$"},
            ]
        }
    if kind in _TEXT_SCHEMAS:
        return dict(_TEXT_SCHEMAS[kind])
    if kind is bool:
        return {"type": "boolean"}
    if kind is int:
        return {"type": "integer", **bounds}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple:
        return {"type": "array", "items": _type_schema(inner[0], key)}
    if origin is Mapping and inner[0] is int:  # the bounds are those of the entries' names
        levels = {"^[0-9]{1,3}$": {"type": "integer"}}
        return {"type": "object", "additionalProperties": False, "patternProperties": levels}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _type_schema(inner[1], key)}
    if origin in (Union, UnionType):
        options = [
            {"enum": ["off", False]} if one is NoneType else _type_schema(one, key) for one in inner
        ]
        return {"anyOf": options}
    return _struct_schema(kind, key)


def _struct_schema(kind: type[msgspec.Struct], key: Key) -> dict[str, Any]:
    hints = get_type_hints(kind)
    fields = msgspec.structs.fields(kind)
    schema = _object({f.encode_name: _type_schema(hints[f.name], key) for f in fields})
    return schema | {"required": [f.encode_name for f in fields if f.required]}


_HEAD = """\
# Settings

Made from the table in `domain/settings.py` by `just schemas`; do not edit.

Later layers win: defaults, the node file or folder (`--config`), the settings file
(`settingsFile`, cluster keys only), the environment (`KUDURRU__CACHE__MAXENTRIES=5`: two
underscores between the parts, any letter case), flags of the command line. Maps are merged entry
by entry. `kudurru config show` prints every value and where it came from; `kudurru config validate`
names every fault at once.

Keys may be nested or written flat (`cache.maxEntries: 5`). Durations are `30s`, `1h30m`, `1800ms`,
`400d` or `0`; sizes `64 MiB` or a number of bytes; keys and certificates are paths, `file:/path`.
A *cluster* key means the same on every node; a *node* key is one node's own. Keys marked *restart*
take effect when the process starts, the others at once.
"""


def settings_reference() -> str:
    """The page `docs/reference/settings.md`."""
    lines = [_HEAD]
    section = None
    for key in KEYS.values():
        top = key.path.partition(".")[0]
        if top != section:
            section = top
            lines += [f"\n## {top}\n", "| key | value | default | scope | takes effect |   |"]
            lines.append("|---|---|---|---|---|---|")
        lines.append("| " + " | ".join(_cells(key)) + " |")
    return "\n".join(lines) + "\n"


def _cells(key: Key) -> list[str]:
    marks = key.marks
    default = msgspec.json.encode(shown(key.type, key.default)).decode().strip('"')
    bounds = _bounds_text(key)
    return [
        f"`{key.path}`",
        (_type_name(key.type) + (f", {bounds}" if bounds else "")).replace("|", "\\|"),
        f"`{default}`" if default else "",
        marks.scope + (", host only" if marks.host_only else ""),
        "restart" if marks.restart else "at once",
        marks.doc,
    ]


def _ms_text(value: int) -> str:
    return duration_text(timedelta(milliseconds=value))


_BOUND_TEXTS: Mapping[Any, Callable[[int], str]] = {Bytes: size_text, timedelta: _ms_text}


def _bounds_text(key: Key) -> str:
    low, high = key.marks.low, key.marks.high
    if low is None:
        return ""
    text = _BOUND_TEXTS.get(key.type, str)
    what = "prefix " if key.is_map else ""
    return what + (f"{text(low)} to {text(high)}" if high is not None else f"from {text(low)}")


def _type_name(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _TEXT_NAMES:
        return _TEXT_NAMES[kind]
    if origin is Literal:
        return " | ".join(inner)
    if origin is tuple:
        return f"list of {_type_name(inner[0])}"
    if origin is Mapping:
        return f"map of {_type_name(inner[0])} to {_type_name(inner[1])}"
    if origin in (Union, UnionType):
        return " | ".join("off" if one is NoneType else _type_name(one) for one in inner)
    names = (field.encode_name for field in msgspec.structs.fields(kind))
    return "{" + ", ".join(names) + "}"
