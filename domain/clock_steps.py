"""A clock that was once wrong must not poison time.

`ts` of an event is max(newest ts, clock), so that a time names one position. A clock that jumps a
year ahead and comes back would thus hold `ts` for a year; the log keeps what the clock really
said in `who.wall` of every event, and says where it jumped with a `clock.stepped.v1` before the
first event after the jump. Times are resolved by `wall` inside the span that such an event opens.
"""

import msgspec

from kudurru.domain.codec import canonical

AHEAD_MAX_US = 10 * 60 * 1_000_000
"""How far the clock may run ahead of the monotonic estimate. Longer than any leap smear or step
of a time daemon that catches up after boot, shorter than what matters to a reader of the log."""

BEHIND_MAX_US = 1_000_000
"""How far the clock may fall behind what it said before. Time daemons step back by fractions of
a second in daily work; `ts` hides that, and an event for each would be noise."""


class Reading(msgspec.Struct, frozen=True):
    """What the clocks said at one moment."""

    wall_us: int  # microseconds UTC
    monotonic_us: int | None  # None: before this process began, from `who.wall` of the log


class ClockStepped(msgspec.Struct, frozen=True):
    """Body of clock.stepped.v1, microseconds UTC."""

    from_us: int = msgspec.field(name="from")  # what was expected, or was said before
    to_us: int = msgspec.field(name="to")  # what the clock said instead

    def encode(self) -> bytes:
        return canonical(self)


def step(last: Reading, now: Reading) -> ClockStepped | None:
    """The step of the clock between the newest event and now, None when it ran as clocks do.

    `last` is the reading that the newest event was recorded with. While its monotonic part is
    unknown no time counts as too far ahead: the machine may have been off for long. After a step
    was recorded, with `now` as the wall time of that event, the clock at its new place is normal.
    """
    if now.wall_us < last.wall_us - BEHIND_MAX_US:
        return ClockStepped(last.wall_us, now.wall_us)
    if last.monotonic_us is None or now.monotonic_us is None:
        return None
    expected = last.wall_us + now.monotonic_us - last.monotonic_us
    return ClockStepped(expected, now.wall_us) if now.wall_us > expected + AHEAD_MAX_US else None
