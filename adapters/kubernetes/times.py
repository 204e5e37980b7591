"""Times as the API has them: RFC 3339, UTC, whole seconds (Time) or six digits more (MicroTime)."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def seconds_text(us: int) -> str:
    return _at(us).strftime("%Y-%m-%dT%H:%M:%SZ")


def micros_text(us: int) -> str:
    return _at(us).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def us_of(text: str) -> int | None:
    """Microseconds UTC; None when it is no time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found.tzinfo is None else (found - _EPOCH) // _US


def _at(us: int) -> datetime:
    return _EPOCH + us * _US
