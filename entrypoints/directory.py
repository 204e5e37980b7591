"""A data directory: who holds it, and the way to its node.

A server holds the lock for as long as it runs and answers on the directory's socket; without one a
command takes the lock for itself, or only reads.
"""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kudurru import __version__
from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import DataDir, open_data_dir
from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.memory.neighbours import FixedNeighbours
from kudurru.adapters.sealing import NodeKey
from kudurru.adapters.signing import KeyFolder, check_signature
from kudurru.adapters.sqlite.lock import DirectoryLock
from kudurru.domain import zone_export
from kudurru.domain.chain import origin_of
from kudurru.domain.checkpoint import Checkpoint, parse_adoption
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.epochs import epoch_began
from kudurru.domain.errors import (
    Busy,
    Cause,
    Conflict,
    Invalid,
    KudurruError,
    LogDamaged,
    NotFound,
    StorageBroken,
)
from kudurru.domain.events import SIGNING_KEY, Position, Recorded, Who
from kudurru.domain.filtering.explain import Explanation
from kudurru.domain.later import Later
from kudurru.domain.objects import Key
from kudurru.domain.ports import Clock, EventLog, VerifiableLog
from kudurru.domain.settings import Settings
from kudurru.domain.settings_changes import Layer, layer_of
from kudurru.domain.signed_note import VerifierKey, parse_key
from kudurru.domain.verify import TAIL_ROWS, verify
from kudurru.domain.verify_tree import Trust
from kudurru.entrypoints import command_socket, restoring, upkeep
from kudurru.entrypoints.checkpoints import Checkpointer, CheckpointPolicy, Plan
from kudurru.entrypoints.filtering import (
    BlockingRequest,
    BlockingState,
    ExplainRequest,
    checked_client,
    read_blocking,
    to_blocking,
)
from kudurru.entrypoints.follow_place import followed
from kudurru.entrypoints.keyring import KeyRequest, Keyring, KeyState, revocation
from kudurru.entrypoints.list_service import ListRow, stored_rows, take_up_lists
from kudurru.entrypoints.log_place import open_event_log
from kudurru.entrypoints.published import first_difference
from kudurru.entrypoints.restoring import Carried, RestoreRequest, UndoRequest
from kudurru.entrypoints.rpc import RemoteService, connect
from kudurru.entrypoints.service import (
    LOOPBACK,
    ChangeRequest,
    Erased,
    Info,
    ListReply,
    ListRequest,
    MarkRequest,
    Pruned,
    Service,
    because,
    erased,
    export_zone,
    pruned,
    read_conditions,
    read_info,
    read_list,
    read_object,
    read_problems,
    to_change,
    to_mark,
)
from kudurru.entrypoints.settings import Sources
from kudurru.entrypoints.snapshots import (
    SHORT_REPLAY,
    forget_snapshot,
    load_snapshot,
    try_to_save,
)
from kudurru.entrypoints.tokens import NewToken, TokenRequest, Tokens, TokenState
from kudurru.entrypoints.upkeep import PruneRequest, RedactRequest
from kudurru.entrypoints.wiring import Node, Result
from kudurru.projections import as_of
from kudurru.projections.follow import Follower

if TYPE_CHECKING:
    from kudurru.entrypoints.live_settings import LiveSettings, PatchReply, PatchRequest
    from kudurru.projections.pipeline.pipeline import Pipeline

LOCK_PATIENCE_S = 30.0
"""Another command may hold the directory for a moment; a server holds it for good and answers on
its socket instead."""

NO_SOURCES = Sources(None, {})

MESSAGE_MIN = 12
"""Octets of the header of a DNS message (RFC 1035 section 4.1.1)."""

UNREADABLE = (
    AssertionError,
    LookupError,
    TypeError,
    ValueError,
    StorageBroken,
    msgspec.MsgspecError,
)
"""What reading a log that was tampered with may end in: views take for granted what the chain
promises, so the chain is asked then (`refuse_damaged`)."""


