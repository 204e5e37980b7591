"""Conditions: what a status says of its object, one for each type.

`Ready` is whether it does anything of what it says, `Degraded` whether a part of it does not,
`Disabled` is there for what is switched off only. A transition is a new status or reason; its time
moves with the status alone. What others write into a status stays.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from kudurru.domain.kinds.meta import ENABLED, Reason

READY, DEGRADED, DISABLED = "Ready", "Degraded", "Disabled"
ACCEPTED = "Accepted"
"""False on an object of a cluster that the nodes do not take; else it is not there."""
_OURS = frozenset({READY, DEGRADED, DISABLED})

FAULTS_SHOWN = 3
MESSAGE_MAX = 1024


class Said(NamedTuple):
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: str = ""


class Fault(NamedTuple):
    """Something that is not as the object says."""

    reason: Reason
    message: str


SWITCHED_OFF = (
    Said(READY, "False", "Disabled", f"{ENABLED} is false"),
    Said(DEGRADED, "False", "AsExpected"),
    Said(DISABLED, "True", "Disabled", f"{ENABLED} is false"),
)


def judged(
    faults: Sequence[Fault], *, works: bool = True, note: str = "", others: int = 0
) -> tuple[Said, ...]:
    """What faults come to, and so many `others`. `works`: whether something is done in spite of
    them; `note` is what a reader should know though it is no fault."""
    if not faults:
        return Said(READY, "True", "AsExpected", note), Said(DEGRADED, "False", "AsExpected")
    reason, message = faults[0].reason, _summary(faults, others)
    ready = Said(READY, "True", "AsExpected", note)
    if not works:
        ready = Said(READY, "False", reason, message)
    return ready, Said(DEGRADED, "True", reason, message)


def _summary(faults: Sequence[Fault], others: int) -> str:
    more = max(0, len(faults) - FAULTS_SHOWN) + others
    shown = "; ".join(fault.message for fault in faults[:FAULTS_SHOWN])[:MESSAGE_MAX]
    return f"{shown}; and {more} more" if more else shown


def status_with(
    status: dict[str, Any] | None, said: Sequence[Said], *, generation: int, now_s: int
) -> dict[str, Any]:
    """The status with these conditions for a spec of this generation."""
    before = {c["type"]: c for c in parts(status, "conditions") if isinstance(c.get("type"), str)}
    after = {kind: condition for kind, condition in before.items() if kind not in _OURS}
    for one in said:
        old = before.get(one.type, {})
        is_same = old.get("status") == one.status
        after[one.type] = {
            "type": one.type,
            "status": one.status,
            "reason": one.reason,
            "message": one.message,
            "observedGeneration": generation,
            "lastTransitionTime": (is_same and old.get("lastTransitionTime")) or rfc3339(now_s),
        }
    conditions = [after[kind] for kind in sorted(after)]
    return {**(status or {}), "observedGeneration": generation, "conditions": conditions}


def status_beside(
    status: dict[str, Any] | None, said: Sequence[Said], *, generation: int, now_s: int
) -> dict[str, Any]:
    """The status with these conditions, and with all others that it has."""
    there = {c["type"]: c for c in parts(status, "conditions") if isinstance(c.get("type"), str)}
    given = status_with(status, said, generation=generation, now_s=now_s)
    all_of_them = there | {c["type"]: c for c in given["conditions"]}
    conditions = [all_of_them[kind] for kind in sorted(all_of_them)]
    return {**(status or {}), "conditions": conditions}


def condition(status: dict[str, Any] | None, kind: str) -> dict[str, Any] | None:
    """The condition of a type, where there is one."""
    return next((c for c in parts(status, "conditions") if c.get("type") == kind), None)


def parts(status: dict[str, Any] | None, field: str) -> list[dict[str, Any]]:
    """The objects in a list of a status. What another version or writer made of it is left out."""
    there = (status or {}).get(field)
    return [part for part in there if isinstance(part, dict)] if isinstance(there, list) else []


def rfc3339(now_s: int) -> str:
    """Seconds UTC as metadata and statuses have them."""
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
