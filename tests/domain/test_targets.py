"""Targets of time travel: which position a text means."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.errors import Invalid, NotFound
from kudurru.domain.targets import moment_us, resolve
from tests.logs import NOON_US, memory_log, recorded_history

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
     (10**12, 10)],
)  # fmt: skip
def test_a_time_means_the_last_event_at_or_before_it(log, after_us: int, seq: int) -> None:
    assert resolve(rfc3339(NOON_US + after_us), log, NOW_US) == seq
    assert resolve(rfc3339(NOON_US + after_us, offset_h=5), log, NOW_US) == seq


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


@pytest.mark.parametrize("text", ["checkpoint:5", "mark:before-the-move"])
def test_a_checkpoint_or_mark_that_there_is_not_is_not_found(log, text: str) -> None:
    with pytest.raises(NotFound, match="none of that name"):
        resolve(text, log, NOW_US)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "-5", "1.5h", "5 months", "2027-01-31", "2027-01-31T12:00:00", "12:00",
     "2027-02-30T00:00:00Z", "٣", "1" * 19, "1" * 5000],
)  # fmt: skip
def test_what_is_no_target_is_refused_with_examples(log, text: str) -> None:
    with pytest.raises(Invalid, match="'2h ago'"):
        resolve(text, log, NOW_US)


@given(st.integers(-(10**15), 10**16))
def test_a_time_is_read_to_the_microsecond(us: int) -> None:
    assert moment_us(rfc3339(us), 0) == us
