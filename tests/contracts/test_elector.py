"""The contract of `Elector`, on every one of them, and with runners that use it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.elector import MemoryElector
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.errors import Invalid
from kudurru.domain.leadership import NAME_MAX
from kudurru.domain.ports import Elector, EventLog, NamesLeader
from kudurru.entrypoints.leading import AlwaysLeader
from tests.electors import HUBS, PATIENCE_S, Hub, contend
from tests.logs import StillClock
from tests.postgres import postgres_log

SEED = 20260729


def on_every_hub(test: Callable[[Hub], Awaitable[None]]) -> Callable[[str, Path], None]:
    @pytest.mark.parametrize("kind", HUBS)
    def run(kind: str, tmp_path: Path) -> None:
        async def main() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test(HUBS[kind](tmp_path))

        asyncio.run(main())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


async def is_settled(waiting: "asyncio.Task[None]") -> bool:
    """Whether it ends soon: the wrong ones would at once."""
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    return bool(done)


@on_every_hub
async def test_one_leads_and_the_next_when_it_resigned(hub: Hub) -> None:
    first, second = hub(), hub()
    await first.campaign()
    lost = asyncio.create_task(first.lost())
    waiting = asyncio.create_task(second.campaign())
    assert not await is_settled(waiting)
    assert not lost.done()
    await first.resign()
    await waiting
    await lost
    await second.resign()


@on_every_hub
async def test_who_resigned_is_no_leader_and_may_resign_again(hub: Hub) -> None:
    elector = hub()
    await elector.resign()
    await elector.campaign()
    await elector.resign()
    await elector.resign()
    await elector.lost()


@on_every_hub
async def test_an_elector_that_names_the_leader_does_so_for_all(hub: Hub) -> None:
    """Others say nothing; none says something wrong."""
    first, second = hub(), hub()
    if not (isinstance(first, NamesLeader) and isinstance(second, NamesLeader)):
        return
    first.node_name, second.node_name = "ns1", "ns2 – with a name\n of another kind" * 4
    assert await first.leader() is None
    await first.campaign()
    assert [await one.leader() for one in (first, second)] == ["ns1", "ns1"]
    await first.resign()
    assert await second.leader() is None
    await second.campaign()
    named = await first.leader()
    assert named is not None
    assert named.startswith("ns2")
    await second.resign()


@on_every_hub
async def test_who_led_may_lead_again(hub: Hub) -> None:
    elector = hub()
    for _ in range(3):
        await elector.campaign()
        lost = asyncio.create_task(elector.lost())
        assert not await is_settled(lost)
        await elector.resign()
        await lost


@on_every_hub
async def test_who_gives_up_a_campaign_holds_nothing(hub: Hub) -> None:
    first, second, third = hub(), hub(), hub()
    await first.campaign()
    waiting = asyncio.create_task(second.campaign())
    assert not await is_settled(waiting)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await second.resign()
    await first.resign()
    await third.campaign()
    await third.resign()


@on_every_hub
async def test_work_of_two_terms_never_overlaps(hub: Hub) -> None:
    """Three runners, leaders that stop, others that come back."""
    chance = random.Random(SEED)
    arena = await contend(hub, chance, rounds=4)
    print(f"seed {SEED}: terms of {''.join(arena.terms)}")


def test_work_of_two_terms_never_overlaps_where_terms_are_lost(tmp_path: Path) -> None:
    async def revoke(elector: Elector) -> None:
        assert isinstance(elector, MemoryElector)
        elector.revoke()

    async def main() -> None:
        arena = await contend(HUBS["memory"](tmp_path), random.Random(SEED), 200, revoke)
        assert len(set(arena.terms)) == 3

    asyncio.run(main())


def test_who_shares_a_log_with_nobody_leads_from_the_start_to_the_end() -> None:
    async def main() -> None:
        elector = AlwaysLeader()
        await elector.campaign()
        lost = asyncio.create_task(elector.lost())
        assert not await is_settled(lost)
        await elector.resign()
        lost.cancel()

    asyncio.run(main())


def memory_log(folder: Path) -> EventLog:
    return MemoryEventLog(entropy=SeededEntropy(1), clock=ManualClock())


def sqlite_log(folder: Path) -> EventLog:
    return SQLiteEventLog.open(
        folder / "log.db", entropy=SeededEntropy(1), clock=StillClock(), create=True
    )


@pytest.mark.parametrize("opened", [memory_log, sqlite_log, lambda _: postgres_log()])
def test_a_name_that_nothing_can_be_called_is_refused(
    opened: Callable[[Path], EventLog], tmp_path: Path
) -> None:
    with closing(opened(tmp_path)) as log:
        log.elector("x" * NAME_MAX)
        for name in ("", "../log", "Upper", "a.b", "a/b", "ä", "-a", "x" * (NAME_MAX + 1)):
            with pytest.raises(Invalid, match="is no name of"):
                log.elector(name)
