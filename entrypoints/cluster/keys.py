"""Keys of objects that something is to be done about in the cluster, and who does it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

from kudurru.domain.objects import Key
from kudurru.domain.ports import Clock, Timers
from kudurru.domain.reconcile.queue import RetryLimit, WorkQueue


class Waiting:
    """Names, by the keys of the objects that they wait for."""

    def __init__(self) -> None:
        self._keys: dict[str, frozenset[Key]] = {}
        self._names: dict[Key, set[str]] = {}

    def put(self, name: str, keys: frozenset[Key]) -> None:
        """From now on a name waits for these, and for no others."""
        for key in self._keys.pop(name, frozenset()):
            self._names[key].discard(name)
            if not self._names[key]:
                del self._names[key]
        if keys:
            self._keys[name] = keys
        for key in keys:
            self._names.setdefault(key, set()).add(name)

    def of(self, key: Key) -> list[str]:
        """Who waits for it, in order of names."""
        return sorted(self._names.get(key, ()))


class Keys:
    """A queue in which a key is once. What fails is tried again, later each time."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._queue = WorkQueue(RetryLimit())
        self._clock = clock
        self._timers = timers
        self._wake = asyncio.Event()
        self._failed: set[Key] = set()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, key: Key) -> None:
        self._queue.add(key)
        self._wake.set()

    def again(self) -> None:
        """Try what failed now, and not when its time has come: the API server is back."""
        failed, self._failed = self._failed, set()
        for key in failed:
            self.add(key)

    async def work(self, settle: Callable[[Key], Awaitable[bool]], workers: int) -> NoReturn:
        """Settle keys as they come, until cancelled. `settle` says whether it is done with one."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers - 1):
                tasks.create_task(self._work(settle))
            await self._work(settle)

    async def _work(self, settle: Callable[[Key], Awaitable[bool]]) -> NoReturn:
        while True:
            key = await self._take()
            is_done = False
            try:
                is_done = await settle(key)
            finally:
                self._queue.done(key)
            if is_done:
                self._queue.succeeded(key)
                self._failed.discard(key)
            else:
                self._failed.add(key)
                self._queue.retry(key, self._clock.monotonic_us())
            self._wake.set()

    async def _take(self) -> Key:
        while (key := self._queue.take(self._clock.monotonic_us())) is None:
            self._wake.clear()
            due_us = self._queue.next_due_us()
            timer = None
            if due_us is not None:
                wait_us = max(0, due_us - self._clock.monotonic_us())
                timer = self._timers.call_later(wait_us, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        return key
