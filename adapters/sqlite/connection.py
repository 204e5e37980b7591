"""Connections to SQLite files of ours, and the errors of SQLite in our words."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from kudurru.adapters.data_dir import sync_folder
from kudurru.domain.errors import StorageBroken, StorageFailed

BUSY_TIMEOUT_S = 5.0
"""How long to wait for another process that writes the same file."""

WAL_SIZE_MAX = 64 * 1024 * 1024
"""Octets that the -wal file keeps once its content is in the database: a big import would
otherwise hold that much disk for ever."""

# Octets are bound as they are. Without a word about them the module looks for an adapter, then for
# a protocol, for each one: a quarter of a microsecond, seven times a row of the log.
sqlite3.register_adapter(bytes, bytes.__bytes__)


def create_private(path: Path) -> None:
    """Make an empty file of mode 0600, whatever the umask, and make its name durable.

    SQLite gives the mode of the database to its -wal and -shm files.
    Raises: OSError (FileExistsError when it is there).
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)


def connect(path: Path) -> sqlite3.Connection:
    """Open a file that exists. Transactions are begun by hand; the caller guards the connection
    with a lock where several threads use it. Raises: StorageFailed."""
    with storage_errors(path):
        return sqlite3.connect(
            f"file:{quote(os.fsencode(path))}?mode=rw",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise what SQLite or the system raises as StorageFailed, with the place and what to do;
    StorageBroken where the file is damaged."""
    try:
        yield
    except sqlite3.Error as error:
        if isinstance(error, sqlite3.ProgrammingError):
            raise  # a mistake of ours, or use after close
        is_damaged = primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        kind = StorageBroken if is_damaged else StorageFailed
        raise kind(f"{path}: {error} - {advice(error, path)}") from error
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror} - check the path and its rights") from error


def primary_code(error: BaseException) -> int:
    """SQLite's result code without the extension, 0 when there is none."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


_ADVICE = {
    sqlite3.SQLITE_FULL: "free space on that disk; what was refused can be tried again then",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable for this user, or mount "
    "that file system for writing",
    sqlite3.SQLITE_CANTOPEN: "check that the folder exists and is writable for this user",
    sqlite3.SQLITE_PERM: "make the file readable and writable for this user",
    sqlite3.SQLITE_BUSY: "another process holds the file: end it, or wait for it",
    sqlite3.SQLITE_LOCKED: "another process holds the file: end it, or wait for it",
    sqlite3.SQLITE_IOERR: "the disk failed: look at the kernel's messages and at the disk's health",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: keep it, and go back to a backup that verifies",
    sqlite3.SQLITE_NOTADB: "this is no SQLite database: name the right data directory",
}


def advice(error: BaseException, path: Path) -> str:
    """What to do about an error of SQLite."""
    code = primary_code(error)
    if code == sqlite3.SQLITE_IOERR:
        code = _why_io_failed(path.parent)
    return _ADVICE.get(code, "check the file, its rights and the disk")


def _why_io_failed(folder: Path) -> int:
    """A better result code, where the file system tells. SQLite calls it an I/O error when there
    is no room for the -shm file, or when the system has stopped writing to a broken disk."""
    try:
        if not os.statvfs(folder).f_bavail:
            return sqlite3.SQLITE_FULL
        os.utime(folder)  # statvfs does not tell that ext4 gave up writing
    except OSError as error:
        if error.errno == errno.EROFS:
            return sqlite3.SQLITE_READONLY
    return sqlite3.SQLITE_IOERR
