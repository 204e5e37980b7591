"""What reads much of the log: few at a time, of no token all, and counted until it has ended."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kudurru.entrypoints.rest.heavy import HEAVY_MAX, Heavy


class Work:
    """Which goes on until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.running = self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.go.wait(60)
        with self._lock:
            self.running -= 1


def on_loop(asked: Callable[[Heavy, Work], Awaitable[None]]) -> Work:
    work = Work()

    async def main() -> None:
        try:
            async with asyncio.timeout(60):
                await asked(Heavy(), work)
        finally:
            work.go.set()

    asyncio.run(main())
    return work


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_of_one_token_one_runs_at_a_time_and_others_need_not_wait_for_its_queue() -> None:
    async def asked(heavy: Heavy, work: Work) -> None:
        greedy = [asyncio.create_task(heavy.run("greedy", work)) for _ in range(50)]
        await until(lambda: work.running)
        assert await heavy.run("other", lambda: 7) == 7
        assert work.running == 1
        work.go.set()
        await asyncio.gather(*greedy)
        assert not heavy._turns, "who asks for nothing is forgotten"

    assert on_loop(asked).most == 1


def test_who_goes_away_frees_no_thread_that_still_runs() -> None:
    async def asked(heavy: Heavy, work: Work) -> None:
        for number in range(10 * HEAVY_MAX):
            task = asyncio.create_task(heavy.run(f"token{number}", work))
            expected = min(number + 1, HEAVY_MAX)
            await until(lambda expected=expected: work.running == expected)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert work.running == HEAVY_MAX
        work.go.set()
        assert await heavy.run("other", lambda: 7) == 7

    assert on_loop(asked).most == HEAVY_MAX


def test_what_fails_fails_for_who_asked() -> None:
    async def asked(heavy: Heavy, _work: Work) -> None:
        with pytest.raises(ZeroDivisionError):
            await heavy.run("one", lambda: 1 // 0)
        assert await heavy.run("one", lambda: 7) == 7

    on_loop(asked)
