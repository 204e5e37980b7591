"""What `kudurru doctor` and the API say of a node."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from kudurru import __version__

Status = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    check: str
    status: Status
    message: str


class Report(msgspec.Struct, frozen=True):
    node: str
    version: str
    checks: list[Check]
    failures: int
    warnings: int


def report(node: str, checks: Iterable[Check]) -> Report:
    found = list(checks)
    counts = [sum(one.status == status for one in found) for status in ("fail", "warn")]
    return Report(node, __version__, found, *counts)
