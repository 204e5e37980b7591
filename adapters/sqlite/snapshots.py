"""Snapshots of views in one SQLite file, `views.db`.

    snapshot  one row: what the snapshot is of, and a MAC over that and the digests of all parts
    parts     the parts of each view in order, each with its SHA-256

The file is written beside the old one and renamed over it: whoever dies meanwhile leaves the old
snapshot or none. The MAC key is in `keys/`, so a snapshot from elsewhere, or one that was edited by
somebody who may write here and not read there, is told from ours. A snapshot is worth nothing but
time, so whatever is wrong with one is a reason not to use it, and no fault.
"""

import hmac
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from kudurru.adapters.data_dir import sync_folder
from kudurru.adapters.sqlite.connection import connect, create_private, storage_errors

KEY_SIZE = 32

PAGE_SIZE = 16 * 1024
"""Parts are up to some megabytes: larger pages are fewer to follow."""

APPLICATION_ID = 0x6B767773  # "kvws"


class Unusable(Exception):
    """A snapshot that must not be loaded; the message says why, to follow a comma."""


class SnapshotOf(msgspec.Struct, frozen=True):
    """What a snapshot is of."""

    format: str  # of its parts: of the version of kudurru that wrote it
    origin: str  # of the log
    seq: int  # newest event that is in it
    head: bytes  # of the chain at that event
    digests: dict[str, str]  # of the views


def write_snapshot(
    path: Path, key: bytes, of: SnapshotOf, parts: Iterable[tuple[str, bytes]]
) -> None:
    """Put a snapshot in the place of the one before. `parts` are (name of the view, content), in
    the order of reading. Raises: StorageFailed; the one before is there then."""
    with storage_errors(path):
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
        remove_unfinished(path)
        try:
            create_private(unfinished)
            _write(unfinished, key, of, parts)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def remove_unfinished(path: Path) -> None:
    """What a process that died left."""
    for left in path.parent.glob(f"{path.name}.*.new"):
        left.unlink(missing_ok=True)


def remove_snapshot(path: Path) -> None:
    """Raises: StorageFailed."""
    with storage_errors(path):
        remove_unfinished(path)
        path.unlink(missing_ok=True)
        sync_folder(path.parent)


def _write(path: Path, key: bytes, of: SnapshotOf, parts: Iterable[tuple[str, bytes]]) -> None:
    from sqlite_utils import Database  # here, as it takes a while and a start does not need it

    db = connect(path)
    try:
        # The file is nothing before it has its name: one fsync at the end is enough.
        db.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        tables = Database(db)
        columns: dict[str, Any] = {"id": int, "about": bytes, "mac": bytes}
        tables.table("snapshot").create(columns, pk="id", strict=True)
        columns = {"at": int, "view": str, "digest": bytes, "body": bytes}
        tables.table("parts").create(columns, pk="at", strict=True)
        digests: list[tuple[str, bytes]] = []

        def rows() -> Iterator[tuple[int, str, bytes, bytes]]:
            for at, (view, body) in enumerate(parts):
                digest = sha256(body).digest()
                digests.append((view, digest))
                yield at, view, digest, body

        db.execute("BEGIN")
        db.executemany("INSERT INTO parts VALUES (?, ?, ?, ?)", rows())
        about = msgspec.msgpack.encode(of)
        mac = _mac(key, about, digests)
        db.execute("INSERT INTO snapshot VALUES (1, ?, ?)", (about, mac))
        db.execute("COMMIT")
    finally:
        db.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _mac(key: bytes, about: bytes, digests: list[tuple[str, bytes]]) -> bytes:
    return hmac.digest(key, msgspec.msgpack.encode((about, digests)), "sha256")


class StoredSnapshot:
    """A snapshot whose list of parts is ours; each part is held against it when it is read."""

    def __init__(self, db: sqlite3.Connection, of: SnapshotOf) -> None:
        self._db = db
        self.of = of

    def parts(self, view: str) -> Iterator[bytes]:
        """Raises: Unusable."""
        sql = "SELECT digest, body FROM parts WHERE view = ? ORDER BY at"
        with _reading():
            for digest, body in self._db.execute(sql, (view,)):
                if not isinstance(body, bytes) or sha256(body).digest() != digest:
                    raise Unusable("it is damaged, or was edited")
                yield body


@contextmanager
def open_snapshot(path: Path, key: bytes) -> Iterator[StoredSnapshot | None]:
    """The snapshot in a file; None where there is no file. Raises: Unusable, also in the block."""
    if not path.exists():
        yield None
        return
    with _reading():
        # Nobody writes into the file, it is only ever replaced: no locks, no -wal file.
        name = f"file:{quote(os.fsencode(path))}?mode=ro&immutable=1"
        db = sqlite3.connect(name, uri=True, check_same_thread=False)
    try:
        with _reading():
            of = _checked(db, key)
        yield StoredSnapshot(db, of)
    finally:
        db.close()


def _checked(db: sqlite3.Connection, key: bytes) -> SnapshotOf:
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise Unusable("it is no snapshot")
    rows = db.execute("SELECT about, mac FROM snapshot").fetchall()
    digests = db.execute("SELECT at, view, digest FROM parts ORDER BY at").fetchall()
    if len(rows) != 1 or [at for at, _, _ in digests] != list(range(len(digests))):
        raise Unusable("it is damaged, or was edited")
    about, mac = rows[0]
    expected = _mac(key, about, [(view, digest) for _, view, digest in digests])
    if not isinstance(mac, bytes) or not hmac.compare_digest(expected, mac):
        raise Unusable("it was edited, or made for another data directory")
    with suppress(msgspec.MsgspecError):
        return msgspec.msgpack.decode(about, type=SnapshotOf)
    raise Unusable("another version of kudurru wrote it")


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, TypeError) as error:
        raise Unusable(f"it cannot be read ({error})") from error
