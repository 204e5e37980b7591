"""From what a person wrote to a manifest that cannot be wrong, or every fault at once.

msgspec stops at the first fault, and an afternoon of one fault at a time is what makes people hate
a tool. So the fast path converts whole, and only when that fails the slow path walks the value
beside its type and collects everything.
"""

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from kudurru.domain import codec
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.meta import (
    API_VERSION,
    NOT_UNICODE,
    OBJECT_BYTES_MAX,
    ObjectMeta,
    StrictSpec,
    metadata_faults,
)
from kudurru.domain.kinds.registry import KINDS, Kind
from kudurru.domain.objects import Key, key_of

CAUSES_MAX = 100
FOUND_MAX = 1_000
"""Faults of one kind that are looked for: a suggestion for each of a hundred thousand takes
seconds, and to hold rules against all of them hours."""

_T = TypeVar("_T")
_PARTS = ("apiVersion", "kind", "metadata", "spec", "status")

PLAIN_BYTES_MAX = 4096
"""Of a document that `plain_manifest` reads: far below every limit of a document."""

SourceText = Callable[[str], str | None]
"""Path of a scalar to its text in the document, where the document still knows it."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a caller wants to exist. Its parts are validated."""

    kind: Kind
    meta: ObjectMeta
    spec: StrictSpec

    @property
    def key(self) -> Key:
        return key_of(self.kind.name, self.meta.namespace, self.meta.name)


def parse_manifest(
    value: Any, *, what: str, default_namespace: str, source_text: SourceText | None = None
) -> Manifest:
    """A manifest from builtins, as a document reader gives them. `what` names the document.

    `status` is accepted and ignored, as `kubectl get -o yaml` writes it. Raises Invalid.
    """
    if not isinstance(value, dict):
        raise Invalid(what, [Cause("", "not an object: begin with apiVersion, kind, metadata")])
    causes = list(islice(_envelope_faults(value), FOUND_MAX))
    kind = KINDS.get(value["kind"]) if isinstance(value.get("kind"), str) else None
    meta, faulty = _convert(value.get("metadata", {}), ObjectMeta, "metadata", source_text)
    causes += faulty
    if isinstance(meta, ObjectMeta) and kind is not None:
        if kind.namespaced and not meta.namespace:
            meta = msgspec.structs.replace(meta, namespace=default_namespace)
        found = islice(metadata_faults(meta, namespaced=kind.namespaced), FOUND_MAX)
        causes += _elsewhere(found, faulty) if faulty else found
        what = f"{what}: {kind.name} {meta.name}"
    spec = None
    if kind is not None:
        spec, faulty = _convert(value.get("spec", {}), kind.spec, "spec", source_text)
        causes += faulty
        if spec is not None:
            found = islice(kind.faults(spec), FOUND_MAX)
            causes += _elsewhere(found, faulty) if faulty else found
    if causes or kind is None or meta is None or spec is None:
        raise Invalid(what, _bounded(causes))
    manifest = Manifest(kind=kind, meta=meta, spec=spec)
    causes = list(size_faults(manifest))
    if causes:
        raise Invalid(what, causes)
    return manifest


def plain_manifest(octets: bytes, kind: Kind, namespace: str, name: str) -> Manifest | None:
    """The manifest that `parse_manifest` makes of a JSON document, where that is as nearly all are:
    small, whole, without escapes and faults, and about the object of that name; it may leave the
    namespace out. None where it needs a closer look. It costs a tenth. The name is one that an
    object may have."""
    if len(octets) > PLAIN_BYTES_MAX or b"\\" in octets:
        return None
    try:
        found = _plain_decoder(kind.name)(octets)
    except msgspec.DecodeError:  # or ValidationError, which is one
        return None
    meta, spec = found.metadata, found.spec
    if (found.apiVersion, found.kind) != (API_VERSION, kind.name):
        return None
    if meta.name != name or meta.namespace not in ("", namespace):
        return None
    if meta.namespace != namespace:
        if b'"namespace"' in octets:
            return None  # it says that there is none
        meta = msgspec.structs.replace(meta, namespace=namespace)
    # A decoder takes the last of two keys that are the same. Then the text has more quotes than
    # what was read of it, of which no more is written than was there: defaults are left out. And
    # each quote begins or ends a text, as there are no escapes.
    if msgspec.json.encode(found).count(b'"') != octets.count(b'"'):
        return None
    if meta.labels or meta.annotations:
        for _ in metadata_faults(meta, namespaced=kind.namespaced):
            return None
    for _ in kind.faults(spec):
        return None
    return Manifest(kind=kind, meta=meta, spec=spec)


