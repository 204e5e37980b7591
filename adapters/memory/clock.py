"""A clock that stands until it is moved, and chance that repeats."""

import random


class ManualClock:
    """`Clock` in the hands of a test. Wall and monotonic time are moved together by `advance`;
    `step_wall` is what NTP or an administrator does."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._monotonic_us = 0

    def now_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return self._monotonic_us

    def advance(self, us: int) -> None:
        """Let time pass. `us` is not negative."""
        assert us >= 0
        self._now_us += us
        self._monotonic_us += us

    def step_wall(self, us: int) -> None:
        """Move the wall clock alone, back too."""
        self._now_us += us


class SeededEntropy:
    """`Entropy` that gives the same octets for the same seed. Never for secrets."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 repeatable on purpose

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)