@contextmanager
def open_service(
    data: Path,
    *,
    who: Who,
    write: bool,
    on_damage: Callable[[LogDamaged], None],
    secrets_key: str = "",
    sources: Sources = NO_SOURCES,
    settings: Settings | None = None,
) -> Iterator[Service]:
    """The service of a directory. `secrets_key` is as the setting, `sources` is where settings come
    from, and `settings` are those that its server would have; one that runs has its own. Where the
    log is damaged, what is before that can be read, and `on_damage` is told.

    Raises: Busy when another process holds it and does not answer; StorageFailed and LogNewer as
    opening does; LogDamaged to write.
    """
    with ExitStack() as stack:
        directory = open_data_dir(data, create=write)
        remote = connect(command_socket.find(directory))
        if remote is not None:
            yield stack.enter_context(remote)
            return
        if not write:
            with open_reader(data) as node:
                replay_verified(node, on_damage=on_damage, snapshot_in=directory)
                keyring = keyring_of(directory, node, secrets_key)
                yield LocalService(
                    node,
                    who,
                    keyring=keyring,
                    lists=directory.lists,
                    sources=sources,
                    settings=settings,
                )
            return
        lock_or_remote = _acquire(directory)
        if isinstance(lock_or_remote, RemoteService):
            yield stack.enter_context(lock_or_remote)
            return
        stack.enter_context(lock_or_remote)
        log = stack.enter_context(open_log(directory, create=True))
        node = Node(log, SystemClock(), SystemEntropy())
        node.follows = followed(directory)
        snapshot = load_snapshot(directory, node)
        replay(node)
        checkpointer = open_checkpointer(directory, node)
        keyring = keyring_of(directory, node, secrets_key)
        yield LocalService(
            node,
            who,
            checkpointer,
            keyring,
            lists=directory.lists,
            query_log=directory.querylog,
            forget=partial(forget_snapshot, directory),
            sources=sources,
        )
        checkpointer.take_if_active()
        if node.position - snapshot >= SHORT_REPLAY:
            try_to_save(directory, node)


def running(data: Path) -> RemoteService | None:
    """The server that holds a directory; None where none does, or there is no directory."""
    try:
        return connect(command_socket.find(open_data_dir(data)))
    except NotFound:
        return None


def settings_layer(data: Path) -> Layer:
    """What the log of a directory says of settings; nothing where there is no log yet."""
    try:
        with open_reader(data) as node:
            return layer_of(node.log)
    except NotFound:
        return Layer()


def keyring_of(
    directory: DataDir, node: Node, secrets_key: str = "", *, allow_old: bool = False
) -> Keyring:
    """The TSIG keys of a node, opened with the key of its data directory or the one named."""
    path = Path(secrets_key) if secrets_key else directory.node_key
    box = NodeKey(path, SystemEntropy(), may_create=not secrets_key)
    return Keyring(node, box, allow_old=allow_old)


def open_checkpointer(
    directory: DataDir, node: Node, policy: CheckpointPolicy | None = None
) -> Checkpointer:
    """Of a directory whose lock the caller holds. Raises: StorageFailed."""
    origin = origin_of(node.log.log_id, node.log.epoch)
    keys = KeyFolder(directory.keys, origin, SystemEntropy())
    copy = None if isinstance(node.log, MemoryEventLog) else directory.checkpoint
    return Checkpointer(node, keys, policy or CheckpointPolicy(), copy)


def adopted_keys(data: Path, node: Node) -> list[VerifierKey]:
    """Keys of a log, oldest first; the one in `keys/` while the log names none."""
    began = epoch_began(node.log)
    adoptions = [event for event in node.log.read(0, key=SIGNING_KEY) if event.body is not None]
    found = [parse_adoption(event.seq, event.body or b"").key for event in adoptions]
    if adoptions and adoptions[-1].seq > began:
        return found
    origin = origin_of(node.log.log_id, node.log.epoch)
    key = KeyFolder(open_data_dir(data).keys, origin, SystemEntropy()).read()
    return [*found, key.verifier] if key else found


def trust_of(keys: Sequence[str] = (), checkpoint: Checkpoint | None = None) -> Trust:
    """What signatures are held against. Raises: Invalid for a text that is no key."""
    return Trust(check_signature, tuple(map(parse_key, keys)), checkpoint)


def _acquire(directory: DataDir) -> DirectoryLock | RemoteService:
    """The lock of the directory, or the server that turned out to hold it."""
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            return DirectoryLock.acquire(directory.lock, now_us=SystemClock().now_us())
        except Busy:
            remote = connect(command_socket.find(directory))
            if remote is not None:
                return remote
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextmanager
def open_log(directory: DataDir, *, create: bool) -> Iterator[VerifiableLog]:
    """The log of a directory whose lock the caller holds, its tail verified."""
    log = open_event_log(directory, create=create)
    try:
        damages = verify(log, tail=TAIL_ROWS, trust=trust_of()).damages
        if damages:
            raise damages[0]
        if (damage := first_difference(directory, log, (), SystemEntropy())) is not None:
            raise damage
        yield log
    finally:
        log.close()


