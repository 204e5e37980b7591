"""Old rows go by their age, with a clock that is moved by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.memory.timers import ManualTimers
from kudurru.adapters.signing import KeyFolder
from kudurru.domain.chain import origin_of
from kudurru.domain.errors import Conflict, Pruned, StorageFailed
from kudurru.domain.events import LOG_PRUNED, Recorded
from kudurru.domain.targets import resolve
from kudurru.domain.verify import verify
from kudurru.entrypoints import directory, upkeep
from kudurru.entrypoints.checkpoints import Checkpointer, CheckpointPolicy
from kudurru.entrypoints.directory import trust_of
from kudurru.entrypoints.retention import OldRows
from kudurru.entrypoints.upkeep import Pruning
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer
from tests.nodes import a_change, rebuilt
from tests.objects import put, www, zone

DAY_US = 86_400_000_000
DAYS = 400
RETENTION = timedelta(days=DAYS)


class RacingLog(MemoryEventLog):
    """What `race` does happens in the middle of the next reading."""

    race: Callable[[], object] | None = None

    def read(self, after: int = 0, upto: int | None = None, **how: Any) -> Iterator[Recorded]:
        race, self.race = self.race, None
        for event in super().read(after, upto, **how):
            yield event
            if race is not None and event.seq == after + 100:
                race()


class Site:
    """A node with a change a day, each of them two events, and a key to sign with."""

    def __init__(self, log: MemoryEventLog, clock: ManualClock, folder: Path) -> None:
        self.clock = clock
        self.node = Node(log, clock, SeededEntropy(2))
        keys = KeyFolder(folder, origin_of(log.log_id, log.epoch), SeededEntropy(1))
        self.signer = Checkpointer(self.node, keys, CheckpointPolicy())
        self.node.commit(a_change(put(zone())))

    def live(self, days: int) -> None:
        for day in range(days):
            self.clock.advance(DAY_US)
            self.node.commit(a_change(put(www(f"192.0.2.{day % 250}"))))
        self.signer.take_if_active()

    def prune_old(self) -> Pruning | None:
        async def main() -> Pruning | None:
            writer = Writer(self.node, self.signer)
            running = asyncio.create_task(writer.run())
            found = await writer.prune_old(RETENTION, self.clock.now_us())
            writer.stop()
            await running
            return found

        return asyncio.run(main())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    clock = ManualClock()
    with closing(RacingLog(entropy=SeededEntropy(1), clock=clock)) as log:
        yield Site(log, clock, tmp_path)


def test_a_daily_run_lets_go_what_is_older_than_the_retention_and_the_rest_verifies(
    site: Site,
) -> None:
    log = site.node.log
    site.live(DAYS)
    assert site.prune_old() is None
    site.live(DAYS)
    pruning = site.prune_old()
    assert pruning is not None
    assert log.oldest() == pruning.anchor.upto > 0
    oldest = next(iter(log.read(log.oldest())))
    newest_gone = site.clock.now_us() - DAYS * DAY_US
    assert newest_gone - 128 * DAY_US <= oldest.ts <= newest_gone  # whole tiles, of 128 days here
    found = verify(log, trust=trust_of([str(site.signer.key)]))  # type: ignore[arg-type]  # a log of ours
    assert found.is_whole, found.damages
    assert found.signed.is_trusted
    assert rebuilt(site.node).views.digests() == site.node.views.digests()
    said = [event for event in log.read(log.oldest()) if event.type == LOG_PRUNED]
    assert len(said) == 1
    assert b'"actor":"system"' in (said[0].who or b"")
    assert b'"reason":"older than 400d"' in (said[0].who or b"")
    with pytest.raises(Pruned, match="where this log begins since it was pruned"):
        resolve("700 days ago", log, site.clock.now_us())
    assert site.prune_old() is None
    # And every other day of a year on: nothing is kept that is not needed.
    for _ in range(4):
        site.live(100)
        site.prune_old()
        assert rebuilt(site.node).views.digests() == site.node.views.digests()
    assert sum(1 for event in log.read(0, log.oldest())) < 20


def test_a_retention_that_is_longer_than_time_prunes_nothing(site: Site) -> None:
    site.live(300)
    for age in (timedelta(days=40_000), timedelta.max):
        assert upkeep.older_than(age, site.node.log, site.clock.now_us()) == 1


def test_what_a_clock_that_was_ahead_recorded_goes_later_and_not_sooner(site: Site) -> None:
    site.live(10)
    site.clock.step_wall(500 * DAY_US)
    site.live(10)
    ahead = site.node.log.head().seq
    site.clock.step_wall(-500 * DAY_US)
    site.live(10)
    assert upkeep.older_than(timedelta(days=15), site.node.log, site.clock.now_us()) < ahead
    site.live(DAYS)
    now_us = site.clock.now_us()
    assert upkeep.older_than(timedelta(days=5), site.node.log, now_us) <= ahead


def test_a_log_that_is_pruned_while_it_is_read_is_read_again(site: Site) -> None:
    site.live(DAYS)
    site.live(DAYS)
    log = site.node.log
    assert isinstance(log, RacingLog)
    log.race = site.prune_old
    with pytest.raises(Conflict, match="run the command again"):
        directory.replay(Node(log, site.clock, SeededEntropy(4)))


# --- the job --------------------------------------------------------------------------------


class Job:
    """The daily job of a site, its writer running, its time a test's own."""

    def __init__(self, site: Site, retention: timedelta = RETENTION) -> None:
        self.site = site
        self.timers = ManualTimers(site.clock)
        self.writer = Writer(site.node, site.signer)
        self.job = OldRows(site.node, self.writer, self.timers, lambda: retention)
        self.runs = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        prune = self.job.prune

        async def counted() -> bool:
            is_done = await prune()
            self.runs += 1
            return is_done

        self.job.prune = counted  # type: ignore[method-assign]  # to know when it has looked
        tasks = [asyncio.create_task(self.writer.run()), asyncio.create_task(self.job.run())]
        try:
            await self.until(1)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, runs: int) -> None:
        async with asyncio.timeout(60):
            while self.runs < runs:
                await asyncio.sleep(0.001)

    @property
    def oldest(self) -> int:
        return self.site.node.log.oldest()


