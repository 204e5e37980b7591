"""Targets of time travel: a position, a time, a relative time, a checkpoint or a mark.

Each resolves to one position, which is printed, so that nobody has to guess what "2h ago" meant.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from kudurru.domain.codec import canonical
from kudurru.domain.commands import RecordFact
from kudurru.domain.errors import Cause, Invalid, NotFound, Pruned
from kudurru.domain.events import (
    AUDIT_MARKED,
    CHECKPOINT_STATE,
    CLOCK_STEPPED,
    SYSTEM_KEY,
    Position,
    Recorded,
    Who,
)
from kudurru.domain.object_store import DEFAULT_MANAGER
from kudurru.domain.objects import Key
from kudurru.domain.ports import EventLog

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POSITION = re.compile(r"\d{1,18}\Z", re.ASCII)
_RELATIVE = re.compile(
    r"(\d{1,6})\s*(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)(\s+ago)?\Z", re.I
)
_DATED = re.compile(r"\d{4}-?\d\d-?\d\d([Tt ]|\Z)", re.ASCII)
_WHOLE_SECOND = re.compile(r"[Tt ]\d\d:?\d\d:?\d\d([Zz]|[+-]\d\d(:?\d\d)?)?\Z", re.ASCII)
_MARK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z", re.ASCII)
_SECOND_US = 1_000_000
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def resolve(text: str, log: EventLog, now_us: int) -> Position:
    """The position that a target means. Raises Invalid for a text that is no target, a time that
    is to come, or one that the clock showed twice; NotFound for what is not in the log."""
    text = text.strip()
    if (position := position_in(text)) is not None:
        return _position(position, log)
    if text.startswith("mark:"):
        return _marked(text.removeprefix("mark:"), log)
    if text.startswith("checkpoint:"):
        return _checkpointed(text.removeprefix("checkpoint:"), log)
    moment = moment_us(text, now_us)
    if moment > now_us:
        raise Invalid("target", [Cause("", f"{text!r} is still to come")])
    # A time is shown to the second: who writes it so means what was shown with it, too.
    upto = moment + _SECOND_US - 1 if _WHOLE_SECOND.search(text) else moment
    position = _position_at(moment, upto, text, log, now_us)
    if position == 0 and not log.oldest():
        raise NotFound(f"{text!r} is before the first event of the log")
    return check_kept(position, log, repr(text))


def check_kept(position: Position, log: EventLog, what: str = "") -> Position:
    """The position, where the log can tell the state of it. Raises: Pruned."""
    oldest = log.oldest()
    if position < oldest:
        raise Pruned(what or f"position {position}", oldest)
    return position


def _checkpointed(size: str, log: EventLog) -> Position:
    """The event that a checkpoint ends with has its size as position."""
    event = log.get(int(size)) if _POSITION.match(size) else None
    if event is None or event.type != CHECKPOINT_STATE:
        raise NotFound(f"there is no checkpoint of {size} events in the log")
    return check_kept(event.seq, log)


def position_in(text: str) -> int | None:
    """The position that a text writes out, None where it is another kind of target."""
    return int(text) if _POSITION.match(text) else None


def _position(seq: int, log: EventLog) -> Position:
    newest = log.head().seq
    if 0 < seq <= newest:
        return check_kept(Position(seq), log)
    raise NotFound(f"position {seq} is not in the log, which ends at {newest}")


def whole_change(position: int, log: EventLog) -> Position:
    """The last position of the change set that a position stands in: a change is restored whole
    or not at all."""
    event = log.get(position)
    return Position(event.txn + event.n - 1 if event else position)


def before_change(position: int, log: EventLog) -> Position:
    """The position before the change set that a position stands in. Raises NotFound."""
    event = log.get(_position(position, log))
    before = Position(event.txn - 1 if event else 0)
    if before == 0:
        raise NotFound(f"the log has nothing before position {position}")
    return check_kept(before, log)


# --- marks ----------------------------------------------------------------------------------


def mark_command(name: str) -> RecordFact:
    """Order that names the moment of its event. Raises Invalid for a text that is no name; where
    the name is taken the order is refused with Conflict."""
    if not _MARK.match(name):
        fault = f"{name!r} is no name: letters, digits, '.', '_' and '-', at most 63 characters"
        raise Invalid("mark", [Cause("", fault)])
    return RecordFact(
        type=AUDIT_MARKED,
        key=_mark_key(name),
        ver=1,
        scope="/",
        manager=DEFAULT_MANAGER,
        body=canonical({"name": name}),
    )


def _mark_key(name: str) -> Key:
    return Key(f"Mark//{name}")


def _marked(name: str, log: EventLog) -> Position:
    event = next(iter(log.read(key=_mark_key(name))), None)
    if event is None:
        raise NotFound(f"there is no mark {name!r}: make one with `kudurru audit mark {name}`")
    return check_kept(event.seq, log, f"mark:{name}")


# --- times ----------------------------------------------------------------------------------


def _position_at(moment: int, upto: int, text: str, log: EventLog, now_us: int) -> Position:
    """The last event at or before the end of a moment, which goes on until `upto`. A clock that
    stepped opened a span of its own, in which the times are those that it showed."""
    steps = [e.seq for e in log.read(key=SYSTEM_KEY) if e.type == CLOCK_STEPPED]
    if not steps:
        return log.position_at(upto)
    inside: list[Position] = []
    nearest = (0, Position(0))  # wall time and position of the last event of an earlier span
    for first, last, wall_us in _spans(log, steps, now_us):
        if upto < wall_of(first):
            continue
        if moment <= wall_us:
            inside.append(_bisect(log, first.seq, last.seq, upto))
        else:
            nearest = max(nearest, (wall_us, last.seq))
    if len(inside) > 1:
        shown = " or ".join(map(str, inside))
        fault = f"the clock stepped, and showed {text!r} more than once: give the position, {shown}"
        raise Invalid("target", [Cause("", fault)])
    return inside[0] if inside else nearest[1]


def _spans(
    log: EventLog, steps: list[Position], now_us: int
) -> Iterator[tuple[Recorded, Recorded, int]]:
    """First and last event of each span, and the wall time until which it went on."""
    newest = log.head().seq
    begun = next(iter(log.read(max(log.oldest() - 1, 0))), None)
    starts = [begun.seq if begun else 1, *(seq for seq in steps if begun and seq > begun.seq)]
    for start, following in zip(starts, [*starts[1:], newest + 1], strict=True):
        first, last = log.get(start), log.get(following - 1)
        if first is not None and last is not None:
            yield first, last, max(now_us, wall_of(last)) if last.seq == newest else wall_of(last)


def _bisect(log: EventLog, first: int, last: int, moment: int) -> Position:
    """Within a span the clock falls back by less than a second, which nobody tells apart."""

    def wall_at(seq: int) -> int:
        event = log.get(seq)
        return wall_of(event) if event else 0

    return Position(first - 1 + bisect_right(range(first, last + 1), moment, key=wall_at))


def wall_of(event: Recorded) -> int:
    """What the clock showed, microseconds UTC; where that was erased, the time of the log."""
    if event.who is None:
        return event.ts
    return msgspec.json.decode(event.who, type=Who).wall or event.ts


def moment_us(text: str, now_us: int) -> int:
    """Microseconds UTC of an RFC 3339 or relative time; of a day its beginning. A time without an
    offset is UTC, as all times are shown. Raises Invalid."""
    relative = _RELATIVE.match(text)
    if relative:
        back = timedelta(seconds=int(relative[1]) * _UNIT_S[relative[2][0].lower()])
        return now_us - back // timedelta(microseconds=1)
    try:
        if not _DATED.match(text):  # a run of digits may be a time, and is not meant as one
            raise ValueError
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _no_target(text) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _no_target(text: str) -> Invalid:
    message = (
        f"{text!r} is no position and no time; write for example 1042, 2027-01-31T12:00:00Z, "
        "2027-01-31 (its beginning; times are UTC), '2h ago', '1d ago', checkpoint:SIZE or "
        "mark:NAME"
    )
    return Invalid("target", [Cause("", message)])
