"""Targets of time travel: a position, a time, a relative time, a checkpoint or a mark.

Each resolves to one position, which is printed, so that nobody has to guess what "2h ago" meant.
"""

import re
from datetime import UTC, datetime, timedelta

from kudurru.domain.errors import Cause, Invalid, NotFound
from kudurru.domain.events import Position
from kudurru.domain.ports import EventLog

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POSITION = re.compile(r"\d{1,18}\Z", re.ASCII)
_RELATIVE = re.compile(
    r"(\d{1,6})\s*(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)(\s+ago)?\Z", re.I
)
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def resolve(text: str, log: EventLog, now_us: int) -> Position:
    """The position that a target means. Raises Invalid for a text that is no target, NotFound for
    a position that is not in the log."""
    text = text.strip()
    if (position := position_in(text)) is not None:
        return _position(position, log)
    if text.startswith(("checkpoint:", "mark:")):
        raise NotFound(f"{text!r}: the log has none of that name")
    moment = moment_us(text, now_us)
    position = log.position_at(moment)
    if position == 0:
        raise NotFound(f"{text!r} is before the first event of the log")
    return position


def position_in(text: str) -> int | None:
    """The position that a text writes out, None where it is another kind of target."""
    return int(text) if _POSITION.match(text) else None


def _position(seq: int, log: EventLog) -> Position:
    newest = log.head().seq
    if not 0 < seq <= newest:
        raise NotFound(f"position {seq} is not in the log, which ends at {newest}")
    return Position(seq)


def moment_us(text: str, now_us: int) -> int:
    """Microseconds UTC of an RFC 3339 or relative time. Raises Invalid."""
    relative = _RELATIVE.match(text)
    if relative:
        back = timedelta(seconds=int(relative[1]) * _UNIT_S[relative[2][0].lower()])
        return now_us - back // timedelta(microseconds=1)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _no_target(text, "is no position and no time") from None
    if moment.tzinfo is None:
        raise _no_target(text, "has no offset from UTC")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _no_target(text: str, why: str) -> Invalid:
    message = (
        f"{text!r} {why}; write for example 1042, 2027-01-31T12:00:00Z, '2h ago', "
        "checkpoint:SIZE or mark:NAME"
    )
    return Invalid("target", [Cause("", message)])