@contextmanager
def open_reader(data: Path) -> Iterator[Node]:
    """A node to read from, over the log of a directory, whoever writes to it. Its views are
    empty: see `replay`. Raises: LogDamaged where what is read in the block makes no sense."""
    directory = open_data_dir(data)
    log = open_event_log(directory)
    try:
        yield Node(log, SystemClock(), SystemEntropy())
    except (LogDamaged, *UNREADABLE) as error:
        refuse_damaged(log, error)
        raise
    finally:
        log.close()


def refuse_damaged(log: VerifiableLog, error: Exception) -> None:
    """Raises the first damage of a log that could not be read; returns when the log is whole, and
    the fault is ours."""
    damages = verify(log).damages
    if damages:
        raise damages[0] from error


def replay_verified(
    node: Node,
    upto: Position | None = None,
    *,
    zones: bool = True,
    on_damage: Callable[[LogDamaged], None],
    snapshot_in: DataDir | None = None,
) -> None:
    """Verify the tail of the log, then build the views: up to before a damage, of which
    `on_damage` is told. `snapshot_in` is where a snapshot to begin with may be. Raises: LogDamaged
    when the damage is before `upto`."""
    damages = verify(node.log, tail=TAIL_ROWS).damages  # type: ignore[arg-type]  # as open_reader made it
    if damages and upto is None:
        on_damage(damages[0])
        upto = Position(damages[0].position - 1)
    elif damages and upto is not None and damages[0].position <= upto:
        raise damages[0]
    if snapshot_in is not None and zones:
        load_snapshot(snapshot_in, node, upto)
    replay(node, upto, zones=zones)


def replay(
    node: Node,
    upto: Position | None = None,
    *,
    zones: bool = True,
    follower: Follower | None = None,
    seen: Callable[[int], None] | None = None,
) -> int:
    """Build the views of a node from the log, or those of one of its followers, up to a position
    when one is given: then time stands still there, and what had not expired is still served.
    `seen` hears each position. Raises: Conflict when the log was pruned meanwhile."""
    oldest = node.log.oldest()
    if follower is None:
        follower = node.views.follower if zones else node.views.objects_only
    events = node.log.read(follower.position, upto)
    with nothing_collected(), node.objects.rebuilding():
        count = follower.feed(events if seen is None else _telling(events, seen))
    if node.log.oldest() != oldest:
        # What went may have been needed to see what a change took away.
        raise Conflict("the log was pruned while it was read: run the command again")
    if upto is None:
        node.advance()
    node.zones.show_unstamped()  # a server that was killed may have left one
    return count


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Nothing that a replay makes becomes garbage, and looking for it takes half the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def _telling(events: Iterable[Recorded], seen: Callable[[int], None]) -> Iterator[Recorded]:
    for event in events:
        yield event
        seen(event.seq)


def pipeline_of(node: Node, **options: Any) -> "Pipeline":
    """The pipeline over a node's zones; `options` as the server sets them."""
    from kudurru.projections.pipeline.policy import Policy

    neighbours = options.pop("neighbours", None) or FixedNeighbours()
    policy = Policy(lambda: node.views.policies.filters, neighbours)
    return _pipeline(node.zones.served, node.clock, policy=policy, **options)


def _pipeline(zones: ZoneSet, clock: Clock, **options: Any) -> "Pipeline":
    from kudurru.projections.pipeline.ingress import Identity
    from kudurru.projections.pipeline.pipeline import Pipeline  # large, and few commands answer

    return Pipeline(
        zones,
        options.get("is_synced", lambda: True),
        clock=clock,
        identity=options.get("identity", Identity()),
        is_lameduck=options.get("is_lameduck", lambda: False),
        on_exception=options.get("on_exception", _raise),
        cookies=options.get("cookies"),
        policy=options.get("policy"),
        resolver=options.get("resolver"),
        route_of=options.get("route_of", lambda _upstreams: None),
        notes=options.get("notes"),
        signatures=options.get("signatures"),
        transfers=options.get("transfers"),
        control=options.get("control"),
    )


def _raise(error: Exception) -> None:
    raise error


def answer(node: Node, packet: bytes, client: str = LOOPBACK) -> bytes:
    """What the node answers a client, as over TCP; a drop is SERVFAIL. Raises: Invalid for what is
    too short to be a query, and for a client without an address."""
    return _reply(pipeline_of(node), packet, checked_client(client))


def answer_as_of(log: EventLog, upto: int, packet: bytes) -> bytes:
    """What the zones answered at a position, read from the log. Time stands still there."""
    from kudurru.projections.zones_as_of import ZonesAsOf

    zones = ZonesAsOf(log, upto)
    return _reply(_pipeline(zones, ManualClock(zones.now_s * 1_000_000)), packet)