@cache  # one for each kind
def _plain_decoder(kind: str) -> Callable[[bytes], Any]:
    spec = KINDS[kind].spec
    fields = [("apiVersion", str), ("kind", str), ("metadata", ObjectMeta), ("spec", spec)]
    document = msgspec.defstruct("Document", fields, forbid_unknown_fields=True)
    return msgspec.json.Decoder(document).decode


def size_faults(manifest: Manifest) -> Iterator[Cause]:
    """Whether an object is larger than one may be, or cannot be written down."""
    try:
        size = len(codec.canonical(manifest.meta)) + len(codec.canonical(manifest.spec))
    except UnicodeEncodeError:
        yield Cause("", f"a text holds {NOT_UNICODE}")
        return
    if size > OBJECT_BYTES_MAX:
        yield Cause("", f"the object takes {size} bytes; at most {OBJECT_BYTES_MAX}")


def _bounded(causes: list[Cause]) -> list[Cause]:
    if len(causes) <= CAUSES_MAX:
        return causes
    more = "many" if len(causes) >= FOUND_MAX else len(causes) - CAUSES_MAX
    return [*causes[:CAUSES_MAX], Cause("", f"and {more} more")]


def _envelope_faults(value: dict[Any, Any]) -> Iterator[Cause]:
    for field in value:
        if field not in _PARTS:
            yield Cause(str(field), f"unknown field{_suggestion(str(field), _PARTS)}")
    version = value.get("apiVersion")
    if version != API_VERSION:
        given = "missing" if version is None else f"{version!r} is not known"
        yield Cause("apiVersion", f"{given}; write {API_VERSION}")
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        given = "missing" if kind is None else f"{kind!r} is not known"
        near = _suggestion(str(kind), tuple(KINDS))
        yield Cause("kind", f"{given}{near} (there are {', '.join(KINDS)})")
    if "metadata" not in value:
        yield Cause("metadata", "missing")


def _suggestion(word: str, known: tuple[str, ...]) -> str:
    lowered = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), lowered, n=1)
    if near:
        return f"; did you mean {lowered[near[0]]!r}?"
    return f"; there {'is' if len(known) == 1 else 'are'} {', '.join(known)}"


def _convert(
    value: Any, type_: type[_T], path: str, source_text: SourceText | None
) -> tuple[_T | None, list[Cause]]:
    """The value as its type, and what does not fit. Where something does not, the value is what is
    left without it, so that the rules of the rest are checked too; None when that is nothing."""
    try:
        return msgspec.convert(value, type_, strict=True), []
    except msgspec.ValidationError as error:
        faults = _faults(value, inspect.type_info(type_), path, source_text)
        causes = list(islice(faults, FOUND_MAX)) or [Cause(path, str(error))]
        if len(causes) == FOUND_MAX:
            return None, causes
        try:
            faulty = {cause.field for cause in causes}
            return msgspec.convert(_without(value, path, faulty), type_, strict=True), causes
        except msgspec.ValidationError:
            return None, causes


def _without(value: Any, path: str, faulty: set[str]) -> Any:
    """A copy in which faulty fields are left out, and faulty list entries are empty texts, so that
    the others keep their index."""
    if isinstance(value, dict):
        # A field is named after a dot, a key of a mapping in brackets: see `_faults`.
        return {
            name: _without(part, f"{path}.{name}", faulty)
            for name, part in value.items()
            if not faulty & {f"{path}.{name}", f"{path}[{name}]"}
        }
    if isinstance(value, list):
        inner = [(part, f"{path}[{i}]") for i, part in enumerate(value)]
        return ["" if at in faulty else _without(part, at, faulty) for part, at in inner]
    return value


def _elsewhere(causes: Iterable[Cause], faulty: list[Cause]) -> Iterator[Cause]:
    """Faults of places that are not known to be faulty already. A rule about a part of which
    something was left out cannot be judged either: it would name a fault that is none."""
    known = {cause.field for cause in faulty}
    for cause in causes:
        if not any(_is_within(cause.field, f) or _is_within(f, cause.field) for f in known):
            yield cause


