"""Work that one node of several does."""

import asyncio
from typing import NoReturn

import pytest

from kudurru.adapters.memory.elector import MemoryElector
from kudurru.entrypoints.leading import lead


def test_one_works_and_the_next_when_it_is_gone() -> None:
    async def main() -> None:
        lock, working = asyncio.Lock(), set[str]()
        electors = {name: MemoryElector(lock) for name in "ab"}

        async def work(name: str) -> NoReturn:
            working.add(name)
            try:
                await asyncio.Event().wait()
            finally:
                working.discard(name)
            raise AssertionError

        async def until(wanted: set[str]) -> None:
            async with asyncio.timeout(10):
                while working != wanted:
                    await asyncio.sleep(0)

        first = asyncio.create_task(lead(electors["a"], lambda: work("a")))
        await until({"a"})
        second = asyncio.create_task(lead(electors["b"], lambda: work("b")))
        for _ in range(50):
            await asyncio.sleep(0)
        assert working == {"a"}
        await electors["a"].resign()  # lost: another node leads
        await until({"b"})
        second.cancel()
        await until({"a"})
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert not working

    asyncio.run(main())


def test_a_fault_of_the_work_is_raised_and_another_may_lead() -> None:
    async def main() -> None:
        lock = asyncio.Lock()

        async def fails() -> NoReturn:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await lead(MemoryElector(lock), fails)
        assert not lock.locked()

    asyncio.run(main())
