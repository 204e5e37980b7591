"""`kudurru serve`: a node with its listeners, one process, one event loop.

Started in order: lock, sockets, listeners (SERVFAIL until there is data), snapshot and replay, what
`entrypoints.runner` runs; then the ready line. Stopped in reverse, so that queries are answered
until nothing else is left to do.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, NoReturn

import msgspec

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import DataDir, open_data_dir
from kudurru.adapters.neighbours import REFRESH_S, NeighbourTable
from kudurru.adapters.sqlite.lock import DirectoryLock
from kudurru.adapters.timers import LoopTimers
from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.errors import Cause, Follows, Invalid, KudurruError, LogDamaged
from kudurru.domain.events import Position, Who
from kudurru.domain.ports import Elector, EventLog, NamesLeader, Origins, VerifiableLog
from kudurru.domain.settings import Settings
from kudurru.domain.verify import TAIL_ROWS, verify
from kudurru.entrypoints import command_socket, demo, logs
from kudurru.entrypoints.checkpoint_loop import keep_checkpoints
from kudurru.entrypoints.checkpoints import Checkpointer, tell_key
from kudurru.entrypoints.directory import UNREADABLE, nothing_collected, trust_of
from kudurru.entrypoints.doctor import Patient, examine
from kudurru.entrypoints.follow_place import Copy, open_copy
from kudurru.entrypoints.following import Following
from kudurru.entrypoints.front import Front
from kudurru.entrypoints.health import controller_samples, runner_samples, store_samples
from kudurru.entrypoints.hot_settings import block_defaults, follow_settings
from kudurru.entrypoints.leading import LeaderAfter
from kudurru.entrypoints.listeners import certificates_of, keep_fresh
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.log_place import open_event_log
from kudurru.entrypoints.operations import Operations
from kudurru.entrypoints.parts import Parts, open_parts
from kudurru.entrypoints.promoting import promote
from kudurru.entrypoints.published import first_difference
from kudurru.entrypoints.readiness import Readiness
from kudurru.entrypoints.retention import OldRows
from kudurru.entrypoints.rpc import Handler, RpcServer
from kudurru.entrypoints.runner import Runner
from kudurru.entrypoints.serve_options import ServeOptions
from kudurru.entrypoints.service import ChangeRequest, to_change
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer, keep_stamped

log = logging.getLogger("kudurru")

ROLE = "controller"
"""What nodes on one log campaign for: the leader-only part of them all."""

SWITCH_INTERVAL_S = 0.0005
"""How long a busy thread may hold the interpreter while a query waits. At Python's 5 ms the latency
beside one is ten times this; the cost per query is the same (measured: docs/decisions)."""

EARLY_MIN = 10_000
"""Events to replay that take long enough, a third of a second, to answer meanwhile."""
COLLECT_AFTER = 50_000
"""Objects more than before, until Python looks for cycles among them. What a query leaves behind is
freed by counting; at Python's 700 looking costs a forwarded query as much as all else together."""

SLICE = 500
"""Events replayed before the loop may answer a query."""


