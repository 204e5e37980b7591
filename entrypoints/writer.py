"""The one writer of a node: drains a queue of changes into one transaction (group commit).

Concurrent callers share one fsync, and every change is decided against the newest state, so
optimistic concurrency needs no locks. Acknowledged means: durable in the log, applied to the views,
dropped from the answers that depended on it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, Protocol

import msgspec

from kudurru.adapters.timers import LoopTimers
from kudurru.domain.checkpoint import SOURCE
from kudurru.domain.commands import UpdateStatus
from kudurru.domain.errors import (
    Busy,
    Conflict,
    KudurruError,
    LogDamaged,
    NotFound,
    Stop,
    StorageBroken,
    StorageFailed,
)
from kudurru.domain.events import ChangeSet, Position, Recorded, Who
from kudurru.domain.histogram import Histogram, Times
from kudurru.domain.notation import duration_text
from kudurru.domain.ports import StoredCheckpoint, Timers, VerifiableLog
from kudurru.entrypoints import upkeep
from kudurru.entrypoints.checkpoints import Checkpointer, Plan
from kudurru.entrypoints.steps import no_collections, unhurried
from kudurru.entrypoints.upkeep import PruneRequest, Pruning, Redaction, RedactRequest
from kudurru.entrypoints.waiting import pause
from kudurru.entrypoints.wiring import (
    ATTEMPTS_MAX,
    BUSY,
    STEPPED_MIN,
    Change,
    Node,
    Overtaken,
    Result,
)

log = logging.getLogger("kudurru")

QUEUE_MAX = 4_096
NEWS_MAX = 500
"""Events of other nodes that are applied before the loop may answer a query."""

GROUP_MAX = 512
"""Changes in one transaction: past this the fsync is a small part of the cost."""

TURNS_MAX = 8
"""Of the loop, until a group is taken: a crowd is there after two or three, and who comes first
waits for no more of them than that."""

SETTLED_MAX = 64
"""Objects, and owners in zones, that are counted into digests while an append waits for its disk:
half a millisecond, which it takes at least."""

STAMP_RETRY_S = 5.0
"""After a stamp that could not be written: a full disk stays full for a while."""


STOPPING = "the server is stopping: nothing was changed; try again when it is back"

SIGNINGS_MAX = 64
"""Checkpoints that are waited for: more than there are connections to ask for one."""

Make = Callable[[int], Plan | None]
"""(now, microseconds UTC) to what is to be signed; None when it is already."""


class WriterStatistics(msgspec.Struct, frozen=True):
    changes: int
    groups: int
    refused_full: int
    failed: int  # changes that the log did not take
    stamps_refused: int
    catch_ups_failed: int  # the log of several nodes could not be read
    checkpoint_size: int | None  # events under the newest checkpoint, None before the first
    append_times: Times  # until what was appended was durable
    published_us: int  # when one went out last, microseconds UTC, 0: never


class Elsewhere(Protocol):
    """Who carries out changes of objects that this log does not own."""

    def takes(self, change: Change) -> bool: ...

    async def submit(self, change: Change) -> Result:
        """As `Writer.submit`: what came of it is in the log when this returns."""
        ...


class Waiter(Protocol):
    """Who is told what became of a change. Futures are such; the others must not raise."""

    def done(self) -> bool:
        """Whether it wants to hear no more."""
        ...

    def set_result(self, result: Result, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class Writer:
    """Runs as one task; `submit` from any other."""

    def __init__(self, node: Node, checkpointer: Checkpointer | None = None) -> None:
        """Without a checkpointer nothing is signed: the log is damaged, or kept in memory."""
        self._node = node
        self._checkpointer = checkpointer
        self._signings: deque[tuple[Make, asyncio.Future[StoredCheckpoint]]] = deque()
        self._queue: deque[tuple[Change, Waiter]] = deque()
        self._wake = asyncio.Event()
        self._is_stamp_due = False
        self._is_behind = False
        self._is_stopping = False
        self._imported: dict[str, int] = {}  # serials that wait for the stamp of their zone
        self._retry: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        # One of its own, in which what appending needs stays near: those that all share take turns.
        self._thread = ThreadPoolExecutor(1, "append")
        self._is_appending = False
        self._append_times = Histogram()
        self.coalesce_s = 0.0  # of `keep_stamped`
        self._changes = self._groups = self._refused = self._failed = self._stamps_refused = 0
        self._catch_ups_failed = 0
        self.applying = asyncio.Lock()
        """Held while events are taken in, which has breaks: who reads objects waits for its end,
        and never sees a part of a change. DNS does not wait: it sees zones as they were before."""
        self.on_applied = asyncio.Event()
        """Set after each group that wrote something."""
        self.listeners: list[Callable[[list[Recorded]], None]] = []
        """Told of events once they are in the views."""
        self.on_recorded = asyncio.Event()
        """Set after each append, that of a stamp too."""
        self.elsewhere: Elsewhere | None = None
        self.may_stamp: Callable[[], bool] = lambda: True
        """Serials are one node's to give where several follow one cluster."""

    def statistics(self) -> WriterStatistics:
        return WriterStatistics(
            changes=self._changes,
            groups=self._groups,
            refused_full=self._refused,
            failed=self._failed,
            stamps_refused=self._stamps_refused,
            checkpoint_size=self._checkpointer.size if self._checkpointer else None,
            published_us=self._checkpointer.published_us if self._checkpointer else 0,
            catch_ups_failed=self._catch_ups_failed,
            append_times=self._append_times.times(),
        )

    async def submit(self, change: Change) -> Result:
        """Raises what `decide` refuses with; Busy when the queue is full or the writer stops;
        StorageFailed when the log cannot be written, and then nothing was; StorageBroken when
        that is not known."""
        self._check_not_stopping()
        if self.elsewhere is not None and not change.is_own and self.elsewhere.takes(change):
            return await self.elsewhere.submit(change)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.submit_soon(change, future)
        return await future

    def submit_soon(self, change: Change, waiter: Waiter) -> None:
        """As `submit`, of a change that is written here, for who has no task to wait in: what comes
        of it is told to the waiter. Raises: Busy."""
        self._check_not_stopping()
        if len(self._queue) >= QUEUE_MAX:
            self._refused += 1
            raise Busy(f"{QUEUE_MAX} changes wait to be written; try again")
        self._queue.append((change, waiter))
        self._wake.set()

    def request_stamp(self) -> None:
        """Stamp, between two groups, every zone whose content is not what its serial says."""
        self._is_stamp_due = True
        self._wake.set()

    async def checkpoint(self) -> StoredCheckpoint:
        """The checkpoint of the whole log; a new one when there is none. Raises: NotFound without
        a key; what `submit` raises."""
        signer = self._signer()

        def make(now_us: int) -> Plan | None:
            return None if signer.current() else signer.plan(now_us)

        return await self._sign_soon(make)

    async def rotate_key(self, who: Who) -> StoredCheckpoint:
        """A new key signs from here on. Raises as `checkpoint` does."""
        signer = self._signer()
        return await self._sign_soon(lambda now_us: signer.rotation(who, now_us))

    async def begin_epoch(self, begin: Callable[[], list[Recorded]]) -> Recorded:
        """Take in all of a log that was copied, then what `begin` appends; in between nobody
        writes. Raises: what `begin` does."""
        self._check_not_stopping()
        async with self._writing:
            await self._catch_up()
            recorded = await asyncio.to_thread(begin)
            self._node.take_in(recorded)
            self._count(recorded)
            return recorded[0]

    def sign_with(self, checkpointer: Checkpointer) -> None:
        """From now on, where nothing was signed before."""
        self._checkpointer = checkpointer

    async def redact(self, request: RedactRequest, who: Who) -> Redaction:
        """Erase a payload. Raises: what `upkeep.redaction` refuses with; what `submit` raises."""
        signer, node = self._signer(), self._node
        done: list[Redaction] = []

        def make(now_us: int) -> Plan:
            redaction = upkeep.redaction(node, request)
            done[:] = [redaction]
            return signer.upkeep(redaction.change_set(who, now_us), redaction.upkeep, now_us)

        # What a serial names must not be what is erased, or a replay would not find it.
        self.request_stamp()
        await self._sign_soon(make)
        return done[0]

    async def prune(self, request: PruneRequest, who: Who) -> Pruning | None:
        """Let rows go; None when there is nothing to prune. Raises: Conflict when another pruning
        was faster; what `submit` raises."""
        signer, node = self._signer(), self._node
        log: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
        pruning = await asyncio.to_thread(upkeep.plan_pruning, log, request.before)
        if pruning is None or request.dry_run:
            return pruning

        def make(now_us: int) -> Plan:
            change_set = pruning.change_set(node, who, now_us)
            return signer.upkeep(change_set, pruning.upkeep, now_us)

        await self._sign_soon(make)
        return pruning

    async def prune_old(self, retention: timedelta, now_us: int) -> Pruning | None:
        """For a daily job: let go what is older than that. Raises as `prune` does."""
        before = await asyncio.to_thread(upkeep.older_than, retention, self._node.log, now_us)
        reason = f"older than {duration_text(retention)}"
        who = Who(actor="system", source="retention", reason=reason)
        return await self.prune(PruneRequest(before=before), who)

    def _signer(self) -> Checkpointer:
        if self._checkpointer is None:
            self._node.check_writable()
            raise NotFound("this log has no key: it is not kept in a data directory")
        return self._checkpointer

    async def _sign_soon(self, make: Make) -> StoredCheckpoint:
        self._check_not_stopping()
        if len(self._signings) >= SIGNINGS_MAX:
            raise Busy(f"{SIGNINGS_MAX} checkpoints are being made; try again")
        future: asyncio.Future[StoredCheckpoint] = asyncio.get_running_loop().create_future()
        self._signings.append((make, future))
        self._wake.set()
        return await future

    def follow(self) -> None:
        """From now on take in what other nodes append. On the loop that `run` is on."""
        self._node.log.follow(self.news_from_elsewhere())

    def news_from_elsewhere(self) -> Callable[[], None]:
        """What to call, from any thread, when the log may hold what this process did not append.
        On the loop that `run` is on."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            # The last news may come when the loop has ended and the log is not closed yet.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._request_catch_up)

        return wake

    def _request_catch_up(self) -> None:
        self._is_behind = True
        self._wake.set()

    async def let_time_pass(self) -> None:
        """Let go what has expired, and not while a write is on its way: what is decided for one
        moment must be applied at that moment, as it is in every replay."""
        async with self._writing:
            self._node.advance()

    def stop(self) -> None:
        """Take nothing more; `run` ends when everybody who waits has an answer."""
        self._is_stopping = True
        self._wake.set()

    def _check_not_stopping(self) -> None:
        if self._is_stopping:
            raise Busy(STOPPING)

    async def run(self) -> None:
        """Write until `stop`. Where a fault ends it, nobody waits for what is not written."""
        self._node.log.on_wait(partial(_call_on, asyncio.get_running_loop(), self._use_the_wait))
        try:
            await self._write_until_stopped()
        finally:
            self._is_stopping = True
            self._thread.shutdown(wait=False)  # it may be in the middle of what it was given
            waiting: list[Waiter | asyncio.Future[Any]] = [waiter for _, waiter in self._queue]
            for waiter in waiting + [future for _, future in self._signings]:
                if not waiter.done():
                    waiter.set_exception(Busy(STOPPING))

    async def _write_until_stopped(self) -> None:
        while self._queue or self._signings or not self._is_stopping:
            await self._wake.wait()
            await self._let_come()
            group = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_MAX))]
            if not self._queue:
                self._wake.clear()
            async with self._writing:
                if self._is_behind:
                    await self._follow()
                if group:
                    await self._commit(group)
                if self._is_stamp_due:
                    self._is_stamp_due = False
                    await self._stamp_unstamped(only_new=False)
                while self._signings:
                    await self._sign(*self._signings.popleft())

    async def _let_come(self) -> None:
        """Callers who were just answered, or whose requests are being read, come along: for one
        turn of the loop, and as long as each turn brings more. Without that those who come one by
        one would have a transaction each, and a crowd several."""
        for _ in range(TURNS_MAX):
            before = len(self._queue)
            await asyncio.sleep(0)
            if not before < len(self._queue) < GROUP_MAX:
                return

    async def _follow(self) -> None:
        """Where the log cannot be read, views stay as they are until it calls again: answers are
        right as of then."""
        self._is_behind = False  # first: what comes meanwhile asks again
        try:
            await self._catch_up()
        except KudurruError:
            self._is_behind = True
            self._catch_ups_failed += 1

    async def _sign(self, make: Make, future: asyncio.Future[StoredCheckpoint]) -> None:
        try:
            found = await self._append_signed(make)
        except KudurruError as error:
            if isinstance(error, Stop):
                self._stop_writing_if_broken(error)
            if not future.done():
                future.set_exception(error)
        except BaseException as error:
            if not future.done():
                future.set_exception(_in_doubt(error))
            raise
        else:
            if not future.done():
                future.set_result(found)

    async def _append_signed(self, make: Make) -> StoredCheckpoint:
        node, signer = self._node, self._signer()
        node.check_writable()
        log: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
        for _ in range(ATTEMPTS_MAX):
            now_us = node.clock.now_us()
            await self._note_clock(now_us)
            if log.is_shared:
                await asyncio.to_thread(signer.refresh)
            plan = await asyncio.to_thread(make, now_us)  # which asks the log
            if plan is None:
                found = await asyncio.to_thread(signer.current)
                assert found is not None
                return found
            at_us = node.time_for_events_us(now_us)
            try:
                recorded = await asyncio.to_thread(plan.append, log, at_us)
            except Conflict:
                if not log.is_shared:
                    raise
                await self._catch_up()
                continue
            node.take_in(recorded)
            plan.done()
            return await asyncio.to_thread(signer.taken)
        raise Busy(BUSY)

    async def _commit(self, group: list[tuple[Change, Waiter]]) -> None:
        try:
            changes = [change for change, _ in group]
            is_large = sum(len(change.commands) for change in changes) >= STEPPED_MIN
            with no_collections() if is_large else nullcontext():
                results = await self._write(changes)
        except KudurruError as error:
            results = [error] * len(group)
            if isinstance(error, Stop):
                self._failed += len(group)
                self._stop_writing_if_broken(error)
        except BaseException as error:
            # What is durable is not known: no caller is told that it is, and the server stops.
            for _, waiter in group:
                if not waiter.done():
                    waiter.set_exception(_in_doubt(error))
            raise
        self._groups += 1
        self._changes += len(group)
        for (_, waiter), result in zip(group, results, strict=True):
            if waiter.done():
                continue  # the caller went away; what it asked for happened all the same
            if isinstance(result, KudurruError):
                waiter.set_exception(result)
            else:
                waiter.set_result(result)

    async def _write(self, changes: list[Change]) -> list[Result | KudurruError]:
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self._decide_and_append(changes)
            except Overtaken:
                await self._catch_up()
        raise Busy(BUSY)

    async def _decide_and_append(self, changes: list[Change]) -> list[Result | KudurruError]:
        node = self._node
        now_us = node.clock.now_us()
        decided_at = node.position
        decided = await unhurried(node.decide_steps(changes, now_us))
        written = [d for d in decided if not isinstance(d, KudurruError) and d.events]
        if not written:
            return node.results(decided, [])
        sets = [
            ChangeSet(
                tuple(d.events),
                msgspec.structs.replace(d.change.who, wall=now_us),
                d.change.secrets,
            )
            for d in written
        ]
        await self._note_clock(now_us)
        # What was decided of several objects together holds only where it was decided.
        spans = any(len(d.change.commands) > 1 or d.change.guard is not None for d in written)
        recorded = await self._append(sets, now_us, decided_at if spans else None)
        for one in written:
            self._imported |= one.change.imported_serials
        # Zones that never had a serial get their first, and imported ones that of their file,
        # before the change is acknowledged. A crash in between leaves a zone unstamped; the next
        # start stamps it.
        stamped = await self._stamp_unstamped(only_new=not self._imported)
        if any(change.who.source == SOURCE for change in changes):
            # Before anything else happens: what a publication leads to asks for no checkpoint.
            stamped += await self._stamp_unstamped(only_new=False, source=SOURCE)
            if self._checkpointer is not None:
                self._checkpointer.published_us = now_us
        self.on_applied.set()
        return await unhurried(node.results_steps(decided, recorded, stamped))

    async def _append(
        self, sets: list[ChangeSet], now_us: int, decided_at: Position | None
    ) -> list[Recorded]:
        """The fsync runs in a thread, so that DNS is answered meanwhile. Nothing else decides or
        applies until this returns: there is one writer. Raises: Overtaken."""
        node = self._node
        at_us = node.time_for_events_us(now_us)
        began_us = node.clock.monotonic_us()
        loop = asyncio.get_running_loop()
        self._is_appending = True
        try:
            recorded = await loop.run_in_executor(
                self._thread, node.append, sets, at_us, decided_at
            )
        finally:
            self._is_appending = False
        self._append_times.add(node.clock.monotonic_us() - began_us)
        if recorded and recorded[0].seq != node.position + 1:
            await self._catch_up()  # others were there before, and ours come with theirs
            return recorded
        try:
            async with self.applying:
                await unhurried(node.take_in_steps(recorded))
        except (StorageFailed, LogDamaged) as error:  # views read older events for what changed
            raise StorageBroken(
                f"position {recorded[0].seq} is recorded, and the views could not follow: {error}"
            ) from error
        self._count(recorded)
        return recorded

    def _use_the_wait(self) -> None:
        """While the disk is waited for. Not later: then a checkpoint may be in the making, which
        reads the same digests in another thread."""
        if self._is_appending:
            self._node.settle_some(SETTLED_MAX)

    def _count(self, recorded: list[Recorded]) -> None:
        if self._checkpointer is not None:
            self._checkpointer.count(recorded)
        for listener in self.listeners:
            listener(recorded)
        self.on_recorded.set()

    async def _catch_up(self) -> None:
        node = self._node
        while news := await asyncio.to_thread(node.news, NEWS_MAX):
            async with self.applying:
                await unhurried(node.take_in_steps(news))
            self._count(news)
            self.on_applied.set()

    async def _note_clock(self, now_us: int) -> None:
        """Before events are recorded at a time, and before serials follow it."""
        node = self._node
        if node.log.is_shared:  # and may have to be asked
            steps = await asyncio.to_thread(node.clock_steps, now_us)
        else:
            steps = node.clock_steps(now_us)
        if not steps:
            return
        try:
            await self._append(steps, now_us, None)
        except Overtaken:  # it is said again before the next events
            await self._catch_up()

    async def _stamp_unstamped(self, *, only_new: bool, source: str = "stamp") -> list[Recorded]:
        """Stamp the zones whose content is not what their serial says. What cannot be written is
        tried again later: the changes are recorded, and only the serials are late."""
        if not self.may_stamp():
            self._show_new()
            return []
        try:
            self._node.check_writable()  # before the clock is noted, which writes too
            recorded = await self._stamp(only_new=only_new, source=source)
            self._imported.clear()
        except (Stop, Busy) as error:
            self._stamps_refused += 1
            self._node.zones.show_unstamped()  # what is recorded is served
            if isinstance(error, Stop):
                self._stop_writing_if_broken(error)
            if self._node.why_not_writable is None:
                log.warning("serials wait for %.0f s: %s", STAMP_RETRY_S, error)
                if self._retry is not None:
                    self._retry.cancel()
                loop = asyncio.get_running_loop()
                self._retry = loop.call_later(STAMP_RETRY_S, self.request_stamp)
            return []
        else:
            return recorded

    def _show_new(self) -> None:
        """Serve zones that have no serial yet: it comes from the node that gives them."""
        unstamped = self._node.zones.unstamped()
        if any(state.zone and state.zone.stamped_soa is None for state in unstamped):
            self._node.zones.show_unstamped()

    async def _stamp(self, *, only_new: bool, source: str) -> list[Recorded]:
        """A stamp is of the content that the log has: one that was overtaken is worked out anew."""
        node = self._node
        for _ in range(ATTEMPTS_MAX):
            now_us = node.clock.now_us()
            await self._note_clock(now_us)
            # What expires by the time of the stamp is not in what it says.
            node.views.follower.advance(now_us // 1_000_000)
            commands = node.stamps(self._imported, only_new=only_new)
            if not commands:
                return []
            sets = self._stamp_sets(commands, source, now_us)
            try:
                return await self._append(sets, now_us, node.position)
            except Overtaken:
                await self._catch_up()
        raise Busy(BUSY)

    def _stop_writing_if_broken(self, error: Stop) -> None:
        """What cannot be trusted stops writing, not answering."""
        is_broken = isinstance(error, LogDamaged | StorageBroken)
        if is_broken and self._node.why_not_whole is None:
            log.error("nothing is written any more: %s", error)
            self._node.why_not_writable = error

    def _stamp_sets(
        self, commands: list[UpdateStatus], source: str, now_us: int
    ) -> list[ChangeSet]:
        who = Who(actor="system", source=source, reason="content changed", wall=now_us)
        changes = [Change(commands=(command,), who=who) for command in commands]
        decided = self._node.decide(changes, now_us)
        return [ChangeSet(tuple(d.events), who) for d in decided if not isinstance(d, KudurruError)]


def _call_on(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """From another thread, whose own work goes on also where the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work)


