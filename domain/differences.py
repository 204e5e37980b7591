"""What differs between two states of an object, field by field."""

from collections.abc import Iterator
from typing import Any


def differences(before: Any, after: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Leaves that differ: {field, from, to}, either left out where there is none."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            inner = f"{path}.{name}" if path else name
            if name not in after:
                yield {"field": inner, "from": before[name]}
            elif name not in before:
                yield {"field": inner, "to": after[name]}
            else:
                yield from differences(before[name], after[name], inner)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{path}[{i}]")
    elif before != after:
        yield {"field": path, "from": before, "to": after}