def explain_as_of(
    data: Path,
    node: Node,
    upto: Position,
    request: ExplainRequest,
    settings: Settings | None = None,
) -> Explanation:
    """Why a client got what it got at a position, by lists as they are now. The node's views are
    empty."""
    from kudurru.entrypoints.explaining import explain_unserved  # the resolver, for this alone

    replay(node, upto)
    take_up_lists(node, open_data_dir(data).lists)
    event = node.log.get(upto)
    now_us = event.ts if event is not None else 0
    return explain_unserved(node, request, settings, now_us)


def _reply(pipeline: "Pipeline", packet: bytes, client: str = LOOPBACK) -> bytes:
    if len(packet) < MESSAGE_MIN:
        raise Invalid("query", [Cause("", f"{len(packet)} octets are no DNS message")])
    reply = pipeline.handle(packet, client, "tcp")
    assert not isinstance(reply, Later)  # without a resolver nothing is waited for
    if reply is None:
        return packet[:2] + b"\x80\x02" + packet[4:]
    return reply.wire


def export_as_of(log: EventLog, upto: int, zone: str) -> list[str]:
    """Lines of a master file of a zone as its serial named it at a position. Raises NotFound for a
    zone that was not served."""
    from kudurru.projections.zones_as_of import ZonesAsOf

    name = as_of.zone_named(log, zone, upto)
    zones = ZonesAsOf(log, upto)
    state = zones.load(name)
    if state.zone is None or not zones.is_elected(state.apex, name):
        raise NotFound(f"zone {zone!r} was not served here at position {upto}")
    return list(zone_export.lines(state.zone))


NO_CACHE = "no server runs on this data directory, and only a running one has a cache"


