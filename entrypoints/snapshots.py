"""Snapshots of the views: when they are written, and what is asked of one before it is loaded.

A view holds nothing that the log does not say, so a snapshot is only ever a shorter way: what is
missing, damaged, edited, of another log, or newer than the log is ignored with one line, and the
views are built from the log.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from kudurru import __version__
from kudurru.adapters.clock import SystemEntropy
from kudurru.adapters.data_dir import DataDir
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.secret_files import secret_in
from kudurru.adapters.sqlite.snapshots import (
    KEY_SIZE,
    SnapshotOf,
    StoredSnapshot,
    Unusable,
    open_snapshot,
    remove_snapshot,
    write_snapshot,
)
from kudurru.domain.chain import origin_of
from kudurru.domain.checkpoint import decode_state
from kudurru.domain.errors import KudurruError, StorageFailed
from kudurru.domain.events import CHECKPOINT_STATE, REDACTION_KEY, Position
from kudurru.domain.ports import VerifiableLog
from kudurru.entrypoints.wiring import Node
from kudurru.projections.follow import Follower

log = logging.getLogger("kudurru.snapshots")

FORMAT = f"4 of kudurru {__version__}"
"""Parts are read by the version that wrote them: what a view holds is nobody else's matter. The
number moves with every change of a view's `dump`."""

SHARE_MAX = 100
"""A snapshot is due when the events after the last one are a hundredth of the log: to apply them at
a start takes a hundredth of what the snapshot saves, and a large one is not written over and over
for a few changes."""


SHORT_REPLAY = 1_000
"""Events after the newest snapshot that a command on a directory without a server leaves so: to
apply them takes the next one some 50 ms."""


def is_due(position: int, snapshot: int) -> bool:
    """Whether there is enough at a position that the newest snapshot does not have."""
    return position - snapshot >= max(1, position // SHARE_MAX)


def can_have_snapshots(node: Node) -> bool:
    """A log in memory is gone before a snapshot of it could be of use."""
    return not isinstance(node.log, MemoryEventLog)


def save_snapshot(directory: DataDir, node: Node) -> None:
    """Write the views as they are now. Raises: StorageFailed; the snapshot before is there then."""
    follower, event_log = node.views.follower, _log_of(node)
    seq = follower.position
    assert all(p.position == seq for p in follower.projections), "views are at one position"
    head = _head_at(event_log, seq)
    if head is None or not can_have_snapshots(node):
        return
    of = SnapshotOf(FORMAT, _origin(node), seq, head, node.views.digests())
    write_snapshot(directory.views, _key(directory), of, _dump(follower))
    log.debug("the views were saved at position %s", seq)


def try_to_save(directory: DataDir, node: Node) -> None:
    """A snapshot that is not written only costs time at the next start."""
    try:
        save_snapshot(directory, node)
    except KudurruError as error:
        log.warning("no snapshot of the views could be written: %s", error)


def _dump(follower: Follower) -> Iterator[tuple[str, bytes]]:
    for projection in follower.projections:
        for part in projection.dump():
            yield projection.name, part


def load_snapshot(directory: DataDir, node: Node, upto: Position | None = None) -> Position:
    """Bring views that are empty to the position of the snapshot, when it is no later than `upto`;
    its position, 0 where there is none of use."""
    if not can_have_snapshots(node) or not directory.views.exists():
        return Position(0)
    follower = node.views.follower
    try:
        with open_snapshot(directory.views, _key(directory)) as found:
            if found is not None:
                _check(found.of, node, upto)
                _load(found, node)
                log.info("the views begin with the snapshot of position %s", follower.position)
    except (Unusable, KudurruError) as error:
        log.warning("the snapshot of the views is not used, %s: they are built from the log", error)
        follower.reset()
    return follower.position


def _check(of: SnapshotOf, node: Node, upto: Position | None) -> None:
    """Raises: Unusable for a snapshot of something else than a part of the log."""
    event_log, newest = _log_of(node), node.log.head().seq
    if of.format != FORMAT:
        raise Unusable("another version of kudurru wrote it")
    if of.origin != _origin(node):
        raise Unusable(f"it is of another log, {of.origin}")
    if of.seq > newest:
        raise Unusable(f"it is of position {of.seq} and the log ends at {newest}")
    if upto is not None and of.seq > upto:
        raise Unusable(f"it is of position {of.seq}, after {upto}")
    if of.seq < node.log.oldest():
        raise Unusable(f"it is of position {of.seq}, and what came then was pruned")
    if any(node.log.read(of.seq, key=REDACTION_KEY)):
        raise Unusable("something was redacted since")
    if _head_at(event_log, of.seq) != of.head:
        raise Unusable(f"the log has another event at position {of.seq}")


def _load(found: StoredSnapshot, node: Node) -> None:
    follower, of = node.views.follower, found.of
    try:
        # The last first: an earlier one may read a later one.
        for projection in reversed(follower.projections):
            projection.load(found.parts(projection.name))
    except (msgspec.MsgspecError, StopIteration, LookupError, ValueError) as error:
        raise Unusable(f"it cannot be understood ({error!r})") from error
    if any(projection.position != of.seq for projection in follower.projections):
        raise Unusable("its views are of several positions")
    said = {"objects": of.digests.get("objects")}
    event = node.log.get(of.seq)
    if event is not None and event.type == CHECKPOINT_STATE and event.body is not None:
        said["the checkpoint there"] = decode_state(event.body).all
    for what, digest in said.items():
        if digest != node.objects.digest():
            raise Unusable(f"its objects are not what {what} says")


def forget_snapshot(directory: DataDir) -> None:
    """After a redaction: what was erased may be in it. Raises: StorageFailed."""
    remove_snapshot(directory.views)


def _origin(node: Node) -> str:
    return origin_of(node.log.log_id, node.log.epoch)


def _log_of(node: Node) -> VerifiableLog:
    event_log: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
    return event_log


def _head_at(event_log: VerifiableLog, seq: int) -> bytes | None:
    with suppress(StorageFailed):
        for row in event_log.rows(seq - 1, seq):
            return row.head
    return None


def _key(directory: DataDir) -> bytes:
    return secret_in(directory.snapshot_key, KEY_SIZE, SystemEntropy())
