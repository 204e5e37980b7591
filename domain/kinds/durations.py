"""Durations as people write them: `30s`, `10m`, `1h30m`, `400d`."""

import re
from collections.abc import Iterator

from kudurru.domain.errors import Cause

_PART = re.compile(r"(\d{1,9})(ms|s|m|h|d|w)", re.ASCII)
_UNITS_US = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
DURATION_US_MAX = 10 * 366 * 86_400_000_000


def duration_us(text: str) -> int:
    """Microseconds. Raises ValueError with what is wrong."""
    total = at = 0
    for part in _PART.finditer(text):
        if part.start() != at:
            break
        total += int(part[1]) * _UNITS_US[part[2]]
        at = part.end()
    if at != len(text) or not text:
        raise ValueError(f"{text!r} is no duration; write for example 30s, 10m, 1h30m or 7d")
    if total > DURATION_US_MAX:
        raise ValueError(f"{text!r} is more than ten years")
    return total


def duration_fault(field: str, text: str) -> Iterator[Cause]:
    try:
        duration_us(text)
    except ValueError as error:
        yield Cause(field, str(error))
