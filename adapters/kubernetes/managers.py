"""Field managers: who owns which fields of an object, as server-side apply has it."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from kudurru.adapters.kubernetes.answers import Refused

NAME_MAX = 128
_DIGITS = 16
_CONFLICT = re.compile(r'\Aconflicts? with "((?:[^"\\]|\\.)*)"|\A"((?:[^"\\]|\\.)*)"')

Entry = dict[str, Any]


def field_manager(manager: str) -> str:
    """The name under which a manager's fields are kept: its own, or where the server has limits
    (128 characters, printable) a part of it that can be read, and a digest. The annotation
    holds the whole name."""
    if len(manager) <= NAME_MAX and manager.isascii() and manager.isprintable():
        return manager
    digest = hashlib.sha256(manager.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    readable = "".join(c if c.isascii() and c.isprintable() else "_" for c in manager)
    return f"{readable[: NAME_MAX - _DIGITS - 1]}-{digest}"


def other_manager(error: Refused) -> str:
    """Whom a conflict over fields names; "" when it is about something else.

    The text is `conflict with "NAME"`, or the name alone, and may go on with a subresource, or
    with which version was used and when.
    """
    for cause in error.causes:
        if cause.reason == "FieldManagerConflict":
            found = _CONFLICT.match(cause.message)
            name = (found[1] or found[2]) if found else cause.message
            return re.sub(r"\\(.)", r"\1", name)
    return ""


def taken_over(managed: Iterable[Entry], manager: str) -> list[Entry]:
    """managedFields in which all but the status is one manager's, as if it had applied it."""
    managed = list(managed)
    kept = [entry for entry in managed if entry.get("subresource")]
    rest = [entry for entry in managed if not entry.get("subresource")]
    if [(entry["manager"], entry["operation"]) for entry in rest] == [(manager, "Apply")]:
        return managed
    fields: dict[str, Any] = {}
    for entry in rest:
        _join(fields, entry.get("fieldsV1") or {})
    if not rest:
        return managed
    one = rest[-1] | {"manager": manager, "operation": "Apply", "fieldsV1": fields}
    return [one, *kept]


def _join(into: dict[str, Any], fields: dict[str, Any]) -> None:
    for name, below in fields.items():
        _join(into.setdefault(name, {}), below)