class Server:
    """One run of a node. `run` returns when a signal or `stop` ended it."""

    def __init__(self, live: LiveSettings, options_of: Callable[[Settings], ServeOptions]) -> None:
        self._live = live
        self._options_of = options_of
        self._options = options = options_of(live.current)
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._readiness = Readiness(self.invalidate)
        self._readiness.add_obstacles(self._why_not_whole)
        self._readiness.add_warnings(self._troubles)
        self._certificates = certificates_of(
            options.listeners, options.tls, SystemClock(), with_api=options.api_tls
        )
        self._node: Node | None = None
        self._parts: Parts | None = None
        self._copy: Copy | None = None
        self._front: Front | None = None
        self._save_last: Callable[[], None] = lambda: None
        self.left_behind: list[str] = []
        """What did not end in time, and may still hold a thread."""

    async def run(self, announce: Callable[[str], None]) -> None:
        """Serve. `announce` gets the ready line. Raises KudurruError when the start fails, or when
        a part that must not end did."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.set_threshold(COLLECT_AFTER, 10, 10)
        self._catch_signals()
        async with AsyncExitStack() as stack:
            parts = self._open(stack)
            front = self._front = Front(
                self._options, parts, self._readiness, self._certificates, stack
            )
            addresses = await front.start()
            if parts.following is not None and parts.node.why_not_whole is None:
                await self._unless_stopped(parts.following.first_copy())
            parts.snapshots.load(self._undamaged())
            async with self._early_answers(parts.node, parts.cookies):
                await self._replay(parts.node, parts.checkpointer)
            if self._stopping.is_set():
                return
            self._follow_settings(parts, front)
            parts.writer.follow()
            if parts.following is not None:
                parts.following.copy.log.listen(parts.writer.news_from_elsewhere())
            runner = self._runner(parts, front)
            operate = operations_of(parts, front, self._readiness, runner).handle
            rpc = RpcServer(stack.enter_context(command_socket.placed(parts.directory)), operate)
            await rpc.start()
            runner.add("commands", rpc.run)
            try:
                await runner.run(
                    lambda: self._serve(parts, operate, lambda: announce(addresses), stack),
                    self._lameduck,
                )
            finally:
                self.left_behind = runner.left_behind
            await parts.snapshots.stop()
            # Below the listeners in the stack: nobody waits for an answer while it is written.
            self._save_last = parts.snapshots.save_last

    def _runner(self, parts: Parts, front: Front) -> Runner:
        """What runs while the server does. Ended in reverse, so the writer is there for all."""
        node, writer, cluster = parts.node, parts.writer, parts.cluster
        has_own_log = cluster is not None and cluster.owns  # and shares objects all the same
        runner = Runner(SystemClock(), LoopTimers(), self._elector(parts), role=ROLE)
        front.metrics.add(lambda: runner_samples(runner.status()))
        front.metrics.add(lambda: controller_samples(parts.controllers.statistics()))
        front.metrics.add(
            lambda: store_samples(parts.store.counts.statistics(), parts.hub.statistics())
        )
        runner.add("writer", writer.run, stop=lambda: self._end_writing(parts))
        runner.add("api", front.api.run)
        runner.add("stamps", partial(keep_stamped, writer, node, self._options.coalesce_s))
        runner.add("notifies", parts.notifier.run)
        runner.add("notifies: status", parts.notifier.run_reports, leader_only=True)
        parts.inbound.add_to(runner, leader_only=not has_own_log)
        if cluster is not None:
            front.metrics.add(cluster.samples)
            cluster.add_to(runner)
        if parts.old_rows is not None:
            prune = partial(self._prune, parts.old_rows)
            runner.add("prune", prune, leader_only=not has_own_log)
        if parts.following is not None:
            front.metrics.add(parts.following.samples)
            if node.why_not_whole is None:
                parts.following.add_to(runner, parts.snapshots.forget)
        if self._options.follow.peers:
            runner.add("peers", parts.peers.run)
        self._add_checkpoints(runner, parts)
        if parts.query_log is not None:
            runner.add("query log", parts.query_log.process.run)
        runner.add("selfcheck", front.selfcheck.run)
        runner.add("lists", parts.lists.run)
        runner.add("lists: status", parts.lists.run_reports, leader_only=True)
        runner.add("controllers", parts.controllers.run, leader_only=True)
        runner.add("neighbours", partial(keep_neighbours, parts.neighbours))
        runner.add("cache", front.cache_keeper.keep_dumped)
        runner.add("settings", self._live.watch)
        if self._certificates is not None:
            runner.add("certificates", partial(keep_fresh, self._certificates))
        if front.peer_certificates is not None:
            runner.add("certificates: nodes", partial(keep_fresh, front.peer_certificates))
        return runner

    def _elector(self, parts: Parts) -> Elector | None:
        """Who says whether this node leads; None: it always does."""
        if parts.following is not None:
            return LeaderAfter(parts.following.over, parts.following.url)
        log = parts.node.log
        elector = log.elector(ROLE) if log.is_shared else None
        if isinstance(elector, NamesLeader):
            elector.node_name = self._options.node_name
        return parts.cluster.elector(elector) if parts.cluster is not None else elector

    def _add_checkpoints(self, runner: Runner, parts: Parts) -> None:
        checkpointer = parts.checkpointer
        if checkpointer is not None and checkpointer.key is not None:
            keep = partial(keep_checkpoints, parts.writer, checkpointer, parts.node.clock)
            runner.add("checkpoints", keep)
        elif parts.following is not None:
            runner.add("checkpoints", partial(_sign_once_promoted, parts, parts.following))

    async def _serve(
        self,
        parts: Parts,
        operate: Handler,
        announce: Callable[[], None],
        stack: AsyncExitStack,
    ) -> None:
        """From the end of the replay until somebody wants the server to stop."""
        parts.snapshots.start()
        stack.push_async_callback(parts.snapshots.stop)
        is_writable = self.why_not_writable is None
        if is_writable:
            await self._begin_writing(parts)
        await self._unless_stopped(parts.lists.settle())
        if self._front is not None:
            await self._front.api.open(operate)
        cluster = parts.cluster
        if cluster is not None and cluster.owns and not cluster.has_log:
            # It knows of no zone, and to say that there is none would be wrong.
            await self._unless_stopped(cluster.until_synced())
        self._readiness.synced.set()
        self.invalidate()
        if cluster is not None:
            cluster.begin()
        self._write_pid_file(stack)
        if parts.checkpointer is not None and parts.checkpointer.is_new_key:
            tell_key(parts.checkpointer)
        for problem in parts.keyring.problems():
            log.warning("%s", problem)
        announce()
        await self._stopping.wait()

    async def _begin_writing(self, parts: Parts) -> None:
        if self._options.with_demo:
            await self._add_demo(parts.node, parts.writer)
        parts.writer.request_stamp()

    async def _cleared(self) -> None:
        """Writing was blocked at the start, and begins."""
        if self._parts is not None and self._front is not None:
            await self._begin_writing(self._parts)
            await self._front.api.tidy(at_start=True)

    async def _prune(self, old_rows: OldRows) -> None:
        await self._readiness.synced.wait()
        await old_rows.run()

    @property
    def why_not_writable(self) -> KudurruError | None:
        return self._node.why_not_writable if self._node is not None else None

    def stop(self) -> None:
        """Stop in order; asked twice, without waiting for balancers to notice."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    def invalidate(self, changed: Origins = None) -> None:
        # Nothing is remembered before it is synced, and a replay changes zones often.
        if self._readiness.is_synced and self._front is not None:
            self._front.invalidate(changed)
        if self._parts is not None:
            self._parts.notifier.wake()

    def _changed(self, what: Origins) -> None:
        """Served data is another now."""
        self.invalidate(what)
        if self._front is not None and self._node is not None:
            self._front.resolving.take_zones(self._node.zones.forwards)

    # --- starting -----------------------------------------------------------------------

    def _open(self, stack: AsyncExitStack) -> Parts:
        directory = open_data_dir(self._options.data, create=True)
        stack.enter_context(DirectoryLock.acquire(directory.lock, now_us=SystemClock().now_us()))
        node = self._open_node(directory, stack)
        parts = self._parts = open_parts(
            self._options, directory, node, self._live, stack, self._copy
        )
        parts.peers.on_cleared = self._cleared
        self._readiness.add_warnings(parts.peers.warnings)
        if parts.following is not None:
            self._readiness.add_obstacles(parts.following.obstacles)
            self._readiness.add_warnings(parts.following.warnings)
        if parts.cluster is not None:
            parts.cluster.on_change = self.invalidate
            self._readiness.add_obstacles(parts.cluster.why_not)
            self._readiness.add_warnings(parts.cluster.warnings)
        return parts

    def _open_node(self, directory: DataDir, stack: AsyncExitStack) -> Node:
        copy = self._copy = open_copy(directory, self._options)
        event_log: VerifiableLog
        if copy is not None:
            event_log = copy.log
        else:
            event_log = open_event_log(directory, store=self._options.store, create=True)
        stack.callback(event_log.close)
        stack.callback(self._save_at_end)
        node = Node(event_log, SystemClock(), SystemEntropy(), on_change=self._changed)
        if copy is not None:
            node.follows = Follows(copy.place.url)
        trust = trust_of(self._options.trusted_keys)
        self._node = node
        damages = verify(event_log, tail=TAIL_ROWS, trust=trust).damages
        damage = damages[0] if damages else None
        if damage is not None:
            self._stop_writing(node, damage)
            self._take_up_undamaged_settings(event_log)
        else:
            self._take_up_settings(event_log)
            targets = self._options.checkpoints.publish
            difference = first_difference(directory, event_log, targets, SystemEntropy())
            if difference is not None:
                self._stop_writing(node, difference)
        node.views.policies.configure(block_defaults(self._live.current))
        return node

    def _save_at_end(self) -> None:
        with nothing_collected():
            self._save_last()

    def _take_up_undamaged_settings(self, event_log: EventLog) -> None:
        """What the log said before its damage. An access list that is only there must not go with
        what is damaged."""
        try:
            self._take_up_settings(event_log, self._undamaged())
        except (LogDamaged, *UNREADABLE) as error:
            self._leave_out(error)

    def _leave_out(self, error: Exception) -> None:
        warning = f"the settings of the log cannot be read, and are left out: {error}"
        log.warning("%s", warning)
        resolved = self._live.resolved
        warnings = (*resolved.warnings, warning)
        self._live.resolved = msgspec.structs.replace(resolved, warnings=warnings)

    def _follow_settings(self, parts: Parts, front: Front) -> None:
        """From here on settings change while the server runs. They do at once where the replay
        found a damage: those that the log has from after it were taken up before it was known."""
        follow_settings(self._live, parts, front, self._certificates)
        try:
            self._live.catch_up(parts.node.log, self._undamaged())
        except (LogDamaged, *UNREADABLE) as error:
            self._leave_out(error)

    def _take_up_settings(self, event_log: EventLog, upto: Position | None = None) -> None:
        before = self._live.current.log
        self._live.take_up(event_log, upto)
        self._options = self._options_of(self._live.current)
        if self._live.current.log != before:
            logs.start(self._live.current.log.level, self._live.current.log.format)

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait for something, or until a signal asks to stop."""
        both = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._stopping.wait())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if both[0].done():
                both[0].result()
        finally:
            for one in both:
                one.cancel()

    def _stop_writing(self, node: Node, damage: LogDamaged) -> None:
        """What cannot be trusted stops writing, not answering."""
        if self._options.strict:
            raise damage
        log.error("the log is damaged; serving what is before it, read-only: %s", damage)
        node.why_not_writable = damage

    def _why_not_whole(self) -> list[str]:
        error = self._node.why_not_whole if self._node is not None else None
        return [f"{type(error).__name__}: {error}"] if error is not None else []

    def _troubles(self) -> list[str]:
        found = []
        if self._live.problem:
            found.append(f"Settings: {self._live.problem}")
        if self._certificates is not None and self._certificates.problem:
            found.append(f"Certificate: {self._certificates.problem}")
        if self._parts is not None and self._readiness.is_synced:
            found += [f"Key: {problem}" for problem in self._parts.keyring.problems()]
        return found

    @asynccontextmanager
    async def _early_answers(self, node: Node, cookies: Cookies) -> AsyncIterator[None]:
        """Answer from the log, zone by zone, while all of it is replayed, when that is long."""
        event_log, early = node.log, self._front.early if self._front is not None else None
        upto = self._undamaged() or event_log.head().seq
        is_worth_it = upto - node.position >= EARLY_MIN and not event_log.is_shared
        if early is not None and is_worth_it:
            with suppress(*UNREADABLE, LogDamaged):  # which the replay finds, and says
                await asyncio.to_thread(early.begin, event_log, upto, node.clock, cookies)
        try:
            yield
        finally:
            if early is not None:
                early.end()

    async def _replay(self, node: Node, checkpointer: Checkpointer | None) -> None:
        """Build the views, answering SERVFAIL meanwhile."""
        try:
            await self._replay_undamaged(node)
        except (LogDamaged, *UNREADABLE):
            # A damage older than what is verified at every start.
            event_log: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
            verified = await asyncio.to_thread(verify, event_log)
            if verified.is_whole:
                raise
            self._stop_writing(node, verified.damages[0])
            node.views.follower.reset()
            await self._replay_undamaged(node)
        node.advance()
        if self.why_not_writable is not None:
            node.zones.show_unstamped()
        if checkpointer is not None:
            checkpointer.recount()

    def _undamaged(self) -> Position | None:
        """Up to where the log can be trusted, when that is not its end."""
        if isinstance(self.why_not_writable, LogDamaged):
            return Position(self.why_not_writable.position - 1)
        return None

    async def _replay_undamaged(self, node: Node) -> None:
        # Nothing that a replay makes becomes garbage, and looking for it takes half the time.
        gc.disable()
        try:
            with node.objects.rebuilding():
                for i, event in enumerate(node.log.read(node.position, self._undamaged())):
                    node.views.follower.apply(event)
                    if i % SLICE == 0:
                        await asyncio.sleep(0)
                        if self._stopping.is_set():
                            return
            while node.objects.settle_some(SLICE):
                await asyncio.sleep(0)
        finally:
            gc.enable()
        gc.collect()
        gc.freeze()

    async def _add_demo(self, node: Node, writer: Writer) -> None:
        if node.objects.version(demo.KEY):
            return
        request = ChangeRequest(apply=demo.manifests(), reason="serve --demo")
        await writer.submit(to_change(request, Who(actor="system", source="serve")))

    def _write_pid_file(self, stack: AsyncExitStack) -> None:
        path = self._options.pid_file
        if path is None:
            return
        try:
            path.write_text(f"{os.getpid()}\n")
        except OSError as error:
            raise Invalid("--pid-file", [Cause("", f"{path}: {error.strerror}")]) from None
        stack.callback(path.unlink, missing_ok=True)

    # --- running ------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        """Control-C: a person waits."""
        self._hurry.set()
        self._stopping.set()

    async def _lameduck(self) -> None:
        """Answer on while balancers learn that we go."""
        self._readiness.stop()
        lameduck_s = self._live.current.health.lameduck.total_seconds()
        if self._readiness.is_synced and lameduck_s:
            # Not wait_for: in Python 3.11 that loses a cancellation that comes with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(lameduck_s):
                    await self._hurry.wait()

    async def _end_writing(self, parts: Parts) -> None:
        """Nothing of this run stays unsigned, if it can be helped."""
        checkpointer = parts.checkpointer
        if checkpointer is not None and checkpointer.key is not None and checkpointer.activity:
            try:
                await parts.writer.checkpoint()
            except KudurruError as error:
                log.warning("the newest changes are not signed: %s", error)
        parts.writer.stop()


def operations_of(parts: Parts, front: Front, readiness: Readiness, runner: Runner) -> Operations:
    patient = Patient(parts=parts, front=front, readiness=readiness)
    following = parts.following
    return Operations(
        node=parts.node,
        writer=parts.writer,
        pipeline=front.pipeline,
        resolving=front.resolving,
        lists=parts.lists,
        keyring=parts.keyring,
        tokens=parts.tokens,
        inbound=parts.inbound,
        snapshots=parts.snapshots,
        neighbours=parts.neighbours,
        query_log=parts.query_log,
        settings=parts.settings,
        examine=partial(examine, patient),
        check_leads=runner.check_leads,
        promotion=partial(promote, parts, following) if following is not None else None,
    )


async def _sign_once_promoted(parts: Parts, following: Following) -> None:
    await following.over.wait()
    if parts.checkpointer is None:  # there is no key to sign with, as it was told
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")
    await keep_checkpoints(parts.writer, parts.checkpointer, parts.node.clock)


async def keep_neighbours(table: NeighbourTable) -> NoReturn:
    """Read the hardware addresses of clients, until cancelled. A large table takes a moment."""
    while True:
        await asyncio.to_thread(table.refresh)
        await asyncio.sleep(REFRESH_S)
