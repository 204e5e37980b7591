"""Targets of time travel: which position a text means."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.clock_steps import Reading, step
from kudurru.domain.errors import Invalid, NotFound
from kudurru.domain.events import (
    CHECKPOINT_KEY,
    CHECKPOINT_STATE,
    CLOCK_STEPPED,
    SYSTEM_KEY,
    ChangeSet,
    Event,
    Who,
)
from kudurru.domain.notation import time_text
from kudurru.domain.targets import (
    before_change,
    mark_command,
    moment_us,
    resolve,
    whole_change,
)
from tests.logs import NOON_US, applied, change, memory_log, recorded_history

SECOND = 1_000_000
NOW_US = NOON_US + 3600 * SECOND


@pytest.fixture
def log():
    """Ten events in five change sets, a second apart, at positions 3, 4, 5, 9 and 10."""
    log = memory_log()
    recorded_history(log)
    return log


def rfc3339(us: int, offset_h: int = 0) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    return moment.astimezone(timezone(timedelta(hours=offset_h))).isoformat()


@pytest.mark.parametrize(("text", "seq"), [("1", 1), (" 7 ", 7), ("10", 10), ("0010", 10)])
def test_a_number_is_a_position(log, text: str, seq: int) -> None:
    assert resolve(text, log, NOW_US) == seq


@pytest.mark.parametrize("text", ["0", "11", "999999999999999999"])
def test_a_position_that_is_not_in_the_log_is_not_found(log, text: str) -> None:
    with pytest.raises(NotFound, match="which ends at 10"):
        resolve(text, log, NOW_US)


@pytest.mark.parametrize(
    ("after_us", "seq"),
    [(0, 3), (1, 3), (SECOND - 1, 3), (SECOND, 4), (3 * SECOND, 9), (4 * SECOND, 10),
     (3600 * SECOND, 10)],
)  # fmt: skip
def test_a_time_means_the_last_event_at_or_before_it(log, after_us: int, seq: int) -> None:
    assert resolve(rfc3339(NOON_US + after_us), log, NOW_US) == seq
    assert resolve(rfc3339(NOON_US + after_us, offset_h=5), log, NOW_US) == seq


def test_the_time_that_an_event_is_shown_with_is_the_moment_after_it() -> None:
    """To the second it means that second whole, with a fraction that very moment."""
    log = memory_log()
    for ver, at_us in enumerate((0, 400_000, SECOND - 1, SECOND), start=1):
        log.append([change(applied("www", ver))], NOON_US + at_us)
    shown = time_text(NOON_US + 400_000)
    for text in (shown, shown.replace("T", " "), shown.replace("Z", "+00:00"), shown[:-1]):
        assert resolve(text, log, NOW_US) == 3
        assert resolve(text, log, NOON_US + 400_000) == 3
    for fraction, seq in ((".000", 1), (".4", 2), (",399999", 1), (".999999", 3)):
        assert resolve(f"{shown[:-1]}{fraction}Z", log, NOW_US) == seq


def test_a_time_without_an_offset_is_utc_and_a_day_its_beginning() -> None:
    for text in ("2023-11-14T22:13:20", "2023-11-14 22:13:20", "2023-11-14 22:13:20Z"):
        assert moment_us(text, 0) == moment_us("2023-11-14T22:13:20+00:00", 0)
    assert moment_us("2023-11-14", 0) == moment_us("2023-11-14T00:00:00Z", 0)
    assert moment_us("2023-11-14 22:13", 0) == moment_us("2023-11-14T22:13:00Z", 0)


@pytest.mark.parametrize(
    ("text", "seq"),
    [("3599s ago", 4), ("3599 seconds", 4), ("60m", 3), ("1h", 3), ("1 H ago", 3), ("59min", 10),
     ("0s", 10)],
)  # fmt: skip
def test_a_relative_time_counts_back_from_now(log, text: str, seq: int) -> None:
    assert resolve(text, log, NOW_US) == seq


@pytest.mark.parametrize("text", ["1d ago", "2 weeks ago", "999999w", "1970-01-01T00:00:00Z"])
def test_a_time_before_the_first_event_is_not_found(log, text: str) -> None:
    with pytest.raises(NotFound, match="before the first event"):
        resolve(text, log, NOW_US)


def test_a_checkpoint_is_the_position_of_its_last_event() -> None:
    log = memory_log()
    recorded_history(log)
    state = Event(CHECKPOINT_STATE, CHECKPOINT_KEY, 1, "/", "kudurru-controller", b"{}")
    log.append([change(state)], NOON_US)
    assert resolve("checkpoint:11", log, NOW_US) == 11


def test_a_time_that_is_still_to_come_is_refused(log) -> None:
    with pytest.raises(Invalid, match="still to come"):
        resolve(rfc3339(NOW_US + 1), log, NOW_US)


@pytest.mark.parametrize("size", ["5", "11", "x", ""])
def test_a_checkpoint_that_there_is_not_is_not_found(log, size: str) -> None:
    with pytest.raises(NotFound, match="there is no checkpoint of"):
        resolve(f"checkpoint:{size}", log, NOW_US)


def test_a_change_is_meant_whole(log) -> None:
    """Change sets end at 3, 4, 5, 9 and 10."""
    assert [whole_change(seq, log) for seq in range(1, 11)] == [3, 3, 3, 4, 5, 9, 9, 9, 9, 10]
    assert [before_change(seq, log) for seq in range(4, 11)] == [3, 4, 5, 5, 5, 5, 9]
    for seq in (1, 3):
        with pytest.raises(NotFound, match=f"nothing before position {seq}"):
            before_change(seq, log)
    with pytest.raises(NotFound, match="which ends at 10"):
        before_change(11, log)


# --- marks ------------------------------------------------------------------------------------


def test_a_mark_names_the_moment_of_its_event(log) -> None:
    with pytest.raises(NotFound, match="kudurru audit mark before-the-move"):
        resolve("mark:before-the-move", log, NOW_US)
    order = mark_command("before-the-move")
    event = Event(order.type, order.key, order.ver, order.scope, order.manager, order.body)
    log.append([change(event)], NOW_US)
    log.append([change(applied("late"))], NOW_US)
    assert resolve("mark:before-the-move", log, NOW_US) == 11


@pytest.mark.parametrize("name", ["", "-x", "a/b", "a b", "ä", "x" * 64, "a\n"])
def test_what_is_no_name_of_a_mark_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="is no name"):
        mark_command(name)


# --- clocks that stepped ----------------------------------------------------------------------


def stepped_log(*walls_s: int):
    """One event at each wall time, a `clock.stepped` before those that jump as the clock did."""
    log = memory_log()
    last = None
    for ver, wall_s in enumerate(walls_s, start=1):
        now = Reading(NOON_US + wall_s * SECOND, 0)  # no time passes but by steps
        who = Who(actor="test", wall=now.wall_us)
        if last is not None and (jumped := step(last, now)):
            version = log.stream_version(SYSTEM_KEY) + 1
            event = Event(CLOCK_STEPPED, SYSTEM_KEY, version, "/", "system", jumped.encode())
            log.append([ChangeSet((event,), who)], now.wall_us)
        log.append([ChangeSet((applied("www", ver),), who)], now.wall_us)
        last = now
    return log


YEAR_S = 365 * 86_400


@pytest.mark.parametrize(
    ("at_s", "seq"), [(0, 1), (9, 1), (10, 2), (15, 2), (20, 7), (25, 7), (30, 8), (31, 8)]
)
def test_a_clock_that_was_a_year_ahead_does_not_hide_the_time_after_it(at_s: int, seq: int) -> None:
    # 1 and 2, a step and 4 and 5 a year ahead, a step back, and 7 and 8.
    log = stepped_log(0, 10, YEAR_S, YEAR_S + 5, 20, 30)
    assert log.position_at(NOON_US + 25 * SECOND) == 2
    assert resolve(rfc3339(NOON_US + at_s * SECOND), log, NOON_US + 31 * SECOND) == seq
    with pytest.raises(Invalid, match="still to come"):
        resolve(rfc3339(NOON_US + YEAR_S * SECOND), log, NOON_US + 31 * SECOND)


def test_a_time_that_the_clock_showed_twice_is_ambiguous() -> None:
    log = stepped_log(0, 100, 50, 120)  # positions 1, 2, a step, 4, 5
    now_us = NOON_US + 130 * SECOND
    with pytest.raises(Invalid, match="more than once: give the position, 1 or 4"):
        resolve(rfc3339(NOON_US + 60 * SECOND), log, now_us)
    assert resolve(rfc3339(NOON_US + 40 * SECOND), log, now_us) == 1
    with pytest.raises(Invalid, match="more than once: give the position, 2 or 4"):
        resolve(rfc3339(NOON_US + 100 * SECOND), log, now_us)  # the last second of the first time
    assert resolve(rfc3339(NOON_US + 110 * SECOND), log, now_us) == 4
    assert resolve("0s ago", log, now_us) == 5


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "-5", "1.5h", "5 months", "last Tuesday", "12:00", "2023-13-01",
     "2023-02-30T00:00:00Z", "2023-01-01_12:00", "٣", "1" * 19, "1" * 5000],
)  # fmt: skip
def test_what_is_no_target_is_refused_with_examples(log, text: str) -> None:
    with pytest.raises(Invalid, match=r"times are UTC\), '2h ago', '1d ago'"):
        resolve(text, log, NOW_US)


@given(st.integers(-(10**15), 10**16))
def test_a_time_is_read_to_the_microsecond(us: int) -> None:
    assert moment_us(rfc3339(us), 0) == us
