"""When a policy holds: windows of local time, over midnight and over clock changes.

A window is turned into an instant of begin and one of end for each of its days, and holds between
the two. A boundary that the clock skips is the next minute that exists, one that it repeats is the
first of the two. So a window that a change skips whole begins when the clock goes on, for as long
as it is written to last, and one that a change repeats runs once.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo

from kudurru.domain.kinds.policy import Schedule, Window

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = timedelta(days=1)

TimeZones = Callable[[str], tzinfo | None]
"""Time zone by name; None: this host does not know it."""


class Hours:
    """A compiled schedule. `is_known` is False where the host lacks the time zone: it is read as
    UTC then, because hours that are off are better than a policy that never holds."""

    def __init__(self, schedule: Schedule, zones: TimeZones) -> None:
        zone = zones(schedule.time_zone)
        self.is_known = zone is not None
        self.time_zone = schedule.time_zone
        self._zone: tzinfo = zone if zone is not None else UTC
        self._windows = [_compiled(window) for window in schedule.windows]
        self._known = (1, 0, False)  # from, until, whether it holds: the last answer given

    def holds(self, now_s: int) -> bool:
        """Whether a window is open at a moment, unix time."""
        first, until, is_open = self._known
        if not first <= now_s < until:
            self._known = self._look(now_s)
            is_open = self._known[2]
        return is_open

    def _look(self, now_s: int) -> tuple[int, int, bool]:
        """The answer for a moment, and for which span of time it is the same."""
        first, until, is_open = now_s - 86_400, now_s + 86_400, False
        today = datetime.fromtimestamp(now_s, self._zone).date()
        for begin, end in self._spans(today):
            is_open = is_open or begin <= now_s < end
            for edge in (begin, end):
                if edge <= now_s:
                    first = max(first, edge)
                else:
                    until = min(until, edge)
        return first, until, is_open

    def _spans(self, today: date) -> Iterator[tuple[int, int]]:
        """Every time that a window is open around a day. The longest takes two days."""
        for offset in (-2, -1, 0, 1, 2):
            day = today + offset * _DAY
            for days, start, end in self._windows:
                if day.weekday() in days:
                    begin = instant(day, start, self._zone)
                    after = instant(day, end, self._zone)
                    if after <= begin:  # the clock skipped all of it
                        after = begin + (end - start) * 60
                    yield begin, after


def _compiled(window: Window) -> tuple[frozenset[int], int, int]:
    """Weekdays, begin and end in minutes of the day; the end of a window over midnight is more
    than a day."""
    start, end = _minutes(window.start), _minutes(window.end)
    if end <= start:
        end += 24 * 60
    return frozenset(DAYS.index(day) for day in window.days), start, end


def _minutes(text: str) -> int:
    return int(text[:2]) * 60 + int(text[3:])


def instant(day: date, minutes: int, zone: tzinfo) -> int:
    """Unix time of a local time: the first where there are two, the next minute that exists where
    there is none."""
    days, minutes = divmod(minutes, 24 * 60)
    wall = datetime(day.year, day.month, day.day, minutes // 60, minutes % 60) + days * _DAY  # noqa: DTZ001  # local time is what a window says
    local = wall.replace(tzinfo=zone)
    at = int(local.timestamp())
    if datetime.fromtimestamp(at, zone).replace(tzinfo=None) == wall:
        return at
    # In a gap (PEP 495) the offsets before and after it give two moments on either side of it.
    before = int(local.replace(fold=1).timestamp())
    low, high = min(at, before), max(at, before)
    offset = datetime.fromtimestamp(low, zone).utcoffset()
    while high - low > 1:  # the first second with the new offset
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return high
