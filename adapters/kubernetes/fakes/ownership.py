"""Who owns which field, as server-side apply has it (KEP 555), with every list owned as a whole.

A field is a path of keys; a set of them is kept as the API shows it, FieldsV1.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str, ...]


def fields(document: Mapping[str, Any]) -> set[Path]:
    """The leaves of a document that somebody may own."""
    kept = {k: v for k, v in document.items() if k not in ("apiVersion", "kind", "metadata")}
    found = set(_leaves(kept, ()))
    for part in ("labels", "annotations"):
        if value := document.get("metadata", {}).get(part):
            found |= set(_leaves(value, ("metadata", part)))
    return found


def _leaves(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, Mapping) and (value or not path):
        for key, part in value.items():
            yield from _leaves(part, (*path, key))
    else:
        yield path


def value_at(document: Any, path: Path) -> Any:
    """None where there is nothing."""
    for key in path:
        if not isinstance(document, Mapping) or key not in document:
            return None
        document = document[key]
    return document


def put(document: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        if not isinstance(document.get(key), dict):
            document[key] = {}
        document = document[key]
    if value != {} or not isinstance(document.get(path[-1]), dict):
        document[path[-1]] = value


def remove(document: dict[str, Any], path: Path) -> None:
    """Take a field away, and what it leaves empty above it."""
    above: list[tuple[dict[str, Any], str]] = []
    for key in path:
        if key not in document:
            return
        above.append((document, key))
        document = document[key]
    holder, last = above.pop()
    del holder[last]
    # The parts of an object stay, empty.
    while len(above) > 1 and not holder:
        holder, last = above.pop()
        del holder[last]


def to_fields_v1(paths: set[Path]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(paths):
        part = found
        for key in path:
            part = part.setdefault(f"f:{key}", {})
    return found


def from_fields_v1(part: Mapping[str, Any], path: Path = ()) -> set[Path]:
    below = [
        from_fields_v1(value, (*path, key[2:])) for key, value in part.items() if key[:2] == "f:"
    ]
    return set().union(*below) if below else {path} if path else set()
