"""`DIR/follow`: that the log of a data directory is a copy of another node's, and of whose.

As long as the file is there nobody writes to the log but who copies, neither a server nor a command
on the directory; `kudurru promote` takes it away.
"""

from functools import partial
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import DataDir, sync_folder
from kudurru.adapters.signing import check_signature
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.checkpoint import KeyChain
from kudurru.domain.epochs import decode_epoch, epoch_in, first_origin
from kudurru.domain.errors import Cause, Conflict, Diverged, Follows, Invalid, StorageFailed
from kudurru.domain.events import EPOCH_KEY, KEY_ADOPTED, SIGNING_KEY
from kudurru.domain.lineage import LogAbout
from kudurru.domain.replica import Receiver, Target, forked
from kudurru.domain.signed_note import VerifierKey
from kudurru.domain.tree import Edge
from kudurru.entrypoints.place_file import read_file, write_file

if TYPE_CHECKING:
    from kudurru.entrypoints.leader import Leader
    from kudurru.entrypoints.serve_options import ServeOptions

REPLACED = "log.db.replaced-{}"
REPLACED_MAX = 1_000


class FollowPlace(msgspec.Struct, frozen=True):
    """Content of DIR/follow."""

    url: str
    log_id: str
    keys: list[str] = []
    """Keys that were found to sign the log, the first at the first contact."""


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A log that follows."""

    log: SQLiteEventLog
    place: FollowPlace
    path: Path  # of DIR/follow


def read_place(path: Path) -> FollowPlace | None:
    """Raises: StorageFailed."""
    advice = "mend it; or remove it and start the node with --follow URL again"
    return read_file(path, FollowPlace, advice)


def forget_place(path: Path) -> None:
    """Durably. Raises: StorageFailed."""
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageFailed(f"{path} cannot be removed: {error.strerror}") from error


def followed(directory: DataDir) -> Follows | None:
    """Why nothing is written to the log of a directory. Raises: StorageFailed."""
    place = read_place(directory.follow)
    return Follows(place.url) if place is not None else None


def open_copy(directory: DataDir, options: "ServeOptions") -> Copy | None:
    """The log of a directory that follows, or is told to; None for one that does not. The leader
    is asked only where it must: for a directory that did not follow before, or by --adopt.

    Raises: Invalid for what does not go together, or a log that is not the leader's; Unreachable
    when the leader must be asked and does not answer; what opening the log does.
    """
    place = read_place(directory.follow)
    url = options.follow.url or (place.url if place is not None else "")
    if not url:
        if options.adopt:
            raise _refused("--adopt", "there is no leader whose log could be taken: give --follow")
        return None
    _check_options(url, options)
    if place is None or options.adopt or not directory.log.exists():
        from kudurru.entrypoints.leader import Leader  # an HTTP client, for this alone

        with Leader(url, options.follow) as leader:
            place = _agreed(directory, leader, place, adopts=options.adopt)
    place = msgspec.structs.replace(place, url=url)
    log = SQLiteEventLog.open(
        directory.log, entropy=SystemEntropy(), clock=SystemClock(), create=True
    )
    if log.log_id != place.log_id:
        log.close()
        raise _refused("--follow", f"{directory.follow} is of another log than {directory.log}")
    write_file(directory.follow, place)
    return Copy(log=log, place=place, path=directory.follow)


def _check_options(url: str, options: "ServeOptions") -> None:
    if options.store not in ("", "sqlite"):
        raise _refused("--follow", "a copy is kept in the data directory: leave --store out")
    if options.kubernetes.enabled:
        raise _refused("--follow", "not together with kubernetes.enabled: the leader does that")
    if options.with_demo:
        raise _refused("--demo", "not together with --follow: nothing is added to a copy")
    if url.rstrip("/") in (f"http://{options.http}", f"https://{options.http}"):
        raise _refused("--follow", f"{url} is this node itself: give the API of another one")


def _agreed(
    directory: DataDir, leader: "Leader", place: FollowPlace | None, *, adopts: bool
) -> FollowPlace:
    """What to write down, once the log is one that can become the leader's."""
    about = leader.about()
    if directory.log.exists():
        log = SQLiteEventLog.open(directory.log, entropy=SystemEntropy(), clock=SystemClock())
        try:
            why = _why_not_its(log, leader, about)
        finally:
            log.close()
        if why and not adopts:
            fault = f"{why}. Nothing was changed; --adopt keeps the log here aside, and copies"
            raise _refused("--follow", fault)
        if why:
            set_aside(directory)
    if not directory.log.exists():
        SQLiteEventLog.open(
            directory.log, entropy=SystemEntropy(), clock=SystemClock(), create=True,
            copy_of=(about.log_id, epoch_in(about.first_origin)),
        ).close()  # fmt: skip
    pinned = place is not None and place.log_id == about.log_id and not adopts
    return FollowPlace(leader.url, about.log_id, place.keys if pinned and place else [])


