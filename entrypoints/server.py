"""`kudurru serve`: a node with its listeners, one process, one event loop.

Started in order: lock, sockets, listeners (SERVFAIL until there is data), snapshot and replay, the
writer, the command socket; then the ready line. Stopped in reverse. A task that ends by itself is a
fault: the server stops in order and exits with 1, because a half-working name server is worse than
none.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from kudurru import __version__
from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import DataDir, open_data_dir
from kudurru.adapters.http_ops import HttpServer, health_routes
from kudurru.adapters.lists.files import ListFiles
from kudurru.adapters.metrics import metrics_routes
from kudurru.adapters.neighbours import REFRESH_S, NeighbourTable
from kudurru.adapters.refresh_times import RefreshTimes
from kudurru.adapters.secret_files import secret_in
from kudurru.adapters.sockets import Bound, Listener, bind_all
from kudurru.adapters.sqlite.lock import DirectoryLock
from kudurru.domain.commands import UpdateStatus
from kudurru.domain.dns.cookies import SECRET_SIZE, Cookies
from kudurru.domain.errors import Cause, Invalid, KudurruError, LogDamaged, NotFound
from kudurru.domain.events import Position, Who
from kudurru.domain.kinds.blocklist import BlockListStatus
from kudurru.domain.objects import Key
from kudurru.domain.ports import PacketEngine
from kudurru.domain.settings import (
    AclSettings,
    BlockingSettings,
    CacheSettings,
    QuerylogSettings,
    RatelimitSettings,
    ResolverSettings,
    Settings,
    TlsSettings,
    TsigSettings,
    UpstreamSettings,
)
from kudurru.domain.settings import Listener as Configured
from kudurru.domain.verify import TAIL_ROWS, verify
from kudurru.entrypoints import command_socket, demo, logs
from kudurru.entrypoints.cache_keeping import CacheKeeper
from kudurru.entrypoints.checkpoint_loop import keep_checkpoints
from kudurru.entrypoints.checkpoints import Checkpointer, CheckpointPolicy
from kudurru.entrypoints.directory import (
    UNREADABLE,
    keyring_of,
    open_checkpointer,
    pipeline_of,
    trust_of,
)
from kudurru.entrypoints.early import EarlyHandler
from kudurru.entrypoints.health import list_samples, metrics_of, notify_samples, transfer_samples
from kudurru.entrypoints.hot_settings import Parts, block_defaults, settings_samples
from kudurru.entrypoints.inbound import Inbound
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.list_keeper import ListKeeper
from kudurru.entrypoints.list_options import ListOptions
from kudurru.entrypoints.list_service import status_of
from kudurru.entrypoints.listeners import (
    bind_listeners,
    certificate_samples,
    certificates_of,
    close,
    engines_of,
    keep_fresh,
    stop_all,
)
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.log_place import open_event_log
from kudurru.entrypoints.notifier import Notifier
from kudurru.entrypoints.operations import Operations
from kudurru.entrypoints.query_logging import QueryLog
from kudurru.entrypoints.resolving import Resolving
from kudurru.entrypoints.rpc import RpcServer
from kudurru.entrypoints.service import (
    ChangeRequest,
    to_change,
)
from kudurru.entrypoints.snapshot_job import SnapshotJob
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer, keep_stamped
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.pipeline import Pipeline
from kudurru.projections.pipeline.ratelimit import RateLimiter
from kudurru.projections.pipeline.signatures import Signatures
from kudurru.projections.pipeline.transfers import Transfers

log = logging.getLogger("kudurru")

SWITCH_INTERVAL_S = 0.0005
"""How long a busy thread may hold the interpreter while a query waits. At Python's 5 ms the latency
beside one is ten times this; the cost per query is the same (measured: docs/decisions)."""

PORT_TRIES = 20

EARLY_MIN = 10_000
"""Events to replay that take long enough, a third of a second, to answer meanwhile."""
COLLECT_AFTER = 50_000
"""Objects more than before, until Python looks for cycles among them. What a query leaves behind is
freed by counting; at Python's 700 looking costs a forwarded query as much as all else together."""

MICROSECOND = timedelta(microseconds=1)

