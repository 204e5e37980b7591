"""Garbage beside a large change: not looked for while it is made, and not kept either."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from kudurru.entrypoints import steps
from kudurru.entrypoints.steps import no_collections


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


class Knot:
    """Refers to itself, as a connection and its protocol do to each other."""

    def __init__(self) -> None:
        self.other = self


def test_what_was_there_during_a_large_change_is_collected_later() -> None:
    async def main() -> None:
        knot = Knot()
        seen = weakref.ref(knot)
        with no_collections():
            pass
        del knot
        gc.collect()
        assert seen() is not None, "it was frozen"
        steps.look_again()
        assert seen() is None

    asyncio.run(main())


def test_garbage_is_looked_for_when_the_last_of_several_large_changes_is_done() -> None:
    async def main() -> None:
        with no_collections():
            with no_collections():
                assert not gc.isenabled()
            assert not gc.isenabled()
            frozen = gc.get_freeze_count()
            steps.look_again()
            assert gc.get_freeze_count() == frozen, "not while one is under way"
        assert gc.isenabled()

    asyncio.run(main())


def test_the_loop_looks_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        looked = asyncio.Event()
        monkeypatch.setattr(steps, "LOOK_AGAIN_S", 0)
        monkeypatch.setattr(steps, "look_again", looked.set)
        with no_collections():
            pass
        async with asyncio.timeout(60):
            await looked.wait()

    asyncio.run(main())
