"""The lock of a data directory: one process at a time.

flock decides, and the kernel lets go of it when its holder dies, so a stale file means nothing.
What stands in the file only names the holder to whoever is refused.
"""

import errno
import fcntl
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from kudurru.domain.errors import Busy, StorageFailed


class Holder(msgspec.Struct, frozen=True):
    pid: int
    host: str
    since: str  # RFC 3339, UTC

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class DirectoryLock:
    """Held from `acquire` until `close`, or until the process ends, children included."""

    @classmethod
    def acquire(cls, path: Path, *, now_us: int) -> Self:
        """Take the lock file `path`, made when missing, or raise at once.

        Raises: Busy, which names the holder; StorageFailed when the file cannot be locked.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _cannot_lock(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            since = datetime.fromtimestamp(now_us // 1_000_000, UTC)
            _write(descriptor, Holder(os.getpid(), socket.gethostname(), f"{since:%FT%TZ}"))
        except BlockingIOError as error:
            holder = read_holder(path)
            os.close(descriptor)
            raise Busy(
                f"{path.parent} is in use by {holder or 'another process'}: use that server "
                "through its socket, or end it first"
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise _cannot_lock(path, error) from error
        return cls(descriptor)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Let go. Idempotent. The file stays: to remove it would let two processes each lock a
        file of that name."""
        if self._descriptor >= 0:
            # A forked child may hold a copy of the descriptor; unlocking counts for all copies.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_holder(path: Path) -> Holder | None:
    """Who wrote the lock file last, None when that cannot be read. It may hold it no more."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _write(descriptor: int, holder: Holder) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, msgspec.json.encode(holder) + b"\n", 0)


def _cannot_lock(path: Path, error: OSError) -> StorageFailed:
    advice = "keep the data directory on a local file system that this user can write to"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "free space on that disk"
    return StorageFailed(f"{path} cannot be locked: {error.strerror} - {advice}")