def _is_within(path: str, part: str) -> bool:
    return path == part or path.startswith((part + ".", part + "["))


def _faults(
    value: Any, type_: inspect.Type, path: str, source_text: SourceText | None
) -> Iterator[Cause]:
    """Every place where a value does not fit its type."""
    match type_:
        case inspect.StructType(fields=fields):
            yield from _struct_faults(value, fields, path, source_text)
        case inspect.ListType(item_type=item):
            if not isinstance(value, list):
                yield Cause(path, f"expected a list, found {_found(value, path, source_text)}")
                return
            yield from _bound_faults(len(value), type_, path)
            for i, part in enumerate(value):
                yield from _faults(part, item, f"{path}[{i}]", source_text)
        case inspect.DictType(value_type=item):
            if not isinstance(value, dict):
                yield Cause(path, f"expected a mapping, found {_found(value, path, source_text)}")
                return
            for key, part in value.items():
                yield from _faults(part, item, f"{path}[{key}]", source_text)
        case inspect.UnionType(types=types):
            wanted = [t for t in types if not isinstance(t, inspect.NoneType)]
            if value is not None or len(wanted) == len(types):
                yield from _faults(value, wanted[0], path, source_text)
        case _:
            yield from _scalar_faults(value, type_, path, source_text)


def _struct_faults(
    value: Any, fields: tuple[inspect.Field, ...], path: str, source_text: SourceText | None
) -> Iterator[Cause]:
    if not isinstance(value, dict):
        yield Cause(path, f"expected a mapping, found {_found(value, path, source_text)}")
        return
    known = {field.encode_name: field for field in fields}
    for name, part in value.items():
        if name in known:
            yield from _faults(part, known[name].type, f"{path}.{name}", source_text)
        else:
            hint = _suggestion(str(name), tuple(known))
            yield Cause(f"{path}.{name}", f"unknown field{hint}")
    for name, field in known.items():
        if field.required and name not in value:
            yield Cause(f"{path}.{name}", "missing")


def _bound_faults(size: int, type_: Any, path: str) -> Iterator[Cause]:
    if type_.max_length is not None and size > type_.max_length:
        yield Cause(path, f"{size} entries; at most {type_.max_length}")
    if type_.min_length is not None and size < type_.min_length:
        yield Cause(path, f"{size} entries; at least {type_.min_length}")


def _scalar_faults(
    value: Any, type_: inspect.Type, path: str, source_text: SourceText | None
) -> Iterator[Cause]:
    match type_:
        case inspect.StrType() if not isinstance(value, str):
            yield Cause(path, f"expected text, found {_found(value, path, source_text)}")
        case inspect.StrType(min_length=low, max_length=high):
            if low is not None and len(value) < low:
                yield Cause(path, "empty")
            if high is not None and len(value) > high:
                yield Cause(path, f"{len(value)} characters; at most {high}")
        case inspect.BoolType() if not isinstance(value, bool):
            yield Cause(path, f"expected true or false, found {_found(value, path, source_text)}")
        case inspect.IntType() if isinstance(value, bool) or not isinstance(value, int):
            yield Cause(path, f"expected a number, found {_found(value, path, source_text)}")
        case inspect.IntType(ge=low, le=high):
            if low is not None and value < low:
                yield Cause(path, f"{value} is too small; at least {low}")
            if high is not None and value > high:
                yield Cause(path, f"{value} is too large; at most {high}")
        case inspect.LiteralType(values=values) if value not in values or isinstance(value, bool):
            shown = ", ".join(map(str, values))
            yield Cause(path, f"{_found(value, path, source_text)} is none of {shown}")
        case _:
            return


def _found(value: Any, path: str, source_text: SourceText | None) -> str:
    """What was found, and how to write what was probably meant."""
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case bool() | int() | float():
            text = source_text(path) if source_text else None
            if text is None:
                text = str(value).lower() if isinstance(value, bool) else str(value)
            kind = "boolean" if isinstance(value, bool) else "number"
            return f'the {kind} {text}; if text is meant, put it in quotes: "{text}"'
        case _:
            return f"text {value!r}"
