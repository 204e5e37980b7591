"""What reads much of the log: few at a time, and of no token all."""

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


def test_of_many_tokens_few_run_at_a_time() -> None:
    async def asked(heavy: Heavy, work: Work) -> None:
        all_ = [asyncio.create_task(heavy.run(f"token{i}", work)) for i in range(10)]
        await until(lambda: work.running == HEAVY_MAX)
        work.go.set()
        await asyncio.gather(*all_)

    assert on_loop(asked).most == HEAVY_MAX


def test_what_fails_fails_for_who_asked() -> None:
    async def asked(heavy: Heavy, _work: Work) -> None:
        with pytest.raises(ZeroDivisionError):
            await heavy.run("one", lambda: 1 // 0)
        assert await heavy.run("one", lambda: 7) == 7

    on_loop(asked)
