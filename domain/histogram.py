"""How long things took, in a few classes: enough for percentiles on a dashboard."""

from bisect import bisect_left

import msgspec

BOUNDS_US = (
    *(100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000),
    *(250_000, 500_000, 1_000_000, 2_500_000, 5_000_000),
)
"""Upper bounds of the classes, inclusive; what took longer is in one more."""


class Times(msgspec.Struct, frozen=True):
    """What a histogram has seen."""

    counts: tuple[int, ...]  # by class
    sum_us: int


class Histogram:
    __slots__ = ("_counts", "_sum_us")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_US) + 1)
        self._sum_us = 0

    def add(self, us: int) -> None:
        self._counts[bisect_left(BOUNDS_US, us)] += 1
        self._sum_us += us

    def times(self) -> Times:
        return Times(tuple(self._counts), self._sum_us)
