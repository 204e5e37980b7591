"""Serial numbers: arithmetic of RFC 1982, and the stamp of a zone's next version.

Every function takes `bits`, so that a test can try the whole space of a small one.
"""

from typing import Any, TypeGuard

SERIAL_BITS = 32

CLOCK_LEAP_MAX_S = 86_400
"""A clock further ahead of the last stamp than this is not believed: one wrong clock would use up
half of the serial space."""


def is_serial(value: Any) -> TypeGuard[int]:
    """Whether a value may be a serial of ours: 32 bits, and not 0."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << SERIAL_BITS


def add(serial: int, increment: int, bits: int = SERIAL_BITS) -> int:
    """RFC 1982 section 3.1. Raises ValueError for an increment of half the space or more, which
    is not defined."""
    if not 0 <= increment < 1 << (bits - 1):
        raise ValueError(f"increment {increment} is not below 2^{bits - 1} (RFC 1982 section 3.1)")
    return (serial + increment) % (1 << bits)


def is_newer(a: int, b: int, bits: int = SERIAL_BITS) -> bool:
    """Whether `a` is greater than `b` (RFC 1982 section 3.2). At a distance of half the space
    neither is newer than the other."""
    return 0 < (a - b) % (1 << bits) < 1 << (bits - 1)


def successor(serial: int, bits: int = SERIAL_BITS) -> int:
    """The next serial. 0 is skipped: some secondaries take it for "none"."""
    return (serial + 1) % (1 << bits) or 1


def stamp(
    previous: int | None,
    highest_published: int | None,
    now_s: int,
    *,
    bits: int = SERIAL_BITS,
) -> int:
    """Serial of a zone's next version: the later of the successor and unix time, never back.

    `previous` is the zone's last serial; `highest_published` the highest that its name ever had,
    also before a delete or a restore. Unix time counts only where it is newer than both. The
    caller knows whether the clock may be followed (CLOCK_LEAP_MAX_S) and else gives 0, which is
    newer than nothing.
    """
    base = _newest(previous, highest_published, bits)
    now = now_s % (1 << bits)
    if base is None:
        return now or 1
    least = successor(base, bits)
    # Half the space away from `base`, a secondary could not tell that the zone moved.
    if is_newer(now, least, bits) and is_newer(now, base, bits) and now:
        return now
    return least


def _newest(previous: int | None, highest: int | None, bits: int) -> int | None:
    if previous is None or highest is None:
        return highest if previous is None else previous
    return highest if is_newer(highest, previous, bits) else previous
