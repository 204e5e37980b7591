from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.time_zones import find_time_zone
from kudurru.domain.filtering.schedules import DAYS, Hours, instant
from kudurru.domain.kinds.policy import Schedule, Window

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3600


def hours(days: str, start: str, end: str, zone: str = "Europe/Berlin") -> Hours:
    window = Window(days=days.split(), start=start, end=end)  # type: ignore[arg-type]  # a test's
    return Hours(Schedule(time_zone=zone, windows=[window]), find_time_zone)


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def open_spans(schedule: Hours, first: str, last: str) -> list[tuple[str, str]]:
    """Spans of UTC in which a schedule holds, to the minute."""
    spans: list[tuple[str, str]] = []
    begin = None
    for at in range(utc(first), utc(last) + 60, 60):
        holds = schedule.holds(at)
        if holds and begin is None:
            begin = at
        if begin is not None and not holds:
            spans.append((_text(begin), _text(at)))
            begin = None
    return spans


def _text(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%dT%H:%M")


EVERY = " ".join(DAYS)

# In 2026 Berlin goes from UTC+1 to UTC+2 on 29 March at 01:00 UTC (02:00 becomes 03:00) and back on
# 25 October at 01:00 UTC (03:00 becomes 02:00).


@pytest.mark.parametrize(
    ("days", "start", "end", "day", "spans"),
    [
        # Ordinary days: winter and summer.
        ("Mon", "20:00", "22:00", "2026-01-05", [("05T19:00", "05T21:00")]),
        ("Mon", "20:00", "22:00", "2026-07-06", [("06T18:00", "06T20:00")]),
        # Over midnight, into the week's first day.
        ("Sun", "22:00", "06:00", "2026-01-04", [("04T21:00", "05T05:00")]),
        ("Mon", "22:00", "06:00", "2026-01-04", []),
        # The same minute at both ends, and 24:00: whole days.
        ("Sun", "00:00", "24:00", "2026-01-04", [("03T23:00", "04T23:00")]),
        ("Sun", "07:00", "07:00", "2026-01-04", [("04T06:00", "05T06:00")]),
        # Spring: the begin is skipped, then the end, then both, then neither.
        ("Sun", "02:30", "04:00", "2026-03-29", [("29T01:00", "29T02:00")]),
        ("Sun", "01:00", "02:30", "2026-03-29", [("29T00:00", "29T01:00")]),
        ("Sun", "02:15", "02:45", "2026-03-29", [("29T01:00", "29T01:30")]),
        ("Sun", "01:00", "04:00", "2026-03-29", [("29T00:00", "29T02:00")]),
        ("Sat", "22:00", "02:30", "2026-03-28", [("28T21:00", "29T01:00")]),
        # Autumn: what is repeated runs once, from the first time on.
        ("Sun", "02:15", "02:45", "2026-10-25", [("25T00:15", "25T00:45")]),
        ("Sun", "02:30", "04:00", "2026-10-25", [("25T00:30", "25T03:00")]),
        ("Sun", "01:00", "02:30", "2026-10-25", [("24T23:00", "25T00:30")]),
        ("Sat", "22:00", "02:30", "2026-10-24", [("24T20:00", "25T00:30")]),
    ],
)
def test_a_window_is_open_from_begin_to_end(
    days: str, start: str, end: str, day: str, spans: list[tuple[str, str]]
) -> None:
    moment = datetime.fromisoformat(day)
    first, last = moment - timedelta(hours=12), moment + timedelta(hours=36)
    found = open_spans(hours(days, start, end), first.isoformat(), last.isoformat())
    assert found == spans


def test_a_time_zone_that_is_not_known_here_counts_as_utc() -> None:
    schedule = hours("Mon", "20:00", "22:00", "Mars/Olympus")
    assert not schedule.is_known
    assert schedule.holds(utc("2026-01-05T20:00"))
    assert not schedule.holds(utc("2026-01-05T22:00"))


def test_a_change_by_half_an_hour_is_a_change_too() -> None:
    # Lord Howe: on 4 October 2026 at 02:00 the clock goes on to 02:30.
    howe = hours("Sun", "02:10", "03:00", "Australia/Lord_Howe")
    assert open_spans(howe, "2026-10-03T12:00", "2026-10-04T12:00") == [("03T15:30", "03T16:00")]


moments = st.integers(utc("2026-01-01"), utc("2027-01-01"))
times = st.tuples(st.integers(0, 23), st.integers(0, 59)).map(lambda t: f"{t[0]:02}:{t[1]:02}")


@given(moments, st.lists(moments, max_size=5), st.lists(st.sampled_from(DAYS), min_size=1), times,
       times)  # fmt: skip
def test_what_it_said_before_changes_nothing(
    now: int, before: list[int], days: list[str], start: str, end: str
) -> None:
    asked = hours(" ".join(days), start, end)
    for moment in before:
        asked.holds(moment)
    assert asked.holds(now) == hours(" ".join(days), start, end).holds(now)


@given(moments, st.lists(st.sampled_from(DAYS), min_size=1), times, times)
def test_away_from_clock_changes_it_is_what_the_wall_clock_says(
    now: int, days: list[str], start: str, end: str
) -> None:
    changes = (utc("2026-03-29T01:00"), utc("2026-10-25T01:00"))
    if any(abs(now - change) < 50 * HOUR for change in changes):
        return
    local = datetime.fromtimestamp(now, BERLIN)
    clock, day = local.strftime("%H:%M"), DAYS[local.weekday()]
    yesterday = DAYS[local.weekday() - 1]
    if start < end:
        expected = day in days and start <= clock < end
    else:
        expected = (day in days and clock >= start) or (yesterday in days and clock < end)
    assert hours(" ".join(days), start, end).holds(now) == expected


@given(st.dates(datetime(2025, 1, 1).date(), datetime(2027, 1, 1).date()), st.integers(0, 1439))  # noqa: DTZ001  # dates only
def test_a_local_time_that_exists_is_found_again(day: object, minutes: int) -> None:
    at = instant(day, minutes, BERLIN)  # type: ignore[arg-type]  # hypothesis' date
    local = datetime.fromtimestamp(at, BERLIN)
    assert (local.hour * 60 + local.minute == minutes) or (
        local.hour == 3 and local.minute == 0 and 120 <= minutes < 180
    )
