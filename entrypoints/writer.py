"""The one writer of a node: drains a queue of changes into one transaction (group commit).

Concurrent callers share one fsync, and every change is decided against the newest state, so
optimistic concurrency needs no locks. Acknowledged means: durable in the log, applied to the views,
dropped from the answers that depended on it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import msgspec

from kudurru.domain.checkpoint import SOURCE
from kudurru.domain.commands import UpdateStatus
from kudurru.domain.errors import (
    Busy,
    KudurruError,
    LogDamaged,
    NotFound,
    Stop,
    StorageBroken,
    StorageFailed,
)
from kudurru.domain.events import ChangeSet, Recorded, Who
from kudurru.domain.ports import StoredCheckpoint, VerifiableLog
from kudurru.entrypoints.checkpoints import Checkpointer, Plan
from kudurru.entrypoints.wiring import Change, Node, Result

log = logging.getLogger("kudurru")

QUEUE_MAX = 4_096
SLICE = 200
"""Events that are applied before the loop may answer a query: some 10 ms."""

GROUP_MAX = 512
"""Changes in one transaction: past this the fsync is a small part of the cost."""

STAMP_RETRY_S = 5.0
"""After a stamp that could not be written: a full disk stays full for a while."""


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


class Writer:
    """Runs as one task; `submit` from any other."""

    def __init__(self, node: Node, checkpointer: Checkpointer | None = None) -> None:
        """Without a checkpointer nothing is signed: the log is damaged, or kept in memory."""
        self._node = node
        self._checkpointer = checkpointer
        self._signings: deque[tuple[Make, asyncio.Future[StoredCheckpoint]]] = deque()
        self._queue: deque[tuple[Change, asyncio.Future[Result]]] = deque()
        self._wake = asyncio.Event()
        self._is_stamp_due = False
        self._is_stopping = False
        self._imported: dict[str, int] = {}  # serials that wait for the stamp of their zone
        self._retry: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        self._changes = self._groups = self._refused = self._failed = self._stamps_refused = 0
        self.on_applied = asyncio.Event()
        """Set after each group that wrote something."""
        self.on_recorded = asyncio.Event()
        """Set after each append, that of a stamp too."""

    def statistics(self) -> WriterStatistics:
        return WriterStatistics(
            changes=self._changes,
            groups=self._groups,
            refused_full=self._refused,
            failed=self._failed,
            stamps_refused=self._stamps_refused,
        )

    async def submit(self, change: Change) -> Result:
        """Raises what `decide` refuses with; Busy when the queue is full or the writer stops;
        StorageFailed when the log cannot be written, and then nothing was; StorageBroken when
        that is not known."""
        self._check_not_stopping()
        if len(self._queue) >= QUEUE_MAX:
            self._refused += 1
            raise Busy(f"{QUEUE_MAX} changes wait to be written; try again")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.append((change, future))
        self._wake.set()
        return await future

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
            raise Busy("the server is stopping: nothing was changed; try again when it is back")

    async def run(self) -> None:
        """Write until `stop`."""
        while self._queue or self._signings or not self._is_stopping:
            await self._wake.wait()
            group = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_MAX))]
            if not self._queue:
                self._wake.clear()
            async with self._writing:
                if group:
                    await self._commit(group)
                if self._is_stamp_due:
                    self._is_stamp_due = False
                    await self._stamp_unstamped(only_new=False)
                while self._signings:
                    await self._sign(*self._signings.popleft())

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
        now_us = node.clock.now_us()
        await self._note_clock(now_us)
        plan = make(now_us)
        if plan is None:
            found = signer.current()
            assert found is not None
            return found
        log: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
        at_us = node.time_for_events_us(now_us)
        recorded = await asyncio.to_thread(log.append_signed, plan.change_sets, at_us, plan.sign)
        node.take_in(recorded)
        plan.done()
        return await asyncio.to_thread(signer.taken)

    async def _commit(self, group: list[tuple[Change, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._write([change for change, _ in group])
        except KudurruError as error:
            results = [error] * len(group)
            if isinstance(error, Stop):
                self._failed += len(group)
                self._stop_writing_if_broken(error)
        except BaseException as error:
            # What is durable is not known: no caller is told that it is, and the server stops.
            for _, future in group:
                if not future.done():
                    future.set_exception(_in_doubt(error))
            raise
        self._groups += 1
        self._changes += len(group)
        for (_, future), result in zip(group, results, strict=True):
            if future.done():
                continue  # the caller went away; what it asked for happened all the same
            if isinstance(result, KudurruError):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def _write(self, changes: list[Change]) -> list[Result | KudurruError]:
        node = self._node
        now_us = node.clock.now_us()
        decided = node.decide(changes, now_us)
        sets = [
            ChangeSet(tuple(d.events), msgspec.structs.replace(d.change.who, wall=now_us))
            for d in decided
            if not isinstance(d, KudurruError) and d.events
        ]
        if not sets:
            return node.results(decided, [])
        await self._note_clock(now_us)
        recorded = await self._append(sets, now_us)
        for one in decided:
            if not isinstance(one, KudurruError) and one.events:
                self._imported |= one.change.imported_serials
        # Zones that never had a serial get their first, and imported ones that of their file,
        # before the change is acknowledged. A crash in between leaves a zone unstamped; the next
        # start stamps it.
        await self._stamp_unstamped(only_new=not self._imported)
        if any(change.who.source == SOURCE for change in changes):
            # Before anything else happens: what a publication leads to asks for no checkpoint.
            await self._stamp_unstamped(only_new=False, source=SOURCE)
        self.on_applied.set()
        return node.results(decided, recorded)

    async def _append(self, sets: list[ChangeSet], now_us: int) -> list[Recorded]:
        """The fsync runs in a thread, so that DNS is answered meanwhile. Nothing else decides or
        applies until this returns: there is one writer."""
        at_us = self._node.time_for_events_us(now_us)
        recorded = await asyncio.to_thread(self._node.log.append, sets, at_us)
        try:
            await self._take_in(recorded)
        except StorageFailed as error:  # views read older events for what changed
            raise StorageBroken(
                f"position {recorded[0].seq} is recorded, and the views could not follow: {error}"
            ) from error
        if self._checkpointer is not None:
            self._checkpointer.count(recorded)
        self.on_recorded.set()
        return recorded

    async def _take_in(self, recorded: list[Recorded]) -> None:
        """In slices, between which queries are answered: an import takes seconds."""
        with self._node.zones.new_zones_held():
            for at in range(0, len(recorded), SLICE):
                if at:
                    await asyncio.sleep(0)
                self._node.take_in(recorded[at : at + SLICE])

    async def _note_clock(self, now_us: int) -> None:
        """Before events are recorded at a time, and before serials follow it."""
        if steps := self._node.clock_steps(now_us):
            await self._append(steps, now_us)

    async def _stamp_unstamped(self, *, only_new: bool, source: str = "stamp") -> None:
        """Stamp the zones whose content is not what their serial says. What cannot be written is
        tried again later: the changes are recorded, and only the serials are late."""
        node = self._node
        now_us = node.clock.now_us()
        try:
            node.check_writable()  # before the clock is noted, which writes too
            await self._note_clock(now_us)
            # What expires by the time of the stamp is not in what it says.
            node.views.follower.advance(now_us // 1_000_000)
            if commands := node.stamps(self._imported, only_new=only_new):
                await self._append(self._stamp_sets(commands, source, now_us), now_us)
            self._imported.clear()
        except Stop as error:
            self._stamps_refused += 1
            self._stop_writing_if_broken(error)
            if self._node.why_not_writable is None:
                log.warning("serials wait for %.0f s: %s", STAMP_RETRY_S, error)
                if self._retry is not None:
                    self._retry.cancel()
                loop = asyncio.get_running_loop()
                self._retry = loop.call_later(STAMP_RETRY_S, self.request_stamp)

    def _stop_writing_if_broken(self, error: Stop) -> None:
        """What cannot be trusted stops writing, not answering."""
        is_broken = isinstance(error, LogDamaged | StorageBroken)
        if is_broken and self._node.why_not_writable is None:
            log.error("nothing is written any more: %s", error)
            self._node.why_not_writable = error

    def _stamp_sets(
        self, commands: list[UpdateStatus], source: str, now_us: int
    ) -> list[ChangeSet]:
        who = Who(actor="system", source=source, reason="content changed", wall=now_us)
        changes = [Change(commands=(command,), who=who) for command in commands]
        decided = self._node.decide(changes, now_us)
        return [ChangeSet(tuple(d.events), who) for d in decided if not isinstance(d, KudurruError)]


def _in_doubt(error: BaseException) -> StorageBroken:
    return StorageBroken(
        f"the write ended in {type(error).__name__} ({error}), so it is open whether the change is "
        "there: look at the server's log, and at `kudurru history` when it is back"
    )


async def keep_stamped(writer: Writer, node: Node, coalesce_s: float) -> NoReturn:
    """Let a burst of changes pass as one version: stamp `coalesce_s` after the first of them. And
    let records go when their time is over, which is a change too."""
    while True:
        await _changed_or_expired(writer, node)
        await writer.let_time_pass()
        if node.zones.unstamped():
            await asyncio.sleep(coalesce_s)
            writer.request_stamp()


async def _changed_or_expired(writer: Writer, node: Node) -> None:
    expiry_s = node.zones.next_expiry_s()
    patience = None
    if expiry_s is not None:
        patience = max(0.0, expiry_s - node.clock.now_us() / 1_000_000)
    try:
        await asyncio.wait_for(writer.on_applied.wait(), patience)
    except TimeoutError:
        return
    writer.on_applied.clear()