def _in_doubt(error: BaseException) -> StorageBroken:
    return StorageBroken(
        f"the write ended in {type(error).__name__} ({error}), so it is open whether the change is "
        "there: look at the server's log, and at `kudurru history` when it is back"
    )


async def keep_stamped(
    writer: Writer, node: Node, coalesce_s: float, timers: Timers | None = None
) -> NoReturn:
    """Let a burst of changes pass as one version: stamp `coalesce_s` after the first of them, or
    what `writer.coalesce_s` is set to later. And let records go when their time is over, which is a
    change too."""
    writer.coalesce_s = coalesce_s
    timers = timers or LoopTimers()
    while True:
        await _changed_or_expired(writer, node, timers)
        await writer.let_time_pass()
        if node.zones.unstamped():
            await pause(timers, round(writer.coalesce_s * 1_000_000))
            writer.request_stamp()


async def _changed_or_expired(writer: Writer, node: Node, timers: Timers) -> None:
    expiry_s = node.zones.next_expiry_s()
    if expiry_s is None:
        await writer.on_applied.wait()
    else:
        wait_us = max(0, expiry_s * 1_000_000 - node.clock.now_us())
        timer = timers.call_later(wait_us, writer.on_applied.set)
        try:
            await writer.on_applied.wait()
        finally:
            timer.cancel()
    writer.on_applied.clear()
