"""Which upstreams a question goes to, and what is known of their health.

An upstream is down when a question to it ran out of time or could not be sent, and nothing was
heard of it since that question left: a lost packet between answers is no outage. While it is down
it gets one question at a time, beside an upstream that is up, once its back-off is over; so an
outage costs one time-out and not one for every question. Where all are down one question at a time
is still tried at once, and the others fail at once.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from kudurru.domain.chance import Chance

Strategy = Literal["parallel", "fastest", "random", "strict"]

BACK_OFF_US = 1_000_000
BACK_OFF_MAX_US = 10_000_000
"""So long at most goes by between attempts: a router that comes back is used again soon."""

AT_ONCE = 2
"""Upstreams that `parallel` asks. More would not be faster, and would tell everybody everything."""

MEASURE_EVERY = 32
"""One question in so many also goes to an upstream that is not the fastest, to know how fast it
is."""

_SMOOTHING = 8  # as RFC 6298 section 2 has it for round trips


class Health:
    """Of one upstream. Times are monotonic, in microseconds."""

    __slots__ = ("failures", "heard_us", "is_probed", "latency_us", "retry_us")

    def __init__(self) -> None:
        self.latency_us = 0  # smoothed; 0: not measured
        self.failures = 0  # in a row, of those that count
        self.retry_us = 0
        self.heard_us = -1
        self.is_probed = False  # a question is under way to see whether it is back

    @property
    def is_up(self) -> bool:
        return not self.failures

    def heard(self, now_us: int, latency_us: int) -> None:
        """It answered, whatever it said."""
        self.heard_us = now_us
        self.failures = 0
        self.is_probed = False
        if self.latency_us:
            self.latency_us += (latency_us - self.latency_us) // _SMOOTHING
        else:
            self.latency_us = max(latency_us, 1)

    def failed(self, now_us: int, sent_us: int) -> None:
        """A question that left at `sent_us` got no answer."""
        self.is_probed = False
        if self.heard_us > sent_us:
            return
        self.failures += 1
        back_off = min(BACK_OFF_US << min(self.failures - 1, 8), BACK_OFF_MAX_US)
        self.retry_us = now_us + back_off

    def given_up(self) -> None:
        """A question to it is not waited for any more: that tells nothing."""
        self.is_probed = False


class Plan(msgspec.Struct, frozen=True):
    """Upstreams by index, in the order they are to be asked, the first `at_once` together. Empty:
    all are down, and are being tried already."""

    order: Sequence[int]
    at_once: int = 1


_THE_ONE = Plan((0,))


def choose(healths: Sequence[Health], strategy: Strategy, now_us: int, chance: Chance) -> Plan:
    if len(healths) == 1 and not healths[0].failures:
        return _THE_ONE
    up = [i for i, health in enumerate(healths) if health.is_up]
    if not up:
        waiting = [i for i, health in enumerate(healths) if not health.is_probed]
        waiting.sort(key=lambda i: healths[i].retry_us)
        return Plan(waiting, 1)
    at_once = 1
    if len(up) > 1:
        up, at_once = _ordered(up, healths, strategy, chance)
    if len(up) == len(healths):
        return Plan(up, at_once)
    due = [
        i
        for i, health in enumerate(healths)
        if not health.is_up and not health.is_probed and health.retry_us <= now_us
    ]
    return Plan([*due[:1], *up], at_once + len(due[:1]))


def _ordered(
    up: list[int], healths: Sequence[Health], strategy: Strategy, chance: Chance
) -> tuple[list[int], int]:
    match strategy:
        case "strict":
            return up, 1
        case "random":
            return sorted(up, key=lambda _: chance.bits(4)), 1
        case "fastest":
            up.sort(key=lambda i: healths[i].latency_us)  # what is not measured comes first
            if chance.below(MEASURE_EVERY):
                return up, 1
            other = 1 + chance.below(len(up) - 1)
            return [up[0], up[other], *up[1:other], *up[other + 1 :]], 2
        case "parallel":
            up.sort(key=lambda i: healths[i].latency_us)
            if len(up) > AT_ONCE:
                other = 1 + chance.below(len(up) - 1)
                up = [up[0], up[other], *up[1:other], *up[other + 1 :]]
            return up, AT_ONCE
