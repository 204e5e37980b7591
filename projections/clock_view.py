"""Whether the clock may be followed: the sum of the steps that the log has recorded.

A machine without a battery wakes in 1970, and steps back and forward again: the sum is about zero.
A clock that was set a year ahead leaves a year. While it is more than a day ahead, serials do not
follow it: one wrong clock would use up half of the serial space.
"""

from collections.abc import Iterator

import msgspec

from kudurru.domain.clock_steps import ClockStepped
from kudurru.domain.dns.serials import CLOCK_LEAP_MAX_S
from kudurru.domain.events import CLOCK_STEPPED, Position, Recorded


class ClockView:
    """Implements `projections.follow.Projection`."""

    name = "clock"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.position = Position(0)
        self.ahead_us = 0

    def apply(self, event: Recorded) -> None:
        self.position = event.seq
        if event.type == CLOCK_STEPPED and event.body is not None:
            stepped = msgspec.json.decode(event.body, type=ClockStepped)
            self.ahead_us += stepped.to_us - stepped.from_us

    def advance(self, now_s: int) -> None:
        """Time that passes is no step."""

    @property
    def is_trusted(self) -> bool:
        return self.ahead_us <= CLOCK_LEAP_MAX_S * 1_000_000

    def digest(self) -> str:
        return f"{self.ahead_us & (1 << 64) - 1:016x}"

    def dump(self) -> Iterator[bytes]:
        yield msgspec.msgpack.encode((self.position, self.ahead_us))

    def load(self, parts: Iterator[bytes]) -> None:
        kind = tuple[Position, int]
        self.position, self.ahead_us = msgspec.msgpack.decode(next(parts), type=kind)
