"""The runner: terms, restarts, and the order in which everything ends. Time is a test's own."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NoReturn

import pytest

from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.memory.timers import ManualTimers
from kudurru.domain.errors import Invalid, KudurruError, StorageFailed
from kudurru.domain.ports import Elector
from kudurru.entrypoints.health import runner_samples
from kudurru.entrypoints.runner import PHASE_US, SECOND_US, RunnableStatus, Runner

PATIENCE_S = 60


class Granting:
    """An elector in the hands of a test."""

    def __init__(self) -> None:
        self.granted = asyncio.Event()
        self.revoked = asyncio.Event()
        self.campaigns = 0
        self.resigned = 0

    def grant(self) -> None:
        self.revoked.clear()
        self.granted.set()

    def revoke(self) -> None:
        self.granted.clear()
        self.revoked.set()

    async def campaign(self) -> None:
        self.campaigns += 1
        await self.granted.wait()

    async def lost(self) -> None:
        await self.revoked.wait()

    async def resign(self) -> None:
        self.resigned += 1


class Impossible(Granting):
    """One that cannot run at all."""

    async def campaign(self) -> None:
        raise Invalid("elector", [])


class Rig:
    """A runner, and a diary of what happened to what it runs."""

    def __init__(self, elector: Elector | None = None) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.runner = Runner(self.clock, self.timers, elector)
        self.diary: list[str] = []
        self.stopping = asyncio.Event()

    def add(self, name: str, *, leader_only: bool = False) -> None:
        self.runner.add(name, lambda: self.work(name), leader_only)

    async def work(self, name: str) -> NoReturn:
        self.diary.append(f"{name} begins")
        try:
            await asyncio.Event().wait()
        finally:
            self.diary.append(f"{name} ends")
        raise AssertionError

    async def serve(self) -> None:
        self.diary.append("serving")
        await self.stopping.wait()

    async def lameduck(self) -> None:
        self.diary.append("lameduck")

    def start(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self.runner.run(self.serve, self.lameduck))

    async def until(self, happened: str | Callable[[], object]) -> None:
        is_so = happened if callable(happened) else lambda: happened in self.diary
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                await asyncio.sleep(0)

    def named(self, name: str) -> RunnableStatus:
        return next(one for one in self.runner.status().runnables if one.name == name)


async def turns() -> None:
    """Long enough for what is not to happen."""
    for _ in range(200):
        await asyncio.sleep(0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]  # a coroutine function


# --- always on ------------------------------------------------------------------------------


def test_always_on_runnables_run_before_and_without_leadership() -> None:
    async def test() -> None:
        rig = Rig(Granting())
        rig.add("dns")
        rig.add("prune", leader_only=True)
        task = rig.start()
        await rig.until("serving")
        await rig.until("dns begins")
        await turns()
        assert "prune begins" not in rig.diary
        assert not rig.runner.status().is_leader
        rig.stopping.set()
        await task

    run(test)


def test_without_leader_only_runnables_nothing_campaigns() -> None:
    async def test() -> None:
        elector = Impossible()
        rig = Rig(elector)
        rig.add("dns")
        task = rig.start()
        await rig.until("dns begins")
        rig.stopping.set()
        await task
        assert not elector.resigned

    run(test)


@pytest.mark.parametrize("fault", [StorageFailed("the disk is full"), ZeroDivisionError("oops")])
def test_an_always_on_failure_ends_everything_in_order_and_is_raised(fault: Exception) -> None:
    async def test() -> None:
        rig = Rig()
        breaking = asyncio.Event()

        async def breaks() -> None:
            await breaking.wait()
            raise fault

        rig.add("first")
        rig.runner.add("breaks", breaks)
        rig.add("prune", leader_only=True)
        task = rig.start()
        await rig.until("prune begins")
        breaking.set()
        with pytest.raises(type(fault)) as raised:
            await task
        assert raised.value is fault
        assert rig.diary[-3:] == ["lameduck", "prune ends", "first ends"]
        assert rig.named("breaks").state == "failed"
        assert str(fault) in rig.named("breaks").fault

    run(test)


def test_what_ended_a_group_of_tasks_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        rig = Rig()

        async def fails() -> None:
            raise RecursionError("too deep")

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fails())

        rig.runner.add("breaks", group)
        with pytest.raises(ExceptionGroup):
            await rig.start()
        assert "RecursionError: too deep" in rig.named("breaks").fault
        assert "RecursionError: too deep" in caplog.text

    run(test)


def test_an_always_on_runnable_that_returns_is_a_fault_too() -> None:
    async def test() -> None:
        rig = Rig()

        async def returns() -> None:
            """Nothing to do."""

        rig.runner.add("returns", returns)
        with pytest.raises(KudurruError, match="returns ended by itself"):
            await rig.start()

    run(test)


def test_what_serves_may_fail_and_everything_ends() -> None:
    async def test() -> None:
        rig = Rig()
        rig.add("dns")

        async def serve() -> None:
            await rig.until("dns begins")
            raise Invalid("lists.startup", [])

        with pytest.raises(Invalid):
            await rig.runner.run(serve)
        assert rig.diary == ["dns begins", "dns ends"]

    run(test)


# --- terms ----------------------------------------------------------------------------------


def test_leadership_is_granted_revoked_and_granted_again_and_the_server_runs_on() -> None:
    async def test() -> None:
        elector = Granting()
        rig = Rig(elector)
        rig.add("dns")
        for name in ("prune", "catalogs"):
            rig.add(name, leader_only=True)
        task = rig.start()
        for term in range(1, 4):
            elector.grant()
            await rig.until(lambda term=term: rig.diary.count("catalogs begins") == term)  # type: ignore[misc]
            status = rig.runner.status()
            assert (status.is_leader, status.term) == (True, term)
            elector.revoke()
            await rig.until(lambda term=term: elector.campaigns == term + 1)  # type: ignore[misc]
            assert rig.diary.count("prune ends") == rig.diary.count("catalogs ends") == term
            assert not rig.runner.status().is_leader
        assert "dns ends" not in rig.diary
        rig.stopping.set()
        await task

    run(test)


def test_a_term_ends_only_after_all_of_its_work_returned(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        elector, may_end = Granting(), asyncio.Event()
        rig = Rig(elector)

        async def stubborn() -> None:
            while not may_end.is_set():
                with suppress(asyncio.CancelledError):
                    await may_end.wait()

        rig.runner.add("stubborn", stubborn, leader_only=True)
        rig.add("prune", leader_only=True)
        task = rig.start()
        elector.grant()
        await rig.until("prune begins")
        elector.revoke()
        await rig.until("prune ends")
        rig.timers.advance(PHASE_US)
        await rig.until(lambda: "stubborn did not return" in caplog.text)
        assert (elector.campaigns, elector.resigned) == (1, 0)
        may_end.set()
        await rig.until(lambda: elector.campaigns == 2)
        assert elector.resigned == 1
        rig.stopping.set()
        await task

    run(test)


@pytest.mark.parametrize("first", ["won", "stopped"])
def test_a_stop_that_comes_with_the_win_wins_and_leadership_is_given_back(first: str) -> None:
    async def test() -> None:
        elector = Granting()
        rig = Rig(elector)
        rig.add("prune", leader_only=True)
        task = rig.start()
        await rig.until(lambda: elector.campaigns == 1)
        for event in ("won", "stopped") if first == "won" else ("stopped", "won"):
            elector.grant() if event == "won" else rig.stopping.set()
        await task
        assert elector.resigned > 0
        assert rig.diary.count("prune begins") == rig.diary.count("prune ends")
        assert elector.campaigns == 1

    run(test)


def test_work_that_makes_another_error_of_its_cancellation_ends_with_its_term(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        elector = Granting()
        rig = Rig(elector)

        async def translates() -> None:
            try:
                await rig.work("translates")
            except asyncio.CancelledError:
                raise StorageFailed("the connection is closed") from None

        rig.runner.add("translates", translates, leader_only=True)
        task = rig.start()
        elector.grant()
        await rig.until("translates begins")
        elector.revoke()
        await rig.until("translates ends")
        await turns()
        assert (elector.campaigns, rig.diary.count("translates begins")) == (2, 1)
        assert "translates failed as its term ended: StorageFailed: the conn" in caplog.text
        rig.stopping.set()
        await task

    run(test)


def test_work_that_lost_its_cancellation_is_cancelled_again() -> None:
    async def test() -> None:
        elector = Granting()
        rig = Rig(elector)

        async def loses() -> None:
            with suppress(asyncio.CancelledError):
                await rig.work("lost")
            await rig.work("next")

        rig.runner.add("loses", loses, leader_only=True)
        task = rig.start()
        elector.grant()
        await rig.until("lost begins")
        elector.revoke()
        await rig.until("next begins")
        rig.timers.advance(PHASE_US)
        await rig.until(lambda: elector.campaigns == 2)
        assert rig.diary[-1] == "next ends"
        rig.stopping.set()
        await task

    run(test)


def test_a_failing_leader_only_runnable_begins_again_in_its_term_after_1_to_30_seconds() -> None:
    async def test() -> None:
        rig = Rig()
        begun: list[int] = []
        longer_us = 0

        async def fails() -> None:
            begun.append(rig.clock.monotonic_us())
            rig.clock.advance(longer_us)
            raise StorageFailed("the disk is full")

        rig.runner.add("fails", fails, leader_only=True)
        rig.add("prune", leader_only=True)
        task = rig.start()
        for seconds in (1, 2, 4, 8, 16, 30, 30):
            await rig.until(lambda: rig.named("fails").state == "waiting" and begun)
            before = len(begun)
            rig.timers.advance(seconds * SECOND_US - 1)
            await turns()
            assert len(begun) == before
            rig.timers.advance(1)
            await rig.until(lambda before=before: len(begun) > before)  # type: ignore[misc]
        longer_us = 30 * SECOND_US  # it ran for a while: the next fault counts as the first
        await rig.until(lambda: rig.named("fails").state == "waiting")
        rig.timers.advance(30 * SECOND_US)
        await rig.until(lambda: len(begun) == 9 and rig.named("fails").state == "waiting")
        rig.timers.advance(SECOND_US)
        await rig.until(lambda: len(begun) == 10)
        assert rig.runner.status().term == 1
        assert "prune ends" not in rig.diary
        assert rig.named("fails").restarts >= 9
        assert rig.named("fails").fault == "StorageFailed: the disk is full"
        rig.stopping.set()
        await task

    run(test)


def test_work_that_waits_for_something_cancelled_has_failed_and_begins_again() -> None:
    async def test() -> None:
        rig = Rig()
        times = 0

        async def waits() -> None:
            nonlocal times
            times += 1
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone

        rig.runner.add("waits", waits, leader_only=True)
        task = rig.start()
        await rig.until(lambda: rig.named("waits").restarts == 1)
        rig.timers.advance(SECOND_US)
        await rig.until(lambda: times == 2)
        rig.stopping.set()
        await task

    run(test)


def test_work_that_is_done_is_left_alone_until_the_next_term() -> None:
    async def test() -> None:
        elector = Granting()
        rig = Rig(elector)

        async def once() -> None:
            rig.diary.append("once")

        rig.runner.add("once", once, leader_only=True)
        rig.add("prune", leader_only=True)
        task = rig.start()
        elector.grant()
        await rig.until("prune begins")
        await rig.until("once")
        await turns()
        assert rig.named("once").state == "ended"
        elector.revoke()
        await rig.until(lambda: elector.campaigns == 2)
        elector.grant()
        await rig.until(lambda: rig.diary.count("once") == 2)
        rig.stopping.set()
        await task

    run(test)


def test_an_elector_that_cannot_run_ends_the_server() -> None:
    async def test() -> None:
        rig = Rig(Impossible())
        rig.add("dns")
        rig.add("prune", leader_only=True)
        with pytest.raises(Invalid):
            await rig.start()
        assert rig.diary[-2:] == ["lameduck", "dns ends"]

    run(test)


# --- ending ---------------------------------------------------------------------------------


def test_everything_ends_in_the_order_of_the_phases() -> None:
    async def test() -> None:
        rig = Rig()

        class Diarist(Granting):
            async def resign(self) -> None:
                rig.diary.append("resigned")

        elector = Diarist()
        rig.runner = Runner(rig.clock, rig.timers, elector)
        writer_may_end = asyncio.Event()

        async def writer() -> None:
            await writer_may_end.wait()
            rig.diary.append("writer ends")

        async def stop_writer() -> None:
            rig.diary.append("writer stops")
            writer_may_end.set()

        rig.runner.add("writer", writer, stop=stop_writer)
        rig.add("second")
        rig.add("prune", leader_only=True)
        rig.add("third")
        elector.grant()
        task = rig.start()
        await rig.until("prune begins")
        rig.diary.clear()
        rig.stopping.set()
        await task
        assert rig.diary == [
            "lameduck", "prune ends", "resigned",
            "third ends", "second ends", "writer stops", "writer ends",
        ]  # fmt: skip
        assert {one.state for one in rig.runner.status().runnables} == {"ended", "waiting"}
        assert not rig.runner.left_behind

    run(test)


def test_a_phase_has_30_seconds_and_stragglers_are_named(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        elector, over = Granting(), asyncio.Event()
        rig = Rig(elector)

        async def stubborn() -> None:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    rig.diary.append("deaf")

        rig.add("first")
        rig.runner.add("deaf and on", stubborn)
        rig.runner.add("deaf leader", stubborn, leader_only=True)
        rig.add("prune", leader_only=True)
        elector.grant()
        task = rig.start()
        await rig.until("prune begins")
        rig.stopping.set()
        await rig.until("prune ends")
        rig.timers.advance(PHASE_US - 1)
        await turns()
        assert not rig.runner.left_behind
        rig.timers.advance(1)
        await rig.until(lambda: rig.diary.count("deaf") == 3)  # the leader was asked again
        assert rig.runner.left_behind == ["deaf leader"]
        rig.timers.advance(PHASE_US)
        await rig.until("first ends")
        rig.timers.advance(SECOND_US)
        await task
        assert rig.runner.left_behind == ["deaf leader", "deaf and on"]
        assert elector.resigned == 0, "another would lead while this one still works"
        for name in rig.runner.left_behind:
            assert f"without waiting any longer for {name}" in caplog.text
        over.set()
        await turns()

    run(test)


def test_an_elector_that_does_not_resign_is_left_behind() -> None:
    async def test() -> None:
        class Clinging(Granting):
            async def resign(self) -> None:
                rig.diary.append("resigning")
                await asyncio.Event().wait()

        elector = Clinging()
        rig = Rig(elector)
        rig.add("first")
        rig.add("prune", leader_only=True)
        elector.grant()
        task = rig.start()
        await rig.until("prune begins")
        rig.stopping.set()
        await rig.until("resigning")
        rig.timers.advance(PHASE_US)
        await task
        assert rig.runner.left_behind == ["election"]
        assert rig.diary[-1] == "first ends"

    run(test)


def test_a_fault_while_ending_is_told_and_raised_when_the_rest_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        rig = Rig()

        async def trips() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise StorageFailed("the disk is full")

        rig.add("first")
        rig.runner.add("trips", trips)
        task = rig.start()
        await rig.until("first begins")
        rig.stopping.set()
        with pytest.raises(StorageFailed):
            await task
        assert rig.diary[-1] == "first ends"
        assert "trips failed as the server ended: StorageFailed: the disk is full" in caplog.text

    run(test)


@pytest.mark.parametrize("leader_only", [False, True])
def test_a_fault_of_the_lameduck_is_raised_too(
    leader_only: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        elector, breaking = Granting(), asyncio.Event()
        rig = Rig(elector)

        async def breaks() -> None:
            await breaking.wait()
            raise Invalid("elector", [])

        elector.campaign = breaks  # type: ignore[method-assign]  # in the hands of this test
        rig.runner.add("breaks", rig.stopping.wait if leader_only else breaks, leader_only)
        rig.add("first")

        async def lameduck() -> None:
            breaking.set()
            await turns()

        task = asyncio.create_task(rig.runner.run(rig.serve, lameduck))
        await rig.until("first begins")
        rig.stopping.set()
        with pytest.raises(Invalid):
            await task
        assert rig.diary[-1] == "first ends"
        name = "election" if leader_only else "breaks"
        assert f"{name} failed as the server ended: Invalid" in caplog.text

    run(test)


def test_a_stop_that_fails_keeps_nobody_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        rig = Rig()

        async def stop() -> None:
            raise StorageFailed("the disk is full")

        rig.add("first")
        rig.runner.add("writer", lambda: rig.work("writer"), stop=stop)
        task = rig.start()
        await rig.until("writer begins")
        rig.stopping.set()
        with pytest.raises(StorageFailed):
            await task
        assert rig.diary[-2:] == ["writer ends", "first ends"]

    run(test)


# --- telling --------------------------------------------------------------------------------


def test_status_and_gauges_say_what_runs_here() -> None:
    async def test() -> None:
        elector = Granting()
        rig = Rig(elector)
        rig.add("dns")
        rig.add("prune", leader_only=True)
        task = rig.start()
        await rig.until("dns begins")

        def shown() -> dict[tuple[Any, ...], float]:
            samples = runner_samples(rig.runner.status())
            return {(s.name, *s.labels): float(s.value) for s in samples}

        assert shown() == {
            ("leader", "controller"): 0,
            ("role_active", "dns"): 1,
            ("role_restarts_total", "dns"): 0,
            ("role_active", "prune"): 0,
            ("role_restarts_total", "prune"): 0,
        }
        elector.grant()
        await rig.until("prune begins")
        assert shown()["leader", "controller"] == shown()["role_active", "prune"] == 1
        rig.stopping.set()
        await task

    run(test)


def test_two_runnables_of_one_name_are_a_bug() -> None:
    async def test() -> None:
        rig = Rig()
        rig.add("dns")
        with pytest.raises(AssertionError, match="two runnables are named dns"):
            rig.add("dns")

    run(test)
