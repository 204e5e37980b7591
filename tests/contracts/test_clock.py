"""The contract of Clock on every clock, and what the manual one adds."""

import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.domain.ports import Clock, Entropy


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["system", "manual"])
def test_time_is_microseconds_and_the_monotonic_one_never_goes_back(clock: Clock) -> None:
    assert 1_600_000_000_000_000 < clock.now_us() < 10_000_000_000_000_000
    readings = [clock.monotonic_us() for _ in range(100)]
    assert readings == sorted(readings)


@pytest.mark.parametrize("entropy", [SystemEntropy(), SeededEntropy(1)], ids=["system", "seeded"])
def test_tokens_have_the_size_asked_for_and_differ(entropy: Entropy) -> None:
    tokens = [entropy.token(16) for _ in range(100)]
    assert {len(token) for token in tokens} == {16}
    assert len(set(tokens)) == 100


def test_a_manual_clock_stands_until_it_is_moved() -> None:
    clock = ManualClock(1000)
    assert (clock.now_us(), clock.now_us()) == (1000, 1000)
    clock.advance(86_400_000_000)
    assert (clock.now_us(), clock.monotonic_us()) == (86_400_001_000, 86_400_000_000)


def test_stepping_the_wall_clock_leaves_the_monotonic_one() -> None:
    clock = ManualClock(1000)
    clock.advance(10)
    clock.step_wall(-500)
    assert (clock.now_us(), clock.monotonic_us()) == (510, 10)


def test_seeded_entropy_repeats() -> None:
    assert SeededEntropy(7).token(8) == SeededEntropy(7).token(8) != SeededEntropy(8).token(8)
