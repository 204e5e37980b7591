"""Runs the parts of a server: those that are always on, and those that one node of several does.

Always-on runnables start at once. Leader-only ones start as a group inside a term of an `Elector`,
and the term ends only after all of them returned: so "one leader at a time" is said of the work and
not only of the lock. Losing leadership ends the group and never the process; without leader-only
runnables nothing campaigns.

A leader-only runnable that fails is started again inside its term, after 1 s, doubling to 30 s. An
always-on one that ends is a fault, because a half-working name server is worse than none: the
server stops in order, and the fault is raised. So is an elector that cannot run at all.

The end has phases, in this order: lameduck; the term, after which the elector resigns; the
always-on runnables, the last that was added first. The last two have 30 s each. What has not
returned by then is named in the log and left behind.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NoReturn

import msgspec

from kudurru.domain.errors import Busy, Conflict, KudurruError
from kudurru.domain.ports import Clock, Elector, NamesLeader, Timers
from kudurru.entrypoints.leading import AlwaysLeader
from kudurru.entrypoints.waiting import pause, unfinished

log = logging.getLogger("kudurru")

SECOND_US = 1_000_000
BACK_OFF_US = 1 * SECOND_US
BACK_OFF_MAX_US = 30 * SECOND_US
"""Also how long a runnable must have run for its next fault to count as the first."""
PHASE_US = 30 * SECOND_US
"""Of a shutdown: longer than anything that is bounded takes, shorter than the patience of who kills
what does not end (systemd 90 s, Kubernetes with our chart 60 s)."""

INSIDE_MAX = 4
"""Faults of a group that are told."""

State = Literal["waiting", "running", "failed", "ended"]
"""Waiting for a term or for the next try; running; failed and not to be started again; ended."""

Runnable = Callable[[], Awaitable[object]]


class RunnableStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    leader_only: bool
    state: State
    restarts: int = 0  # after faults, since the start of the process
    fault: str = ""  # the newest


class RunnerStatus(msgspec.Struct, frozen=True, kw_only=True):
    role: str  # what is campaigned for
    is_leader: bool
    term: int  # how many this process has begun
    runnables: list[RunnableStatus]


class _Part:
    """One runnable, and how it is doing."""

    def __init__(
        self, name: str, fn: Runnable, *, leader_only: bool, stop: Runnable | None
    ) -> None:
        self.name = name
        self.fn = fn
        self.leader_only = leader_only
        self.stop = stop
        self.state: State = "waiting"
        self.restarts = 0
        self.fault = ""

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    def status(self) -> RunnableStatus:
        return RunnableStatus(
            name=self.name, leader_only=self.leader_only, state=self.state,
            restarts=self.restarts, fault=self.fault,
        )  # fmt: skip


class Runner:
    """`add` what is to run, then `run` it, once."""

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        elector: Elector | None = None,
        *,
        role: str = "controller",
    ) -> None:
        """Without an elector this node leads. `role` names what is campaigned for."""
        self._clock = clock
        self._timers = timers
        self._elector = elector or AlwaysLeader()
        self._role = role
        self._parts: list[_Part] = []
        self._is_leader = False
        self._term = 0
        self._has_begun = False
        self._faults: list[BaseException] = []  # that end the process badly; the first is raised
        self.left_behind: list[str] = []
        """Names of what did not return in time."""

    async def check_leads(self) -> None:
        """Return where this node leads. Raises: Conflict, which names the node that does; Busy
        while none does, StorageFailed where nobody can tell."""
        if self._is_leader:
            return
        name: str | None = ""
        if isinstance(self._elector, NamesLeader):
            name = await self._elector.leader()
        if self._is_leader:
            return
        if name is None:
            raise Busy("no node leads now; try again in some seconds")
        raise Conflict(f"the leader does this: ask {name or 'the other nodes'}")

    def add(
        self,
        name: str,
        fn: Runnable,
        leader_only: bool = False,
        *,
        stop: Runnable | None = None,
    ) -> None:
        """Before `run`. `fn` runs until it is cancelled; where there is a `stop`, until that was
        called, and then it returns by itself."""
        assert not self._has_begun, "what is added now would not run"
        assert all(part.name != name for part in self._parts), f"two runnables are named {name}"
        assert not (leader_only and stop), "a term is ended by cancelling"
        self._parts.append(_Part(name, fn, leader_only=leader_only, stop=stop))

    def status(self) -> RunnerStatus:
        return RunnerStatus(
            role=self._role, is_leader=self._is_leader, term=self._term,
            runnables=[part.status() for part in self._parts],
        )  # fmt: skip

    async def run(
        self, serve: Runnable, lameduck: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Run everything until `serve` returns or something fails, then end in order. `lameduck`
        is the first phase, and sees to its own end. Raises the first fault, of the end too."""
        self._has_begun = True
        group = [part for part in self._parts if part.leader_only]
        always_on = {
            part: asyncio.create_task(self._always(part), name=part.name)
            for part in self._parts
            if not part.leader_only
        }
        # No task group: that cancels all at once where a fault ends it, and this ends in order.
        serving = asyncio.create_task(_called(serve), name="serve")
        election = asyncio.create_task(self._elect(group), name="election") if group else None
        watched = {serving, *always_on.values()} | ({election} if election else set())
        try:
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            fault = _first_fault(done - {serving}) or _fault_of(serving)
            if fault is not None:
                self._faults.append(fault)
                log.error("the server stops: %s", _text(fault))
            if lameduck is not None:
                await lameduck()
        finally:
            serving.cancel()
            if election is not None:
                await self._end_term(election)
            await self._end_always_on(always_on)
        await asyncio.gather(serving, return_exceptions=True)
        if self._faults:
            raise self._faults[0]

    # --- always on ----------------------------------------------------------------------

    async def _always(self, part: _Part) -> None:
        part.state = "running"
        try:
            await part.fn()
        except BaseException as error:
            part.state = "ended" if _is_asked(error) else "failed"
            part.fault = "" if _is_asked(error) else _text(error)
            raise
        part.state = "ended"

    async def _end_always_on(self, tasks: dict[_Part, "asyncio.Task[None]"]) -> None:
        """One after the other, so that what others need is there until they ended."""
        ending = asyncio.create_task(self._end_in_turn(tasks), name="ending")
        if await unfinished([ending], self._timers, PHASE_US):
            ending.cancel()
            for task in tasks.values():
                task.cancel()
            left = await unfinished(tasks.values(), self._timers, SECOND_US)
            self._leave_behind([task.get_name() for task in left])
        await asyncio.gather(ending, return_exceptions=True)
        for task in tasks.values():
            self._note_late(task)

    async def _end_in_turn(self, tasks: dict[_Part, "asyncio.Task[None]"]) -> None:
        for part, task in reversed(tasks.items()):
            if not task.done():
                await self._ask_to_end(part, task)
                await asyncio.wait({task})
            self._note_late(task)

    async def _ask_to_end(self, part: _Part, task: "asyncio.Task[None]") -> None:
        if part.stop is None:
            task.cancel()
            return
        try:
            await part.stop()
        except Exception as error:  # and those below it are to end in order all the same
            self._tell_late(part.name, error)
            task.cancel()

    def _note_late(self, task: "asyncio.Task[Any]") -> None:
        """A fault of the lameduck, or of the end: the server ends anyway, but not well."""
        fault = _fault_of(task)
        if fault is not None and fault not in self._faults:
            self._tell_late(task.get_name(), fault)

    def _tell_late(self, name: str, fault: BaseException) -> None:
        self._faults.append(fault)
        log.error("%s failed as the server ended: %s", name, _text(fault))

    # --- terms --------------------------------------------------------------------------

    async def _elect(self, group: list[_Part]) -> NoReturn:
        try:
            while True:
                await self._elector.campaign()
                self._term += 1
                await self._lead(group)
                await self._elector.resign()
        finally:
            await self._elector.resign()

    async def _lead(self, group: list[_Part]) -> None:
        """One term: it is over when all that was done in it has returned."""
        tasks = [asyncio.create_task(self._keep(part), name=part.name) for part in group]
        self._is_leader = True
        try:
            await self._elector.lost()
            log.warning("another node may lead now (%s); its work ends here", self._role)
        finally:
            self._is_leader = False
            for task in tasks:
                task.cancel()
            while left := await unfinished(tasks, self._timers, PHASE_US):
                # Nobody else may begin, so there is nothing to do but to wait and say so.
                names = ", ".join(sorted(task.get_name() for task in left))
                log.error("the term cannot end: %s did not return in 30 s", names)
                for task in left:
                    task.cancel()  # one that lost the first, or began something else after it
            for task in tasks:
                if (fault := _fault_of(task)) is not None:
                    log.error("%s failed as its term ended: %s", task.get_name(), _text(fault))

    async def _keep(self, part: _Part) -> None:
        """Run it, and again when it fails, until the term ends. One that returns has done what
        there was to do in this term."""
        delay_us = BACK_OFF_US
        while True:
            begun_us = self._clock.monotonic_us()
            part.state = "running"
            try:
                await part.fn()
            except (Exception, asyncio.CancelledError) as error:
                part.state = "waiting"
                if _is_cancelling():  # whatever error was made of it
                    part.fault = part.fault if _is_asked(error) else _text(error)
                    raise
                if self._clock.monotonic_us() - begun_us >= BACK_OFF_MAX_US:
                    delay_us = BACK_OFF_US
                self._note_fault(part, error, delay_us)
            else:
                part.state = "ended"
                return
            await pause(self._timers, delay_us)
            delay_us = min(2 * delay_us, BACK_OFF_MAX_US)

    def _note_fault(self, part: _Part, error: BaseException, delay_us: int) -> None:
        part.restarts += 1
        part.fault = _text(error)
        inside = None if isinstance(error, KudurruError) else error
        again_s = delay_us // SECOND_US
        log.error("%s failed; again in %d s: %s", part.name, again_s, part.fault, exc_info=inside)

    async def _end_term(self, election: "asyncio.Task[Any]") -> None:
        election.cancel()
        if await unfinished([election], self._timers, PHASE_US):
            working = [p.name for p in self._parts if p.leader_only and p.is_running]
            self._leave_behind(working or ["election"])
        self._note_late(election)

    def _leave_behind(self, names: list[str]) -> None:
        if names:
            self.left_behind += names
            log.error("the server ends without waiting any longer for %s", ", ".join(names))


async def _called(fn: Runnable) -> None:
    await fn()


def _is_asked(error: BaseException) -> bool:
    """Whether a task is cancelled because somebody cancelled it; one that waits for something that
    was cancelled gets the same exception."""
    return isinstance(error, asyncio.CancelledError) and _is_cancelling()


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _text(error: BaseException) -> str:
    """Of a group of tasks also what is inside it, or nobody would know why it ended."""
    if isinstance(error, BaseExceptionGroup):
        inside = "; ".join(_text(one) for one in error.exceptions[:INSIDE_MAX])
        return f"{type(error).__name__}: {error.message}: {inside}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _fault_of(task: "asyncio.Future[Any]") -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _first_fault(ended: set["asyncio.Task[Any]"]) -> BaseException | None:
    """Of tasks that should not have ended."""
    for task in ended:
        return _fault_of(task) or KudurruError(f"{task.get_name()} ended by itself")
    return None
