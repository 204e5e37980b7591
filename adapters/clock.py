"""Time and chance of the machine."""

import secrets
import time


class SystemClock:
    """`Clock` of this process."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000


class SystemEntropy:
    """`Entropy` of the operating system."""

    def token(self, size: int) -> bytes:
        return secrets.token_bytes(size)
