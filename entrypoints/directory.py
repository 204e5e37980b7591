"""A data directory: who holds it, and the way to its node.

A server holds the lock for as long as it runs and answers on the directory's socket; without one a
command takes the lock for itself, or only reads.
"""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import DataDir, open_data_dir
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sealing import NodeKey
from kudurru.adapters.signing import KeyFolder, check_signature
from kudurru.adapters.sqlite.lock import DirectoryLock
from kudurru.domain.chain import origin_of
from kudurru.domain.checkpoint import Checkpoint, parse_adoption
from kudurru.domain.epochs import epoch_began
from kudurru.domain.errors import Busy, Conflict, LogDamaged, NotFound, StorageBroken
from kudurru.domain.events import SIGNING_KEY, Position, Recorded, Who
from kudurru.domain.filtering.explain import Explanation
from kudurru.domain.ports import VerifiableLog
from kudurru.domain.settings import Settings
from kudurru.domain.settings_changes import Layer, layer_of
from kudurru.domain.signed_note import VerifierKey, parse_key
from kudurru.domain.verify import TAIL_ROWS, verify
from kudurru.domain.verify_tree import Trust
from kudurru.entrypoints import command_socket
from kudurru.entrypoints.checkpoints import Checkpointer, CheckpointPolicy
from kudurru.entrypoints.filtering import ExplainRequest
from kudurru.entrypoints.follow_place import followed
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.list_service import take_up_lists
from kudurru.entrypoints.local_service import NO_SOURCES, LocalService
from kudurru.entrypoints.log_place import open_event_log
from kudurru.entrypoints.published import first_difference
from kudurru.entrypoints.rpc import RemoteService, connect
from kudurru.entrypoints.service import Service
from kudurru.entrypoints.settings import Sources
from kudurru.entrypoints.snapshots import SHORT_REPLAY, forget_snapshot, load_snapshot, try_to_save
from kudurru.entrypoints.wiring import Node
from kudurru.projections.follow import Follower

LOCK_PATIENCE_S = 30.0
"""Another command may hold the directory for a moment; a server holds it for good and answers on
its socket instead."""

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
    directory = open_data_dir(data, create=write)
    found: RemoteService | DirectoryLock | None = connect(command_socket.find(directory))
    if found is None and write:
        found = _acquire(directory)
    if isinstance(found, RemoteService):
        with found as remote:
            yield remote
    elif found is not None:
        with found, _writing_service(directory, who, secrets_key, sources) as service:
            yield service
    else:
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


@contextmanager
def _writing_service(
    directory: DataDir, who: Who, secrets_key: str, sources: Sources
) -> Iterator[LocalService]:
    """Of a directory whose lock the caller holds."""
    with open_log(directory, create=True) as log:
        node = Node(log, SystemClock(), SystemEntropy())
        node.follows = followed(directory)
        snapshot = load_snapshot(directory, node)
        replay(node)
        checkpointer = open_checkpointer(directory, node)
        yield LocalService(
            node,
            who,
            checkpointer,
            keyring_of(directory, node, secrets_key),
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