def test_the_job_runs_at_the_start_and_every_day(site: Site) -> None:
    async def main() -> None:
        site.live(2 * DAYS)
        job = Job(site)
        async with job.running():
            first = job.oldest
            assert first > 0
            days = 0
            while job.oldest == first:  # tiles are of 128 days here
                days += 1
                assert days <= 200
                site.node.commit(a_change(put(www(f"192.0.2.{days}"))))
                job.timers.advance(DAY_US - 1)
                await asyncio.sleep(0)
                assert job.runs == days
                job.timers.advance(1)
                await job.until(days + 1)
        log = site.node.log
        assert verify(log, trust=trust_of([str(site.signer.key)])).is_whole  # type: ignore[arg-type]  # a log of ours

    asyncio.run(main())


def test_a_clock_that_was_set_years_ahead_makes_nothing_old(site: Site) -> None:
    async def main() -> None:
        site.live(300)
        site.clock.step_wall(3_000 * DAY_US)  # while the node was off
        job = Job(site)
        async with job.running():
            assert job.oldest == 0
            site.clock.step_wall(3_000 * DAY_US)  # and while it runs
            job.timers.advance(DAY_US)
            await job.until(2)
            assert job.oldest == 0

    asyncio.run(main())


def test_nothing_goes_while_the_log_says_that_the_clock_is_ahead(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        site.live(2 * DAYS)
        site.clock.step_wall(3_000 * DAY_US)
        site.live(1)
        job = Job(site)
        async with job.running():
            assert job.oldest == 0
        assert "the clock was set ahead" in caplog.text

    asyncio.run(main())


def test_a_retention_of_nothing_keeps_everything(site: Site) -> None:
    async def main() -> None:
        site.live(2 * DAYS)
        job = Job(site, timedelta(0))
        async with job.running():
            assert job.oldest == 0

    asyncio.run(main())


def test_what_cannot_be_pruned_is_told_and_tried_again_in_an_hour(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        site.live(2 * DAYS)
        job = Job(site)
        site.node.why_not_writable = StorageFailed("the disk is full")
        async with job.running():
            assert job.oldest == 0
            assert "events older than 400d stay: the disk is full" in caplog.text
            job.timers.advance(3_600 * 1_000_000)
            await job.until(2)

    asyncio.run(main())
