"""The clock and the entropy of the machine."""

import os
import time


class SystemClock:
    """Implements `domain.ports.Clock`."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1_000


class SystemEntropy:
    """Implements `domain.ports.Entropy`."""

    def token(self, size: int) -> bytes:
        return os.urandom(size)
