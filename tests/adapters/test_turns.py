"""Connections share the turns of the loop: nobody waits for more than a piece of another's work."""

import asyncio
from functools import partial

import pytest

from kudurru.adapters import turns
from kudurru.adapters.turns import Turns


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn is over after one piece."""
    monkeypatch.setattr(turns, "TURN_S", 0)


def test_who_comes_when_a_turn_is_used_up_stands_in_line() -> None:
    async def main() -> list[list[int]]:
        done: list[int] = []
        shared = Turns()
        seen = []
        for i in range(4):
            shared.wait(partial(done.append, i))
        for _ in range(4):
            await asyncio.sleep(0)
            seen.append(done.copy())
        return seen

    assert asyncio.run(main()) == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_work_is_done_at_once_where_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 1000)

    async def main() -> None:
        done: list[int] = []
        Turns().take(partial(done.append, 1))
        assert done == [1]

    asyncio.run(main())


def test_who_is_never_done_does_not_pass_those_in_line() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        shared = Turns()

        def greedy() -> None:
            order.append("greedy")
            shared.wait(greedy)

        shared.wait(greedy)
        for name in ("b", "c"):
            shared.take(partial(order.append, name))
        while len(order) < 5:
            await asyncio.sleep(0)
        return order[:5]

    assert asyncio.run(main()) == ["greedy", "b", "c", "greedy", "greedy"]


def test_work_that_fails_does_not_end_the_line() -> None:
    async def main() -> None:
        faults: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        done: list[int] = []
        shared = Turns()
        shared.wait(lambda: done.append(1 // 0))
        shared.wait(partial(done.append, 2))
        while not done:
            await asyncio.sleep(0)
        assert len(faults) == 1

    asyncio.run(main())
