"""`kudurru serve`: a node with its listeners, one process, one event loop.

Started in order: lock, sockets, listeners (SERVFAIL until there is data), replay, the writer, the
command socket; then the ready line. Stopped in reverse. A task that ends by itself is a fault: the
server stops in order and exits with 1, because a half-working name server is worse than none.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kudurru import __version__
from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import DataDir, open_data_dir
from kudurru.adapters.http_ops import HttpServer, health_routes
from kudurru.adapters.metrics import metrics_routes
from kudurru.adapters.secret_files import secret_in
from kudurru.adapters.sockets import Bound, Listener, bind_all
from kudurru.adapters.sqlite.lock import DirectoryLock
from kudurru.domain.dns.cookies import SECRET_SIZE, Cookies
from kudurru.domain.errors import Cause, Invalid, KudurruError, LogDamaged
from kudurru.domain.events import Who
from kudurru.domain.ports import PacketEngine
from kudurru.domain.settings import Listener as Configured
from kudurru.domain.settings import RatelimitSettings, TlsSettings, TsigSettings
from kudurru.domain.verify import TAIL_ROWS, verify
from kudurru.entrypoints import command_socket, demo, restoring
from kudurru.entrypoints.checkpoint_loop import keep_checkpoints
from kudurru.entrypoints.checkpoints import Checkpointer, CheckpointPolicy
from kudurru.entrypoints.directory import (
    UNREADABLE,
    answer,
    keyring_of,
    open_checkpointer,
    pipeline_of,
    trust_of,
)
from kudurru.entrypoints.health import metrics_of, notify_samples, transfer_samples
from kudurru.entrypoints.keyring import KeyRequest, Keyring, revocation
from kudurru.entrypoints.listeners import (
    bind_listeners,
    certificate_samples,
    certificates_of,
    close,
    engines_of,
    keep_fresh,
    stop_all,
)
from kudurru.entrypoints.log_place import open_event_log
from kudurru.entrypoints.notifier import Notifier
from kudurru.entrypoints.restoring import Carried, RestoreRequest, Undertaking, UndoRequest
from kudurru.entrypoints.rpc import RpcServer, as_key
from kudurru.entrypoints.service import (
    ChangeRequest,
    ListRequest,
    MarkRequest,
    because,
    erased,
    export_zone,
    pruned,
    read_info,
    read_list,
    read_object,
    read_problems,
    to_change,
    to_mark,
)
from kudurru.entrypoints.upkeep import PruneRequest, RedactRequest
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer, keep_stamped
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.ratelimit import RateLimiter
from kudurru.projections.pipeline.signatures import Signatures
from kudurru.projections.pipeline.transfers import Transfers

log = logging.getLogger("kudurru")

SWITCH_INTERVAL_S = 0.0005
"""How long a busy thread may hold the interpreter while a query waits. At Python's 5 ms the latency
beside one is ten times this; the cost per query is the same (measured: docs/decisions)."""

PORT_TRIES = 20

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
    lameduck_s: float = 5.0
    ratelimit: RatelimitSettings = RatelimitSettings()
    with_demo: bool = False
    pid_file: Path | None = None
    strict: bool = False
    checkpoints: CheckpointPolicy = CheckpointPolicy()
    trusted_keys: tuple[str, ...] = ()
    secrets_key: str = ""
    tsig: TsigSettings = TsigSettings()


class Server:
    """One run of a node. `run` returns when a signal or `stop` ended it."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._stopping = asyncio.Event()
        self._is_hurried = False
        self.is_synced = False
        self.is_lameduck = False
        self._node: Node | None = None
        self._keyring: Keyring | None = None
        self._notifier: Notifier | None = None
        self._certificates = certificates_of(options.listeners, options.tls, SystemClock())
        self._engines: list[tuple[str, PacketEngine]] = []  # by protocol

    async def run(self, announce: Callable[[str], None]) -> None:
        """Serve. `announce` gets the ready line. Raises KudurruError when the start fails, or when
        a part that must not end did."""
        options = self._options
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._catch_signals()
        async with AsyncExitStack() as stack:
            directory = open_data_dir(options.data, create=True)
            stack.enter_context(
                DirectoryLock.acquire(directory.lock, now_us=SystemClock().now_us())
            )
            node = self._open_node(directory, stack)
            checkpointer = self._open_checkpointer(directory, node)
            writer = Writer(node, checkpointer)
            secret = secret_in(directory.cookie_secret, SECRET_SIZE, SystemEntropy())
            keyring = keyring_of(
                directory, node, options.secrets_key, allow_old=options.tsig.allow_old
            )
            self._keyring = keyring
            notifier = Notifier(node, keyring, SystemClock(), SystemEntropy(), writer.submit)
            self._notifier = notifier
            addresses = await self._listen(node, writer, keyring, Cookies(secret), stack)
            await self._replay(node, checkpointer)
            if self._stopping.is_set():
                return
            writer.follow()
            path = stack.enter_context(command_socket.placed(directory))
            rpc = RpcServer(path, self._handler(node, writer, keyring))
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(writer.run(), name="writer")
                    running = [
                        tasks.create_task(
                            keep_stamped(writer, node, options.coalesce_s), name="stamps"
                        ),
                        tasks.create_task(notifier.run(), name="notifies"),
                    ]
                    if checkpointer is not None and checkpointer.key is not None:
                        keeping = keep_checkpoints(writer, checkpointer, node.clock)
                        running.append(tasks.create_task(keeping, name="checkpoints"))
                    if self._certificates is not None:
                        watch = keep_fresh(self._certificates)
                        running.append(tasks.create_task(watch, name="certificates"))
                    await rpc.start()
                    stack.push_async_callback(rpc.stop)
                    if options.with_demo and self.why_not_writable is None:
                        await self._add_demo(node, writer)
                    if self.why_not_writable is None:
                        writer.request_stamp()
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

    @property
    def why_not_writable(self) -> KudurruError | None:
        return self._node.why_not_writable if self._node is not None else None

    def stop(self) -> None:
        """Stop in order; asked twice, without waiting for balancers to notice."""
        self._is_hurried = self._stopping.is_set()
        self._stopping.set()

    def invalidate(self) -> None:
        for _, engine in self._engines:
            engine.invalidate()
        if self._notifier is not None:
            self._notifier.wake()

    # --- starting -----------------------------------------------------------------------

    def _open_node(self, directory: DataDir, stack: AsyncExitStack) -> Node:
        event_log = open_event_log(directory, store=self._options.store, create=True)
        stack.callback(event_log.close)
        node = Node(event_log, SystemClock(), SystemEntropy(), on_change=self.invalidate)
        trust = trust_of(self._options.trusted_keys)
        self._node = node
        damages = verify(event_log, tail=TAIL_ROWS, trust=trust).damages
        if damages:
            self._stop_writing(node, damages[0])
        return node

    def _open_checkpointer(self, directory: DataDir, node: Node) -> Checkpointer | None:
        """None for a damaged log: nobody signs that."""
        if self.why_not_writable is not None:
            return None
        checkpointer = open_checkpointer(directory, node, self._options.checkpoints)
        if checkpointer.why_not:
            level = logging.INFO if node.log.is_shared else logging.ERROR
            log.log(level, "checkpoints are not signed: %s", checkpointer.why_not)
        return checkpointer

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
        keyring: Keyring,
        cookies: Cookies,
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
        transfers = Transfers(node.zones)
        pipeline = pipeline_of(
            node,
            is_synced=lambda: self.is_synced,
            is_lameduck=lambda: self.is_lameduck,
            identity=Identity(version=f"kudurru {__version__}", hostname=options.node_name),
            on_exception=lambda error: log.error("a query failed", exc_info=error),
            cookies=cookies,
            signatures=Signatures(keyring.find, may_truncate=options.tsig.allow_truncated),
            transfers=transfers,
        )
        limiter = RateLimiter(options.ratelimit, SystemClock())
        self._engines = engines_of(options.listeners, bound, pipeline, limiter, self._certificates)
        metrics = metrics_of(node, pipeline, limiter, self._engines, writer, lambda: self.is_synced)
        metrics.add(lambda: transfer_samples(transfers))
        if self._notifier is not None:
            notifier = self._notifier
            metrics.add(lambda: notify_samples(notifier.statistics()))
        if self._certificates is not None:
            certificates = self._certificates
            metrics.add(lambda: certificate_samples(certificates))
        health = health_routes(self.why_not_ready, self.warnings)
        parts: list[HttpServer | PacketEngine] = [
            *(HttpServer(health, one.sockets) for one in web),
            HttpServer(metrics_routes(metrics), scraped.sockets),
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
        if self._certificates is not None and self._certificates.problem:
            found.append(f"Certificate: {self._certificates.problem}")
        if self._keyring is not None and self.is_synced:
            found += [f"Key: {problem}" for problem in self._keyring.problems()]
        return found

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
        if checkpointer is not None:
            checkpointer.recount()

    async def _replay_undamaged(self, node: Node) -> None:
        upto = None
        if isinstance(self.why_not_writable, LogDamaged):
            upto = self.why_not_writable.position - 1
        # Nothing that a replay makes becomes garbage, and looking for it takes half the time.
        gc.disable()
        try:
            for i, event in enumerate(node.log.read(0, upto)):
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
        deadline = asyncio.get_running_loop().time() + self._options.lameduck_s
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

    def _handler(self, node: Node, writer: Writer, keyring: Keyring) -> Any:
        async def handle(method: str, argument: Any, who: Who) -> Any:
            async with writer.applying:
                pass  # what is read next is no part of a change
            match method:
                case "change":
                    change: Change = to_change(argument, who)
                    return msgspec.to_builtins(await writer.submit(change))
                case "get":
                    return read_object(node, as_key(argument))
                case "list":
                    request = msgspec.convert(argument, ListRequest)
                    return msgspec.to_builtins(read_list(node, request))
                case "problems":
                    return read_problems(node, as_key(argument))
                case "query":
                    return answer(node, argument)
                case "export":
                    return await asyncio.to_thread(list, export_zone(node, argument))
                case "info":
                    info = read_info(node, __version__, digests=bool(argument))
                    return msgspec.to_builtins(info)
                case "checkpoint":
                    return (await writer.checkpoint()).note
                case "rotate-key":
                    who = because(who, msgspec.convert(argument, str))
                    return (await writer.rotate_key(who)).note
                case "restore":
                    asked = msgspec.convert(argument, RestoreRequest)
                    prepare = partial(restoring.prepare_restore, node.log, asked)
                    carried = await _carry_out(node, writer, prepare, because(who, asked.reason))
                    await _sign(writer, carried)
                    return msgspec.to_builtins(carried)
                case "undo":
                    unwanted = msgspec.convert(argument, UndoRequest)
                    prepare = partial(restoring.prepare_undo, node.log, unwanted)
                    carried = await _carry_out(node, writer, prepare, because(who, unwanted.reason))
                    return msgspec.to_builtins(carried)
                case "create-key":
                    wanted = msgspec.convert(argument, KeyRequest)
                    made = keyring.creation(wanted, because(who, wanted.reason), SystemEntropy())
                    return msgspec.to_builtins(await writer.submit(made))
                case "revoke-key":
                    name, reason = msgspec.convert(argument, tuple[str, str])
                    gone = revocation(node, name, because(who, reason))
                    return msgspec.to_builtins(await writer.submit(gone))
                case "key-states":
                    return msgspec.to_builtins(keyring.states())
                case "mark":
                    mark = to_mark(msgspec.convert(argument, MarkRequest), who)
                    return (await writer.submit(mark)).seq
                case "redact":
                    secret = msgspec.convert(argument, RedactRequest)
                    redaction = await writer.redact(secret, because(who, secret.reason))
                    return msgspec.to_builtins(erased(redaction))
                case "prune":
                    old = msgspec.convert(argument, PruneRequest)
                    pruning = await writer.prune(old, because(who, old.reason))
                    return msgspec.to_builtins(pruned(pruning))
                case _:
                    raise Invalid("request", [Cause("", f"unknown method {method!r}")])

        return handle


async def _carry_out(
    node: Node, writer: Writer, prepare: Callable[[str, Who], Undertaking], who: Who
) -> Carried:
    """Plan in a thread, as that reads much of the log, and let the writer decide."""
    undertaking = await asyncio.to_thread(prepare, node.new_id(), who)
    now_s = node.clock.now_us() // 1_000_000
    document = await asyncio.to_thread(restoring.describe, node.log, undertaking.plan, now_s)
    seqs: list[int] = []
    for change in undertaking.changes:
        try:
            seqs.append((await writer.submit(change)).seq)
        except KudurruError as error:
            raise restoring.cut_off(undertaking, len(seqs), error) from error
    if seqs:
        with suppress(KudurruError):  # without a key; or it is made with the next change
            await writer.checkpoint()
    return Carried(id=undertaking.id, seq=seqs[-1] if seqs else 0, plan=document)


async def _sign(writer: Writer, carried: Carried) -> None:
    """A restore asks for a checkpoint; it is done all the same where none can be made."""
    if carried.seq:
        with suppress(KudurruError):
            await writer.checkpoint()


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