class LocalService:
    """A `Service` in this process."""

    def __init__(
        self,
        node: Node,
        who: Who,
        checkpointer: Checkpointer | None = None,
        keyring: Keyring | None = None,
        *,
        lists: Path | None = None,
        query_log: Path | None = None,
        forget: Callable[[], None] = lambda: None,
        sources: Sources = NO_SOURCES,
        settings: Settings | None = None,
    ) -> None:
        """`lists` is the folder of what a server fetched; without it only inline sources count.
        `forget` takes away what was derived from the log and may hold what was erased."""
        self._node = node
        self._query_log = query_log
        self._who = who
        self._checkpointer = checkpointer
        self._lists = lists
        self._keyring = keyring
        self._forget = forget
        self._sources = sources
        self._settings = settings

    def change(self, request: ChangeRequest) -> Result:
        return self._node.commit(to_change(request, self._who))

    def get(self, key: Key) -> dict[str, Any]:
        return read_object(self._node, key)

    def list_objects(self, request: ListRequest) -> ListReply:
        return read_list(self._node, request)

    def problems(self, key: Key) -> list[dict[str, Any]]:
        return read_problems(self._node, key)

    def conditions(self, key: Key) -> list[dict[str, Any]]:
        return read_conditions(self._node, key)

    def query(self, packet: bytes, client: str = LOOPBACK) -> bytes:
        self._take_up_lists()
        return answer(self._node, packet, client)

    def explain(self, request: ExplainRequest) -> Explanation:
        self._take_up_lists()
        from kudurru.entrypoints.explaining import explain_unserved  # the resolver, for this alone

        return explain_unserved(self._node, request, self._settings)

    def _take_up_lists(self) -> None:
        """Filter by what the last server of this directory had fetched."""
        if self._lists is not None:
            take_up_lists(self._node, self._lists)
            self._lists = None

    def lists(self) -> list[ListRow]:
        return stored_rows(self._node)

    def refresh_lists(self, names: Sequence[Key]) -> list[Key]:  # noqa: ARG002  # of the protocol
        raise Busy("no server runs here: lists are fetched by `kudurru serve`, when it starts")

    def blocking(self) -> BlockingState:
        return read_blocking(self._node)

    def set_blocking(self, request: BlockingRequest) -> BlockingState:
        self._node.commit(to_blocking(self._node, request, self._who))
        return read_blocking(self._node)

    def purge_queries(self, before_us: int | None) -> int:
        if self._query_log is None:
            raise NotFound("there is no query log here")
        from kudurru.adapters.query_log.store import purge  # sqlite-utils, for this alone

        return purge(self._query_log, before_us)

    def export(self, zone: str) -> list[str]:
        return list(export_zone(self._node, zone))

    def checkpoint(self) -> str:
        checkpointer = self._signer()
        found = checkpointer.current() or checkpointer.take(checkpointer.plan)
        return found.note

    def rotate_key(self, reason: str) -> str:
        checkpointer = self._signer()
        who = because(self._who, reason)
        return checkpointer.take(lambda now_us: checkpointer.rotation(who, now_us)).note

    def _signer(self) -> Checkpointer:
        assert self._checkpointer is not None, "opened to read, and asked to write"
        return self._checkpointer

    def info(self, *, digests: bool = False) -> Info:
        return read_info(self._node, __version__, digests=digests)

    def cache_stats(self) -> dict[str, int]:
        raise NotFound(NO_CACHE)

    def cache_flush(self, name: str, *, subtree: bool = False) -> int:
        del name, subtree
        raise NotFound(NO_CACHE)

    def refresh_zone(self, zone: str) -> str:
        raise NotFound(f"no server holds the directory, and only a server fetches {zone!r}")

    def restore(self, request: RestoreRequest) -> Carried:
        who = because(self._who, request.reason)
        log = self._node.log
        return self._carry_out(restoring.prepare_restore(log, request, self._node.new_id(), who))

    def undo(self, request: UndoRequest) -> Carried:
        who = because(self._who, request.reason)
        log = self._node.log
        return self._carry_out(restoring.prepare_undo(log, request, self._node.new_id(), who))

    def _carry_out(self, undertaking: restoring.Undertaking) -> Carried:
        node = self._node
        document = restoring.describe(node.log, undertaking.plan, node.clock.now_us() // 1_000_000)
        seqs: list[int] = []
        for change in undertaking.changes:
            try:
                seqs.append(node.commit(change).seq)
            except KudurruError as error:
                raise restoring.cut_off(undertaking, len(seqs), error) from error
        return Carried(id=undertaking.id, seq=seqs[-1] if seqs else 0, plan=document)

    def settings(self) -> list[dict[str, Any]]:
        return self._live_settings().rows()

    def patch_settings(self, request: "PatchRequest") -> "PatchReply":
        live = self._live_settings()
        planned = live.plan(request, self._who)
        if planned.change is None:
            return planned.reply
        with planned.draft or nullcontext():
            return live.finish(planned, self._node.commit(planned.change))

    def _live_settings(self) -> "LiveSettings":
        """As a server would have them."""
        from kudurru.entrypoints.live_settings import LiveSettings

        live = LiveSettings(self._sources, self._node.clock)
        live.take_up(self._node.log)
        return live

    def create_key(self, request: KeyRequest) -> Result:
        who = because(self._who, request.reason)
        return self._node.commit(self._keys().creation(request, who, SystemEntropy()))

    def revoke_key(self, name: str, reason: str) -> Result:
        return self._node.commit(revocation(self._node, name, because(self._who, reason)))

    def key_states(self) -> list[KeyState]:
        return self._keys().states()

    def _keys(self) -> Keyring:
        assert self._keyring is not None, "a node without a data directory has no keys"
        return self._keyring

    def create_token(self, request: TokenRequest) -> NewToken:
        who = because(self._who, request.reason)
        change, new = Tokens(self._node).creation(request, who, SystemEntropy())
        self._node.commit(change)
        return new

    def revoke_token(self, name: str, reason: str) -> Result:
        who = because(self._who, reason)
        return self._node.commit(Tokens(self._node).revocation(name, who))

    def token_states(self) -> list[TokenState]:
        return Tokens(self._node).states()

    def mark(self, request: MarkRequest) -> int:
        return self._node.commit(to_mark(request, self._who)).seq

    def redact(self, request: RedactRequest) -> Erased:
        node, signer = self._node, self._signer()
        who = because(self._who, request.reason)
        done: list[upkeep.Redaction] = []

        def make(now_us: int) -> Plan:  # again where another node was faster
            redaction = upkeep.redaction(node, request)
            done[:] = [redaction]
            return signer.upkeep(redaction.change_set(who, now_us), redaction.upkeep, now_us)

        signer.take(make)
        self._forget()
        return erased(done[0])

    def prune(self, request: PruneRequest) -> Pruned:
        node, signer = self._node, self._signer()
        who = because(self._who, request.reason)
        log: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
        pruning = upkeep.plan_pruning(log, request.before)
        if pruning is not None and not request.dry_run:
            change_set = partial(pruning.change_set, node, who)
            signer.take(lambda now: signer.upkeep(change_set(now), pruning.upkeep, now))
        return pruned(pruning)
