"""What a server is made of, before it listens."""

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import DataDir
from kudurru.adapters.event_sinks import LogSink
from kudurru.adapters.lists.files import ListFiles
from kudurru.adapters.neighbours import NeighbourTable
from kudurru.adapters.refresh_times import RefreshTimes
from kudurru.adapters.secret_files import secret_in
from kudurru.adapters.timers import LoopTimers
from kudurru.domain.commands import UpdateStatus
from kudurru.domain.dns.cookies import SECRET_SIZE, Cookies
from kudurru.domain.errors import Cause, Invalid, NotFound
from kudurru.domain.events import Who
from kudurru.domain.kinds.blocklist import BlockListStatus
from kudurru.domain.objects import Key
from kudurru.entrypoints.checkpoints import Checkpointer
from kudurru.entrypoints.cluster.late import LateCluster
from kudurru.entrypoints.controllers import Controllers
from kudurru.entrypoints.directory import keyring_of, open_checkpointer
from kudurru.entrypoints.follow_place import Copy
from kudurru.entrypoints.following import Following
from kudurru.entrypoints.inbound import Inbound
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.list_keeper import ListKeeper
from kudurru.entrypoints.list_service import status_of
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.notifier import Notifier
from kudurru.entrypoints.others import Peers
from kudurru.entrypoints.query_logging import QueryLog
from kudurru.entrypoints.retention import OldRows
from kudurru.entrypoints.serve_options import ServeOptions
from kudurru.entrypoints.snapshot_job import SnapshotJob
from kudurru.entrypoints.standing import Standing
from kudurru.entrypoints.store import LogStore
from kudurru.entrypoints.tokens import Tokens
from kudurru.entrypoints.watches import Hub
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections.pipeline.signatures import Signatures

log = logging.getLogger("kudurru")

CONTROLLERS = "controllers"
"""Source of what the node itself writes through its store."""


@dataclass(kw_only=True)
class Parts:
    directory: DataDir
    node: Node
    settings: LiveSettings
    checkpointer: Checkpointer | None  # there once the node was promoted, where it followed
    writer: Writer
    snapshots: SnapshotJob
    query_log: QueryLog | None
    lists: ListKeeper
    keyring: Keyring
    tokens: Tokens
    signatures: Signatures
    inbound: Inbound
    notifier: Notifier
    cookies: Cookies
    neighbours: NeighbourTable
    hub: Hub
    store: LogStore
    controllers: Controllers
    old_rows: OldRows | None
    cluster: LateCluster | None
    standing: Standing
    following: Following | None
    peers: Peers


def open_parts(
    options: ServeOptions,
    directory: DataDir,
    node: Node,
    settings: LiveSettings,
    stack: AsyncExitStack,
    copy: Copy | None = None,
) -> Parts:
    """`stack` closes what has to be closed; `copy` is there for a node that follows. Raises
    KudurruError when something cannot be used."""
    checkpointer = _checkpointer(options, directory, node)
    writer = Writer(node, checkpointer)
    cluster = _cluster(options, node, writer, settings, stack)
    query_log = _query_log(options, directory, stack)
    lists = _lists(options, directory, node, writer)
    secret = secret_in(directory.cookie_secret, SECRET_SIZE, SystemEntropy())
    keyring = keyring_of(directory, node, options.secrets_key, allow_old=options.tsig.allow_old)
    if cluster is not None:
        cluster.use(lists, keyring)
    signatures = Signatures(keyring.find, may_truncate=options.tsig.allow_truncated)
    times = RefreshTimes(directory.refresh_times)
    hub = Hub(node)
    standing = Standing(options.node_name, SystemEntropy().token(8).hex(), node)
    store = LogStore(_driver(node), node, writer, hub, Who(actor="system", source=CONTROLLERS))
    stack.push_async_callback(store.close)
    return Parts(
        directory=directory,
        node=node,
        settings=settings,
        checkpointer=checkpointer,
        writer=writer,
        snapshots=SnapshotJob(directory, node, options.snapshot_interval_s),
        query_log=query_log,
        lists=lists,
        keyring=keyring,
        tokens=Tokens(node, max_lifetime=options.token_lifetime),
        signatures=signatures,
        inbound=Inbound(node, writer, keyring, signatures, times),
        notifier=Notifier(node, keyring, SystemClock(), SystemEntropy(), writer.submit),
        cookies=Cookies(secret),
        neighbours=NeighbourTable(),
        hub=hub,
        store=store,
        controllers=Controllers(
            node,
            writer,
            store,
            clock=SystemClock(),
            timers=LoopTimers(),
            sink=LogSink(log) if cluster is None else cluster.sink(log),
            coalesce_us=round(options.coalesce_s * 1_000_000),
        ),
        old_rows=None if node.why_not_whole is not None else _old_rows(settings, node, writer),
        cluster=cluster,
        standing=standing,
        following=_following(options, copy, standing, writer),
        peers=Peers(node, options.follow, standing),
    )


def _following(
    options: ServeOptions, copy: Copy | None, standing: Standing, writer: Writer
) -> Following | None:
    if copy is None:
        return None
    found = Following(copy, options.follow, options.trusted_keys, standing, SystemClock())
    writer.listeners.append(found.recorded)
    # Serials come with the rows.
    writer.may_stamp = found.over.is_set
    return found


def _cluster(
    options: ServeOptions,
    node: Node,
    writer: Writer,
    settings: LiveSettings,
    stack: AsyncExitStack,
) -> LateCluster | None:
    if not options.kubernetes.enabled:
        return None
    if options.with_demo and options.kubernetes.owner == "cluster":
        why = "objects are the cluster's, so that none are added at the start: leave it out"
        raise Invalid("--demo", [Cause("", why)])
    cluster = LateCluster(
        options.kubernetes,
        node,
        writer,
        options.node_name,
        clock=SystemClock(),
        timers=LoopTimers(),
        entropy=SystemEntropy(),
        groups=lambda: settings.current.upstreams.groups,
        external_dns=options.external_dns,
    )
    stack.push_async_callback(cluster.close)
    return cluster


def _driver(node: Node) -> str:
    return "postgres" if node.log.is_shared else "sqlite"


def _old_rows(settings: LiveSettings, node: Node, writer: Writer) -> OldRows:
    return OldRows(node, writer, LoopTimers(), lambda: settings.current.audit.retention)


def _checkpointer(options: ServeOptions, directory: DataDir, node: Node) -> Checkpointer | None:
    """None for a damaged log, nobody signs that, and for the copy of another node's."""
    if node.why_not_whole is not None or node.follows is not None:
        return None
    checkpointer = open_checkpointer(directory, node, options.checkpoints)
    if checkpointer.why_not:
        level = logging.INFO if node.log.is_shared else logging.ERROR
        log.log(level, "checkpoints are not signed: %s", checkpointer.why_not)
    return checkpointer


def _query_log(options: ServeOptions, directory: DataDir, stack: AsyncExitStack) -> QueryLog | None:
    """What is noted until the listeners are closed is written, so it is closed after them."""
    if not options.querylog.enabled:
        return None
    query_log = QueryLog(directory.querylog, options.querylog, SystemClock())
    stack.push_async_callback(query_log.process.close)
    return query_log


def _lists(options: ServeOptions, directory: DataDir, node: Node, writer: Writer) -> ListKeeper:
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
        options=options.lists,
    )
    keeper.open()
    return keeper
