"""When a clock has stepped: the rule, and days in the life of a bad clock."""

import pytest

from kudurru.domain.clock_steps import (
    AHEAD_MAX_US,
    BEHIND_MAX_US,
    ClockStepped,
    Reading,
    step,
)

SECOND = 1_000_000
DAY = 86_400 * SECOND
NOON = 1_760_000_000 * SECOND


@pytest.mark.parametrize(
    ("passed_us", "wall_us", "expected"),
    [
        pytest.param(5 * SECOND, 5 * SECOND, None, id="a clock that runs"),
        pytest.param(DAY, DAY + AHEAD_MAX_US, None, id="ahead, just not too far"),
        pytest.param(DAY, DAY + AHEAD_MAX_US + 1, (DAY, DAY + AHEAD_MAX_US + 1), id="ahead"),
        pytest.param(0, -BEHIND_MAX_US, None, id="a small step back"),
        pytest.param(0, -BEHIND_MAX_US - 1, (0, -BEHIND_MAX_US - 1), id="a step back"),
        pytest.param(DAY, -DAY, (0, -DAY), id="a step back after a quiet day"),
        pytest.param(DAY, 1, None, id="slow, but not behind what it said"),
    ],
)
def test_a_step_is_judged_by_what_time_passed(
    passed_us: int, wall_us: int, expected: tuple[int, int] | None
) -> None:
    stepped = step(Reading(NOON, 7), Reading(NOON + wall_us, 7 + passed_us))
    expected_step = expected and ClockStepped(NOON + expected[0], NOON + expected[1])
    assert stepped == expected_step


def test_after_a_start_only_a_clock_that_went_back_is_known_to_have_stepped() -> None:
    before = Reading(NOON, None)
    assert step(before, Reading(NOON + 400 * DAY, 1)) is None
    assert step(before, Reading(NOON - DAY, 1)) == ClockStepped(NOON, NOON - DAY)


def test_a_year_ahead_and_back_is_two_events_and_no_more() -> None:
    steps = []
    last = Reading(NOON, 0)
    for second in range(1, 100):
        wrong = 365 * DAY if 30 <= second < 60 else 0
        now = Reading(NOON + second * SECOND + wrong, second * SECOND)
        if stepped := step(last, now):
            steps.append((second, stepped))
        last = now
    assert [second for second, _ in steps] == [30, 60]
    assert steps[0][1] == ClockStepped(NOON + 30 * SECOND, NOON + 30 * SECOND + 365 * DAY)


def test_the_body_is_canonical() -> None:
    assert ClockStepped(1, 2).encode() == b'{"from":1,"to":2}'
