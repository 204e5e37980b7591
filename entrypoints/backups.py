"""Backups of a log, and going on from one.

An export becomes a file only when it was read back and verified. An import verifies a copy of the
backup, begins an epoch in the copy, and only then gives it the name of the log. Dying before the
last step leaves a copy that the next import throws away; dying after it leaves a log that the next
start signs.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import DataDir, open_data_dir, sync_folder
from kudurru.adapters.sqlite.backup import copy_log
from kudurru.adapters.sqlite.lock import DirectoryLock
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.chain import origin_of
from kudurru.domain.codec import canonical
from kudurru.domain.epochs import EpochBody, epochs, first_origin
from kudurru.domain.errors import Cause, Conflict, Invalid, StorageFailed
from kudurru.domain.events import (
    EPOCH_KEY,
    LOG_EPOCH,
    PRUNING_KEY,
    REDACTION_KEY,
    ChangeSet,
    Event,
    Who,
)
from kudurru.domain.object_store import CONTROLLER
from kudurru.domain.ports import LogRow, Upkeep, VerifiableLog
from kudurru.domain.verify import Verified, verify
from kudurru.domain.verify_tree import Trust

Move = Callable[[int, int], None]
"""(position, of how many), for a progress bar."""

_MAY_BE_THERE = ("keys", "lock")
_COPY = "log.db.import"


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    origin: str
    size: int  # events
    signed: int  # of them under the newest checkpoint


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    origin: str  # of the epoch that begins
    size: int  # events of the backup
    position: int  # of the event that begins the epoch


# --- export ---------------------------------------------------------------------------------


def export_log(
    log: VerifiableLog, target: Path, move: Move, *, with_unsigned: bool = False
) -> Exported:
    """The log up to its newest checkpoint; whole when it has none, or with what is not signed.
    Durable when it returns.

    Raises: Invalid when the file is there; LogDamaged when what was written does not verify, and
    then there is no file; Conflict when something was erased or pruned meanwhile; StorageFailed.
    """
    if target.exists():
        raise Invalid("log export", [Cause("", f"{target} is there already: name a new file")])
    before = _taken_away(log)
    newest = None if with_unsigned else log.newest_checkpoint()
    upto = newest.size if newest is not None else log.head().seq
    draft = target.with_name(f"{target.name}.part")
    _remove(draft)
    clock = SystemClock()
    try:
        copy_log(log, upto, draft, clock.now_us(), lambda seq: move(seq, 2 * upto))
        if _taken_away(log) != before:
            raise Conflict("rows were erased or pruned while they were copied: run it again")
        with _opened(draft) as copy:
            verified = _verify(copy, Trust(_check(), ()), lambda seq: move(upto + seq, 2 * upto))
        # Dying before this leaves a draft, dying after it the whole file.
        _give_name(draft, target)
    except BaseException:
        _discard(draft)
        raise
    origin = origin_of(log.log_id, log.epoch)
    return Exported(origin=origin, size=verified.newest, signed=verified.signed.size)


def _taken_away(log: VerifiableLog) -> tuple[int, int]:
    """Changes with each redaction and each pruning."""
    return log.stream_version(REDACTION_KEY), log.stream_version(PRUNING_KEY)


# --- import ---------------------------------------------------------------------------------


def import_log(
    source: Path, data: Path, who: Who, trust: Trust, move: Move, *, dry_run: bool = False
) -> Imported:
    """Make the backup the log of an empty directory, in a new epoch.

    Raises: Invalid for a directory that is not empty, or a key of another log; LogDamaged for a
    backup that does not verify; StorageFailed for what is no backup. Nothing is changed then.
    """
    is_new = not data.exists()
    directory = open_data_dir(data, create=True)
    try:
        with DirectoryLock.acquire(directory.lock, now_us=SystemClock().now_us()):
            _check_empty(directory)
            return _import(source, directory, who, trust, move, dry_run=dry_run)
    finally:
        if is_new and not directory.log.exists():
            _remove_empty(directory)


def _import(
    source: Path, directory: DataDir, who: Who, trust: Trust, move: Move, *, dry_run: bool
) -> Imported:
    copy = directory.path / _COPY
    _remove(copy)  # of an import that was cut off
    try:
        _copy_file(source, copy)
        with _opened(copy) as log:
            _check_origin(log, trust)
            log.check_storage()
            verified = _verify(log, trust, lambda seq: move(seq, log.head().seq))
            imported = _begin_epoch(log, verified, who)
        if not dry_run:
            # Dying before this leaves an empty directory, dying after it the log.
            _give_name(copy, directory.log)
    except StorageFailed as error:  # about the copy, which people know nothing of
        raise StorageFailed(str(error).replace(str(copy), str(source))) from error
    finally:
        _discard(copy)
    return imported


def _remove_empty(directory: DataDir) -> None:
    """A directory that was made for an import that came to nothing."""
    with suppress(OSError):
        directory.lock.unlink(missing_ok=True)
        directory.keys.rmdir()
        directory.path.rmdir()


def _check_empty(directory: DataDir) -> None:
    found = sorted(path.name for path in directory.path.iterdir())
    other = [name for name in found if name not in _MAY_BE_THERE and not name.startswith(_COPY)]
    if other:
        fault = (
            f"{directory.path} is not empty, there is {', '.join(other)}: a backup goes into a "
            "directory of its own; give a new one with --data"
        )
        raise Invalid("log import", [Cause("", fault)])


def _copy_file(source: Path, copy: Path) -> None:
    try:
        descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out, source.open("rb") as into:
            shutil.copyfileobj(into, out, 1 << 20)
    except OSError as error:
        where = error.filename or source
        raise StorageFailed(f"{where}: {error.strerror} - check the path and the disk") from error


def _check_origin(log: VerifiableLog, trust: Trust) -> None:
    """Before anything else, as it is the clearest reason."""
    origins = [first_origin(log), *(body.to for _, body in epochs(log))]
    for key in trust.keys:
        if key.name not in origins:
            fault = f"it is of {key.name}, and the backup of {origins[-1]}: give the right one"
            raise Invalid("--key", [Cause("", fault)])


def _begin_epoch(log: VerifiableLog, verified: Verified, who: Who) -> Imported:
    clock = SystemClock()
    newest = log.newest_checkpoint()
    before, after = (origin_of(log.log_id, epoch) for epoch in (log.epoch, log.epoch + 1))
    body = canonical(EpochBody(before, after, newest.note if newest is not None else ""))
    event = Event(LOG_EPOCH, EPOCH_KEY, log.stream_version(EPOCH_KEY) + 1, "/", CONTROLLER, body)
    now_us = clock.now_us()
    change_set = ChangeSet((event,), msgspec.structs.replace(who, wall=now_us))
    upkeep = Upkeep(epoch=log.epoch + 1)
    recorded = log.append_signed([change_set], now_us, None, upkeep)
    return Imported(origin=after, size=verified.newest, position=recorded[0].seq)


# --- both -----------------------------------------------------------------------------------


def _check() -> Callable[[bytes, bytes, bytes], bool]:
    from kudurru.adapters.signing import check_signature

    return check_signature


@contextmanager
def _opened(path: Path) -> Iterator[SQLiteEventLog]:
    log = SQLiteEventLog.open(path, entropy=SystemEntropy(), clock=SystemClock())
    try:
        yield log
    finally:
        log.close()


def _verify(log: VerifiableLog, trust: Trust, move: Callable[[int], None]) -> Verified:
    def seen(row: LogRow) -> None:
        if row.seq % 1_000 == 0:
            move(row.seq)

    verified = verify(log, trust=trust, seen=seen)
    if verified.damages:
        raise verified.damages[0]
    return verified


def _give_name(draft: Path, target: Path) -> None:
    """Durably; the caller has seen that the name is free."""
    if _side_files(draft):
        raise Conflict(f"{draft} is in use by another process: try again")
    try:
        descriptor = os.open(draft, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        raise StorageFailed(f"{target}: {error.strerror} - check the path and the disk") from error


def _side_files(path: Path) -> Sequence[Path]:
    """What SQLite keeps beside a file that is open."""
    beside = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))
    return [one for one in beside if one.exists()]


def _remove(draft: Path) -> None:
    """What an attempt before this one left. Raises: StorageFailed."""
    for path in (draft, *_side_files(draft)):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageFailed(f"{path}: {error.strerror} - remove it") from error


def _discard(draft: Path) -> None:
    """After a failure that is told already: what cannot be removed now is by the next attempt."""
    with suppress(StorageFailed):
        _remove(draft)
