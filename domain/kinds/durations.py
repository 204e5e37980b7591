"""Durations in specs."""

from collections.abc import Iterator
from datetime import timedelta

from kudurru.domain.errors import Cause
from kudurru.domain.notation import parse_duration


def duration_us(text: str) -> int:
    """Microseconds. Raises ValueError with what is wrong."""
    return parse_duration(text) // timedelta(microseconds=1)


def duration_fault(field: str, text: str) -> Iterator[Cause]:
    try:
        parse_duration(text)
    except ValueError as error:
        yield Cause(field, str(error))