SLICE = 500
"""Events replayed before the loop may answer a query."""


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `serve` needs of the settings."""

    data: Path
    node_name: str = ""  # what hostname.bind answers; empty: nothing
    listeners: tuple[Configured, ...]
    tls: TlsSettings = TlsSettings()
    store: str = ""  # as the setting: where the log is
    http: str = "127.0.0.1:8080"
    ops: str = "127.0.0.1:8081"
    metrics: str = "127.0.0.1:9153"
    sockets: int = 1
    coalesce_s: float = 0.25
    ratelimit: RatelimitSettings = RatelimitSettings()
    blocking: BlockingSettings = BlockingSettings()
    querylog: QuerylogSettings = QuerylogSettings()
    acl: AclSettings = AclSettings()
    upstreams: UpstreamSettings = UpstreamSettings()
    resolver: ResolverSettings = ResolverSettings()
    cache: CacheSettings = CacheSettings()
    lists: ListOptions = ListOptions()
    with_demo: bool = False
    pid_file: Path | None = None
    strict: bool = False
    checkpoints: CheckpointPolicy = CheckpointPolicy()
    trusted_keys: tuple[str, ...] = ()
    snapshot_interval_s: float = 0.0  # 0: only when it stops
    secrets_key: str = ""
    tsig: TsigSettings = TsigSettings()


class Server:
    """One run of a node. `run` returns when a signal or `stop` ended it."""

    def __init__(self, live: LiveSettings, options_of: Callable[[Settings], ServeOptions]) -> None:
        self._live = live
        self._options_of = options_of
        self._options = options = options_of(live.current)
        self._stopping = asyncio.Event()
        self._is_hurried = False
        self.is_synced = False
        self.is_lameduck = False
        self._node: Node | None = None
        self._keyring: Keyring | None = None
        self._notifier: Notifier | None = None
        self._certificates = certificates_of(options.listeners, options.tls, SystemClock())
        self._engines: list[tuple[str, PacketEngine]] = []  # by protocol
        self._early: EarlyHandler | None = None
        self._save_last: Callable[[], None] = lambda: None
        self._neighbours = NeighbourTable()
        self._pipeline: Pipeline
        self._resolving: Resolving | None = None
        self._keeper: CacheKeeper
        self._limiter: RateLimiter
        self.parts: Parts  # once the log is replayed

    async def run(self, announce: Callable[[str], None]) -> None:
        """Serve. `announce` gets the ready line. Raises KudurruError when the start fails, or when
        a part that must not end did."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.set_threshold(COLLECT_AFTER)
        self._catch_signals()
        async with AsyncExitStack() as stack:
            directory = open_data_dir(self._options.data, create=True)
            stack.enter_context(
                DirectoryLock.acquire(directory.lock, now_us=SystemClock().now_us())
            )
            node = self._open_node(directory, stack)
            options = self._options
            snapshots = SnapshotJob(directory, node, options.snapshot_interval_s)
            checkpointer = self._open_checkpointer(directory, node)
            writer = Writer(node, checkpointer)
            query_log = self._query_log(directory, stack)
            keeper = self._open_lists(directory, node, writer)
            secret = secret_in(directory.cookie_secret, SECRET_SIZE, SystemEntropy())
            keyring = keyring_of(
                directory, node, options.secrets_key, allow_old=options.tsig.allow_old
            )
            self._keyring = keyring
            signatures = Signatures(keyring.find, may_truncate=options.tsig.allow_truncated)
            times = RefreshTimes(directory.refresh_times)
            inbound = Inbound(node, writer, keyring, signatures, times)
            notifier = Notifier(node, keyring, SystemClock(), SystemEntropy(), writer.submit)
            self._notifier = notifier
            cookies = Cookies(secret)
            addresses = await self._listen(
                node,
                writer,
                keeper,
                signatures,
                inbound,
                cookies,
                directory.cache_dump,
                query_log,
                snapshots,
                stack,
            )
            snapshots.load(self._undamaged())
            async with self._early_answers(node, cookies):
                await self._replay(node, checkpointer)
            if self._stopping.is_set():
                return
            self._follow_settings(node, writer, keeper, query_log, checkpointer)
            writer.follow()
            path = stack.enter_context(command_socket.placed(directory))
            assert self._resolving is not None, "listeners come before commands"
            operations = Operations(
                node=node,
                writer=writer,
                pipeline=self._pipeline,
                resolving=self._resolving,
                lists=keeper,
                keyring=keyring,
                inbound=inbound,
                snapshots=snapshots,
                neighbours=self._neighbours,
                query_log=query_log,
                settings=self._live,
            )
            rpc = RpcServer(path, operations.handle)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(writer.run(), name="writer")
                    running = [
                        tasks.create_task(
                            keep_stamped(writer, node, options.coalesce_s), name="stamps"
                        ),
                        tasks.create_task(notifier.run(), name="notifies"),
                        tasks.create_task(notifier.run_reports(), name="notifies: status"),
                    ]
                    for name, runnable in inbound.runnables().items():
                        running.append(tasks.create_task(runnable, name=name))
                    if checkpointer is not None and checkpointer.key is not None:
                        keeping = keep_checkpoints(writer, checkpointer, node.clock)
                        running.append(tasks.create_task(keeping, name="checkpoints"))
                    if query_log is not None:
                        writing = query_log.process.run()
                        running.append(tasks.create_task(writing, name="query log"))
                    running.append(tasks.create_task(keeper.run(), name="lists"))
                    if node.log.is_shared:
                        leading = keeper.lead(node.log.elector("lists"))
                        running.append(tasks.create_task(leading, name="lists: leader"))
                    looking = keep_neighbours(self._neighbours)
                    running.append(tasks.create_task(looking, name="neighbours"))
                    dumping = self._keeper.keep_dumped()
                    running.append(tasks.create_task(dumping, name="cache"))
                    running.append(tasks.create_task(self._live.watch(), name="settings"))
                    if self._certificates is not None:
                        watch = keep_fresh(self._certificates)
                        running.append(tasks.create_task(watch, name="certificates"))
                    await rpc.start()
                    stack.push_async_callback(rpc.stop)
                    snapshots.start()
                    stack.push_async_callback(snapshots.stop)
                    if options.with_demo and self.why_not_writable is None:
                        await self._add_demo(node, writer)
                    if self.why_not_writable is None:
                        writer.request_stamp()
                    await self._unless_stopped(keeper.settle())
                    self.is_synced = True
                    self._write_pid_file(stack)
                    if checkpointer is not None and checkpointer.is_new_key:
                        _tell_key(checkpointer)
                    for problem in keyring.problems():
                        log.warning("%s", problem)
                    announce(addresses)
                    await self._stopping.wait()
                    await self._lameduck()
                    await self._sign_last(writer, checkpointer)
                    writer.stop()
                    for task in running:
                        task.cancel()
            except ExceptionGroup as group:
                raise _first_of(group) from group
            await snapshots.stop()
            # Below the listeners in the stack: nobody waits for an answer while it is written.
            self._save_last = snapshots.save_last

    @property
    def why_not_writable(self) -> KudurruError | None:
        return self._node.why_not_writable if self._node is not None else None

    def stop(self) -> None:
        """Stop in order; asked twice, without waiting for balancers to notice."""
        self._is_hurried = self._stopping.is_set()
        self._stopping.set()

    def invalidate(self) -> None:
        if self.is_synced:  # nothing is remembered before, and a replay changes zones often
            for _, engine in self._engines:
                engine.invalidate()
        if self._notifier is not None:
            self._notifier.wake()

    def _changed(self) -> None:
        """Served data is another now."""
        self.invalidate()
        if self._resolving is not None and self._node is not None:
            self._resolving.take_zones(self._node.zones.forwards)

    # --- starting -----------------------------------------------------------------------

    def _open_node(self, directory: DataDir, stack: AsyncExitStack) -> Node:
        event_log = open_event_log(directory, store=self._options.store, create=True)
        stack.callback(event_log.close)
        stack.callback(lambda: self._save_last())
        node = Node(event_log, SystemClock(), SystemEntropy(), on_change=self._changed)
        trust = trust_of(self._options.trusted_keys)
        self._node = node
        damages = verify(event_log, tail=TAIL_ROWS, trust=trust).damages
        if damages:
            self._stop_writing(node, damages[0])
        else:
            logging_before = self._live.current.log
            self._live.take_up(event_log)
            self._options = self._options_of(self._live.current)
            if self._live.current.log != logging_before:
                logs.start(self._live.current.log.level, self._live.current.log.format)
        node.views.policies.configure(block_defaults(self._live.current))
        return node

    def _query_log(self, directory: DataDir, stack: AsyncExitStack) -> QueryLog | None:
        """What is noted until the listeners are closed is written, so it is closed after them."""
        settings = self._options.querylog
        if not settings.enabled:
            return None
        query_log = QueryLog(directory.querylog, settings, SystemClock())
        stack.push_async_callback(query_log.process.close)
        return query_log

    def _open_checkpointer(self, directory: DataDir, node: Node) -> Checkpointer | None:
        """None for a damaged log: nobody signs that."""
        if self.why_not_writable is not None:
            return None
        checkpointer = open_checkpointer(directory, node, self._options.checkpoints)
        if checkpointer.why_not:
            level = logging.INFO if node.log.is_shared else logging.ERROR
            log.log(level, "checkpoints are not signed: %s", checkpointer.why_not)
        return checkpointer

    def _open_lists(self, directory: DataDir, node: Node, writer: Writer) -> ListKeeper:
        async def write_status(key: Key, status: BlockListStatus) -> None:
            stored = node.objects.find(key)
            if stored is None:
                raise NotFound(f"{key} is gone")
            document = {**(stored.status or {}), **msgspec.to_builtins(status)}
            command = UpdateStatus(key=key, status=document, expected=stored.resource_version)
            who = Who(actor="system", source="lists", reason="sources were fetched")
            await writer.submit(Change(commands=(command,), who=who))

        keeper = ListKeeper(
            node.views.lists,
            ListFiles(directory.lists),
            node.clock,
            SystemEntropy(),
            on_matcher=node.views.policies.subscribe,
            read_status=lambda key: status_of(node.objects.find(key)),
            write_status=write_status,
            options=self._options.lists,
        )
        keeper.open()
        return keeper

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

    async def _listen(
        self,
        node: Node,
        writer: Writer,
        keeper: ListKeeper,
        signatures: Signatures,
        inbound: Inbound,
        cookies: Cookies,
        cache_dump: Path,
        query_log: QueryLog | None,
        snapshots: SnapshotJob,
        stack: AsyncExitStack,
    ) -> str:
        """Bind every socket of every listener, or none; then serve. The ready line."""
        options = self._options
        pairs = [(one.proto, str(one.address)) for one in options.listeners]
        bound = bind_listeners(pairs, options.sockets)
        for one in bound:
            stack.callback(close, one)
        web = [bind_all([Listener("tcp", a)])[0] for a in (options.http, options.ops)]
        scraped = bind_all([Listener("tcp", options.metrics)])[0]
        for one in [*web, scraped]:
            stack.callback(close, one)
        resolving = self._resolving = Resolving(
            options.upstreams, options.resolver, options.cache, options.acl, node.clock
        )
        resolving.take_zones(node.zones.forwards)
        stack.push_async_callback(resolving.close)
        self._keeper = CacheKeeper(resolving.cache, cache_dump, node.clock)
        self._keeper.configure(options.cache.persist_interval.total_seconds())
        if options.cache.persist_interval:
            max_age_us = options.cache.persist_max_age // MICROSECOND
            self._keeper.restore(max_age_us)
        stack.push_async_callback(self._keeper.dump_last)
        transfers = Transfers(node.zones)
        pipeline = self._pipeline = pipeline_of(
            node,
            resolver=resolving.resolver,
            route_of=resolving.route_of,
            notes=query_log.notes if query_log is not None else None,
            is_synced=lambda: self.is_synced,
            is_lameduck=lambda: self.is_lameduck,
            identity=Identity(version=f"kudurru {__version__}", hostname=options.node_name),
            on_exception=lambda error: log.error("a query failed", exc_info=error),
            cookies=cookies,
            neighbours=self._neighbours,
            signatures=signatures,
            transfers=transfers,
            control=inbound.control,
        )
        self._limiter = limiter = RateLimiter(options.ratelimit, SystemClock(), cookies)
        self._early = early = EarlyHandler(pipeline)
        self._engines = engines_of(options.listeners, bound, early, limiter, self._certificates)
        metrics = metrics_of(node, pipeline, limiter, self._engines, writer, lambda: self.is_synced)
        metrics.add(early.samples)
        metrics.add(snapshots.samples)
        metrics.add(resolving.samples)
        metrics.add(lambda: list_samples(keeper.rows(), keeper.statistics()))
        if query_log is not None:
            metrics.add(query_log.samples)
        metrics.add(lambda: transfer_samples(transfers))
        metrics.add(inbound.samples)
        metrics.add(lambda: settings_samples(self._live))
        if self._notifier is not None:
            notifier = self._notifier
            metrics.add(lambda: notify_samples(notifier.statistics()))
        if self._certificates is not None:
            certificates = self._certificates
            metrics.add(lambda: certificate_samples(certificates))
        health = health_routes(self.why_not_ready, self.warnings)
        names = [options.node_name] if options.node_name else []
        parts: list[HttpServer | PacketEngine] = [
            *(HttpServer(health, one.sockets, names=names) for one in web),
            HttpServer(metrics_routes(metrics), scraped.sockets, names=names),
            *(engine for _, engine in self._engines),
        ]
        stack.push_async_callback(stop_all, parts)
        for part in parts:
            await part.start()
        http, ops = (one.address for one in web)
        shown = _shown(bound) | {"http": http, "ops": ops, "metrics": scraped.address}
        return "ready " + " ".join(f"{name}={address}" for name, address in shown.items())

    def why_not_ready(self) -> list[str]:
        """Reasons not to send queries here; none when it is ready."""
        reasons = []
        if not self.is_synced:
            reasons.append("NotSynced: the log is being replayed")
        if self.is_lameduck:
            reasons.append("Lameduck: the server is stopping")
        if self.why_not_writable is not None:
            kind = type(self.why_not_writable).__name__
            reasons.append(f"{kind}: {self.why_not_writable}")
        return reasons

    def warnings(self) -> list[str]:
        """What an operator should see to, though queries are answered."""
        found = []
        if self._live.problem:
            found.append(f"Settings: {self._live.problem}")
        if self._certificates is not None and self._certificates.problem:
            found.append(f"Certificate: {self._certificates.problem}")
        if self._keyring is not None and self.is_synced:
            found += [f"Key: {problem}" for problem in self._keyring.problems()]
        return found

    @asynccontextmanager
    async def _early_answers(self, node: Node, cookies: Cookies) -> AsyncIterator[None]:
        """Answer from the log, zone by zone, while all of it is replayed, when that is long."""
        event_log, early = node.log, self._early
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
            damages = verify(node.log).damages  # type: ignore[arg-type]  # as _open_node made it
            if not damages:
                raise
            self._stop_writing(node, damages[0])
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
            for i, event in enumerate(node.log.read(node.position, self._undamaged())):
                node.views.follower.apply(event)
                if i % SLICE == 0:
                    await asyncio.sleep(0)
                    if self._stopping.is_set():
                        return
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

    def _follow_settings(
        self,
        node: Node,
        writer: Writer,
        lists: ListKeeper,
        query_log: QueryLog | None,
        checkpointer: Checkpointer | None,
    ) -> None:
        """From here on parts hear of settings that change."""
        assert self._resolving is not None, "listeners come before"
        self.parts = Parts(
            limiter=self._limiter,
            resolving=self._resolving,
            cache=self._keeper,
            policies=node.views.policies,
            lists=lists,
            query_log=query_log,
            checkpointer=checkpointer,
            certificates=self._certificates,
            writer=writer,
            invalidate=self.invalidate,
        )
        self.parts.subscribe(self._live)
        writer.listeners.append(self._live.recorded)
        if node.log.is_shared:
            self._live.catch_up(node.log)

    # --- running ------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        """Control-C: a person waits."""
        self._is_hurried = True
        self._stopping.set()

    async def _lameduck(self) -> None:
        """Answer on while balancers learn that we go."""
        self.is_lameduck = True
        self.invalidate()
        deadline = (
            asyncio.get_running_loop().time() + self._live.current.health.lameduck.total_seconds()
        )
        while not self._is_hurried and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)

    async def _sign_last(self, writer: Writer, checkpointer: Checkpointer | None) -> None:
        """Nothing of this run stays unsigned, if it can be helped."""
        if checkpointer is None or checkpointer.key is None or not checkpointer.activity:
            return
        try:
            await writer.checkpoint()
        except KudurruError as error:
            log.warning("the newest changes are not signed: %s", error)


async def keep_neighbours(table: NeighbourTable) -> NoReturn:
    """Read the hardware addresses of clients, until cancelled. A large table takes a moment."""
    while True:
        await asyncio.to_thread(table.refresh)
        await asyncio.sleep(REFRESH_S)


def _tell_key(checkpointer: Checkpointer) -> None:
    log.info(
        "the checkpoints of this log are signed by %s: keep this key where nobody on this machine "
        "can change it, and give it to `kudurru audit verify --key`",
        checkpointer.key,
    )


def _shown(bound: Sequence[Bound]) -> dict[str, str]:
    """Addresses for the ready line: "dns" for UDP and TCP, else by protocol."""
    shown: dict[str, dict[str, None]] = {}
    for one in bound:
        name = "dns" if one.listener.proto in ("udp", "tcp") else one.listener.proto
        shown.setdefault(name, {})[one.address] = None
    return {name: ",".join(addresses) for name, addresses in shown.items()}


def _first_of(group: ExceptionGroup[Exception]) -> Exception:
    """The fault that ended the server."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first