def _why_not_its(log: SQLiteEventLog, leader: "Leader", about: LogAbout) -> str:
    """Why the leader's log is no continuation of the one here, a sentence; "" where it is. Raises:
    LogDamaged when the leader's is not signed as it should be."""
    if about.log_id != log.log_id:
        ours = f"the one here is {log.log_id} with {log.head().seq} events"
        return f"{leader.url} has another log, {about.log_id}, and {ours}"
    frame = next(leader.frames(int(log.head().seq)))
    if not isinstance(frame, Target):
        return f"{leader.url} does not say what it has signed"
    try:
        receiver_of(log, ()).aim(frame)
    except Diverged as error:
        return str(named(error, log, leader))
    return ""


def receiver_of(log: SQLiteEventLog, trusted: tuple[VerifierKey, ...]) -> Receiver:
    """What goes on from where a copy is. Raises: LogDamaged."""
    head, origin = log.head(), first_origin(log)
    keys = KeyChain(origin, check_signature, trusted)
    read = partial(log.read, 0)
    for event in merge(read(key=SIGNING_KEY), read(key=EPOCH_KEY), key=lambda e: e.seq):
        if event.type == KEY_ADOPTED:
            keys.adopt(event.seq, event.body)
        elif (epoch := decode_epoch(event.body)) is not None:
            keys.begin_epoch(event.seq, epoch.to)
    return Receiver(origin, head, Edge.read(int(head.seq), log.hashes), keys)


def named(error: Diverged, log: SQLiteEventLog, leader: "Leader") -> Diverged:
    """With the first position that the two logs do not have in common, where there is one: then it
    is a fork, also where the leader has signed less than is here. Heads are equal up to there and
    never after it, so bisection finds it."""
    here = int(log.head().seq)
    newest = min(here, leader.about().newest.position)
    low, high = 0, newest + 1  # equal at low, or nothing is; not known to be equal at high
    while high - low > 1:
        middle = (low + high) // 2
        row = next(log.rows(middle - 1, middle), None)
        there = leader.about(middle).at
        if row is None or there is None or row.head.hex() == there.head:
            low = middle
        else:
            high = middle
    return forked(here, low + 1) if high <= newest else error


def set_aside(directory: DataDir) -> Path:
    """Keep the log here under another name, with nothing that was made of it beside the next one.
    Raises: StorageFailed, Conflict."""
    for number in range(1, REPLACED_MAX):
        kept = directory.path / REPLACED.format(number)
        if not kept.exists():
            break
    else:
        raise Conflict(f"{directory.path} has {REPLACED_MAX} replaced logs: move some elsewhere")
    try:
        for path in (directory.checkpoint, directory.views):
            path.unlink(missing_ok=True)
        for suffix in ("-wal", "-shm", ""):  # the log last: before that, nothing was done
            beside = directory.log.with_name(directory.log.name + suffix)
            if beside.exists():
                beside.rename(kept.with_name(kept.name + suffix))
    except OSError as error:
        raise StorageFailed(f"{directory.log} cannot be kept aside: {error.strerror}") from error
    return kept


def _refused(what: str, why: str) -> Invalid:
    return Invalid(what, [Cause("", why)])
