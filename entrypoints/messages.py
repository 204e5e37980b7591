"""What a node has to say of its objects now: references that lead nowhere, records not served."""

from collections.abc import Iterator
from itertools import islice
from typing import Literal

import msgspec

from kudurru.domain.objects import ref_of
from kudurru.domain.reconcile.judging import problem_text
from kudurru.entrypoints.wiring import Node

MESSAGES_MAX = 1_000
"""More than anybody reads; what is left is counted."""

Severity = Literal["info", "warning"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Something about one object. `info` is what somebody wanted so: what is switched off."""

    severity: Severity
    object: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.object}: {self.reason}: {self.message}"


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    items: list[Message]
    more_objects: int = msgspec.field(default=0, name="moreObjects")
    """Record sets about which there is more to say than there is room for."""


def read_messages(node: Node) -> Messages:
    """Of policies and groups first, then of record sets."""
    found = list(islice(_of_policies(node), MESSAGES_MAX))
    sets = node.zones.unserved_sets()
    for told, key in enumerate(sets):
        if len(found) >= MESSAGES_MAX:
            return Messages(items=found[:MESSAGES_MAX], more_objects=len(sets) - told)
        found += [
            Message(
                severity="warning",
                object=str(ref_of(key)),
                reason=problem.reason,
                message=problem_text(problem),
            )
            for problem in node.zones.problems(key)
        ]
    return Messages(items=found[:MESSAGES_MAX])


def _of_policies(node: Node) -> Iterator[Message]:
    for one in node.views.policies.diagnoses():
        severity: Severity = "info" if one.reason == "Disabled" else "warning"
        yield Message(
            severity=severity, object=str(one.object), reason=one.reason, message=one.message
        )
