"""Keys of objects that have to be looked at, each at most once at a time.

What is added while it is worked on is worked on again afterwards; what is added twice is worked on
once. A failure comes back after 5 ms, then after twice as long each time, at most 1,000 s; and all
failures together come back ten times a second at most, after a burst of a hundred. Plain values:
times are monotonic microseconds, and who waits for them is somebody else.
"""

import heapq

from kudurru.domain.objects import Key

RETRY_FIRST_US = 5_000
RETRY_MAX_US = 1_000_000_000
RETRIES_PER_S = 10
RETRIES_BURST = 100

_S = 1_000_000


class RetryLimit:
    """How often failures may come back, over all objects: a bucket of `burst`, filled at a rate."""

    def __init__(self, per_s: int = RETRIES_PER_S, burst: int = RETRIES_BURST) -> None:
        self._gap_us = _S // per_s
        self._slack_us = (burst - 1) * self._gap_us
        self._next_us: int | None = None  # when the next one would come, were there no burst

    def wait_us(self, now_us: int) -> int:
        """Take a place; how long it is away."""
        full_us = now_us - self._slack_us
        at_us = full_us if self._next_us is None else max(self._next_us, full_us)
        self._next_us = at_us + self._gap_us
        return max(0, at_us - now_us)


class WorkQueue:
    """`take` gives a key to a worker, `done` takes it back."""

    def __init__(self, limit: RetryLimit) -> None:
        self._limit = limit
        self._ready: dict[Key, None] = {}  # in order
        self._taken: set[Key] = set()
        self._again: set[Key] = set()  # of those, added meanwhile
        self._due: dict[Key, int] = {}
        self._timers: list[tuple[int, Key]] = []  # heap; an entry that is not in `_due` is void
        self._failures: dict[Key, int] = {}
        self.takes = 0  # so far

    def __len__(self) -> int:
        """How many are worked on or wait, now or for their time."""
        return len(self._ready.keys() | self._due.keys() | self._taken)

    @property
    def takes_until_empty(self) -> int:
        """What `takes` is when all that is ready now was taken: the first added goes first."""
        return self.takes + len(self._ready)

    def add(self, key: Key) -> None:
        """Look at it as soon as may be."""
        if key in self._taken:
            self._again.add(key)
        else:
            self._ready[key] = None

    def add_at(self, key: Key, due_us: int) -> None:
        """Look at it then; the earliest of several times counts."""
        before_us = self._due.get(key)
        if before_us is None or due_us < before_us:
            self._due[key] = due_us
            heapq.heappush(self._timers, (due_us, key))

    def retry(self, key: Key, now_us: int) -> None:
        """It failed: look at it again, later each time."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        wait_us = min(RETRY_FIRST_US << min(failures, 30), RETRY_MAX_US)
        self.add_at(key, now_us + max(wait_us, self._limit.wait_us(now_us)))

    def succeeded(self, key: Key) -> None:
        """Its next failure is a first one."""
        self._failures.pop(key, None)

    def take(self, now_us: int) -> Key | None:
        """The next key, None while there is nothing to do."""
        self._let_time_pass(now_us)
        if not self._ready:
            return None
        key = next(iter(self._ready))
        del self._ready[key]
        self._taken.add(key)
        self.takes += 1
        return key

    def done(self, key: Key) -> None:
        self._taken.remove(key)
        if key in self._again:
            self._again.remove(key)
            self._ready[key] = None

    def next_due_us(self) -> int | None:
        """When there is something to take, if nothing is added until then."""
        self._drop_void()
        return self._timers[0][0] if self._timers else None

    def _let_time_pass(self, now_us: int) -> None:
        self._drop_void()
        while self._timers and self._timers[0][0] <= now_us:
            _, key = heapq.heappop(self._timers)
            del self._due[key]
            self.add(key)
            self._drop_void()

    def _drop_void(self) -> None:
        while self._timers and self._due.get(self._timers[0][1]) != self._timers[0][0]:
            heapq.heappop(self._timers)
