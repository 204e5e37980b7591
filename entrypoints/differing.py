"""What differs: an object from a manifest, and the objects of one moment from those of another."""

from collections.abc import Callable
from typing import Any

import msgspec

from kudurru.domain.differences import differences
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.ports import EventLog
from kudurru.domain.restore import Scope, content
from kudurru.projections import as_of


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is not the same, with what changed, field by field."""

    object: str
    verb: str
    changes: list[dict[str, Any]]


Sees = Callable[[Key, str], bool]
"""Whether the object of a key may be shown with what it had in a scope."""


def everything(_key: Key, _scope: str) -> bool:
    return True


def difference(key: Key, before: Any, after: Any, verb: str) -> Difference | None:
    """None where there is none."""
    changes = list(differences(before, after))
    if not changes:
        return None
    ref = ref_of(key)
    where = f"{ref.namespace}/" if ref.namespace else ""
    return Difference(object=f"{ref.kind.lower()}/{where}{ref.name}", verb=verb, changes=changes)


def differing(
    log: EventLog,
    first: int,
    last: int,
    zone: str | None,
    *,
    sees: Sees = everything,
    most: int | None = None,
) -> list[Difference]:
    """Objects that differ between two positions, of a zone or all; what one had and nobody may see
    counts as nothing. Raises: Invalid when there are more than `most`, or the positions are the
    wrong way round; NotFound for the zone."""
    if last < first:
        raise Invalid("diff", [Cause("", f"--to {last} is before --from {first}")])
    scope = Scope(everything=True)
    if zone is not None:
        scope = Scope(zone=as_of.zone_named(log, zone, last, first))
    found = as_of.between(log, scope, first, last)
    told: list[Difference] = []
    for key in sorted(found.then.keys() | found.now.keys()):
        old, new = (_seen(side.get(key), sees) for side in (found.then, found.now))
        verb = "created" if old is None else "deleted" if new is None else "changed"
        if one := difference(key, content(old), content(new), verb):
            told.append(one)
        if most is not None and len(told) > most:
            fault = f"more than {most} objects differ: ask zone by zone, or with --data"
            raise Invalid("diff", [Cause("", fault)])
    return told


def _seen(stored: StoredObject | None, sees: Sees) -> StoredObject | None:
    return stored if stored is not None and sees(stored.key, stored.scope) else None
