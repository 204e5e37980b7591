"""Event log in one SQLite file: the default.

One process writes, which the lock of the data directory guards; a second that writes all the same
loses nothing and forks nothing, because every append takes SQLite's write lock first and reads the
head under it. `synchronous=FULL`: what `append` has returned survives a power cut.

Two connections: one appends, one reads, each behind a lock of its own, so that readers in other
threads do not wait for an fsync. Reads come in bounded batches and hold no transaction in
between, so a slow reader never keeps the -wal file from being taken in.
"""

import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

from eventsourcing.persistence import IntegrityError

from kudurru.adapters.recorder import (
    OURS_BEGIN_AT,
    RecordedLog,
    batch_sizes,
    check_head,
    check_last,
    continue_streams,
    secret_writes,
)
from kudurru.adapters.sqlite import schema
from kudurru.adapters.sqlite.connection import (
    WAL_SIZE_MAX,
    advice,
    connect,
    create_private,
    primary_code,
    storage_errors,
)
from kudurru.adapters.sqlite.elector import FileElector
from kudurru.adapters.sqlite.storing import (
    Copying,
    insert_checkpoint,
    insert_rows,
    insert_tiles,
    take_away,
    write_secrets,
)
from kudurru.adapters.tables import check_tables
from kudurru.domain.chain import (
    ENTRY_VERSION,
    entry_version,
    genesis,
    origin_of,
    recorded_of,
    row_of,
    salts_size,
    seal,
)
from kudurru.domain.errors import (
    ADVICE,
    Conflict,
    LogDamaged,
    LogNewer,
    NotFound,
    StorageBroken,
    StorageFailed,
)
from kudurru.domain.events import ChangeSet, Position, Recorded
from kudurru.domain.leadership import checked_role
from kudurru.domain.objects import Key
from kudurru.domain.ports import (
    Anchor,
    Clock,
    Copied,
    Entropy,
    LogHead,
    LogRow,
    SignTree,
    StoredCheckpoint,
    Upkeep,
)
from kudurru.domain.tree import HASH_SIZE, TILE_WIDTH, Edge

CACHE_KIB = 16 * 1024
"""Pages that the appending connection keeps: the hot part of the index of a million keys."""

SPILL_PAGES = 16 * 1024
"""Changed pages (of 4 KiB) that one append holds in memory before it writes some early. Above
CACHE_KIB, because pages written early are mostly written twice: a fifth of an import's time."""

WAL_PAGES = 4 * 1024
"""Pages in the -wal file after which a commit takes them into the database, and waits for that.
An append changes six pages, mostly the same ones; SQLite's own 1,000 would do this every 160
appends, and write the same pages each time."""

_HEAD = "SELECT seq, ts, head FROM log ORDER BY seq DESC LIMIT 1"
_STREAM = (
    "SELECT id, (SELECT max(ver) FROM log WHERE stream = streams.id) FROM streams WHERE key = ?"
)
_ROWS = """
    SELECT seq, txn, ts, key, ver, scopes.scope, type, entry, salt, body, who_salt, who, leaf, head
    FROM log LEFT JOIN streams ON streams.id = log.stream
             LEFT JOIN scopes ON scopes.id = log.scope
    WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"""
_CHECKPOINTS = "SELECT size, note, frontier, state FROM checkpoints"
_ANCHOR = """
    SELECT size, state FROM checkpoints WHERE anchor = 1 AND state IS NOT NULL
    ORDER BY size DESC LIMIT 1"""
_SCOPES = "SELECT scope FROM scopes ORDER BY id"
_BIRTHS = """
    SELECT seq, entry, body, who FROM streams CROSS JOIN log
    WHERE streams.key >= ? AND streams.key < ? AND log.stream = streams.id AND log.seq <= ?
      AND log.ver = (
          SELECT min(own.ver) FROM log AS own WHERE own.stream = streams.id AND own.ver > ifnull((
              SELECT gone.ver FROM log AS gone
              WHERE gone.type = 'obj.deleted.v1' AND gone.stream = streams.id AND gone.seq <= ?
              ORDER BY gone.seq DESC LIMIT 1), 0))"""
_SEQ_MAX = 2**63 - 1


class SQLiteEventLog(RecordedLog):
    """See `EventLog` and `VerifiableLog`. Made by `open`."""

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        entropy: Entropy,
        clock: Clock,
        create: bool = False,
        copy_of: tuple[str, int] | None = None,
    ) -> Self:
        """Open a log, made new where there is none and `create` says so; for the copy of another
        one, of which `copy_of` are the id and the epoch that it began with.

        Raises: NotFound when there is none; StorageFailed when the file is no log of ours, cannot
        be written, or is held by another process; LogNewer when a newer kudurru wrote it.
        """
        with storage_errors(path):
            if not path.exists():
                if not create:
                    raise NotFound(f"there is no log at {path}: name the right data directory")
                with suppress(FileExistsError):
                    create_private(path)
        writer = connect(path)
        try:
            with storage_errors(path):
                _prepare(writer, path, entropy, clock, create, copy_of)
            return cls(path, writer, entropy, clock)
        except BaseException:
            writer.close()
            raise

    def __init__(
        self, path: Path, writer: sqlite3.Connection, entropy: Entropy, clock: Clock
    ) -> None:
        super().__init__(clock)
        self.path = path
        self._entropy = entropy
        self._writer = writer
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._edge: Edge | None = None  # of the tree as this process appended to it last
        self._refusal = ""  # why nothing may be appended any more
        with storage_errors(path):
            self.log_id, self.epoch = _check_meta(writer, path)
            self._genesis = genesis(origin_of(self.log_id, self.epoch))
            self._last = self._head(writer)  # what this process wrote or read last
            self._reader = connect(path)
            self._reader.execute("PRAGMA query_only = ON")
            # The verifier must see text that was made invalid, not stumble over it.
            self._reader.text_factory = lambda text: str(text, "utf-8", "surrogateescape")

    def close(self) -> None:
        with self._read_lock, self._write_lock:
            self._reader.close()
            self._writer.close()  # the last one out takes the -wal file in

    def insert(
        self,
        change_sets: Sequence[ChangeSet],
        now_us: int,
        first: Collection[int],
        *,
        head_seq: int | None = None,
        sign: SignTree | None = None,
        upkeep: Upkeep | None = None,
    ) -> list[Recorded]:
        salts = self._entropy.token(salts_size(change_sets))
        ids: dict[str | None, int] = {}
        # A stream that begins at 1 is not looked for: if it is there, its key is not unique.
        begun = {e.key for one in change_sets for e in one.events if e.ver == 1}
        begun = begun if first == OURS_BEGIN_AT else set()
        with self._transaction() as db:
            head = self._head(db)
            self._check_head(db, head)
            check_head(head.seq, head_seq)

            def version_of(key: Key) -> int | None:
                if key in begun:
                    return None
                found = db.execute(_STREAM, (key,)).fetchone()
                if found is None:
                    return None
                ids[key] = found[0]
                return found[1]  # type: ignore[no-any-return]  # by the table

            continue_streams(change_sets, version_of, first)
            sealed = seal(change_sets, head, now_us, salts)
            try:
                insert_rows(db, [row_of(row) for row in sealed], ids)
            except sqlite3.IntegrityError as error:
                raise IntegrityError(str(error)) from error
            write_secrets(db, secret_writes(change_sets))
            edge = self._grow_tree(db, head, [row.leaf for row in sealed])
            if sign is not None:
                insert_checkpoint(db, sign(edge, sealed[-1].event.body or b""))
            if upkeep is not None:
                take_away(db, upkeep)
        if sealed:
            newest = sealed[-1]
            self._last = LogHead(newest.event.seq, newest.event.ts, newest.head)
        self._edge = edge
        if upkeep is not None:
            self.epoch = upkeep.epoch or self.epoch
            # What was taken away is durable, and its octets are still in the -wal file.
            with self._write_lock:
                _empty_wal(self._writer)
        return [row.event for row in sealed]

    def take_over(self, parts: Iterable[Copied]) -> LogHead | None:
        """Store rows of another node's log, checked, as they come, up to the first part that the
        log may end with: one transaction, durable when it returns. None when there are no more
        parts.

        Raises: what the parts raise, and then nothing was stored; Conflict when the log is not
        where they go on from; StorageFailed, StorageBroken and LogDamaged as `append` does.
        """
        taken = erased = None
        with self._transaction() as db:
            head = self._head(db)
            self._check_head(db, head)
            copying = Copying(db, head.seq)
            for taken in parts:
                copying.add(taken)
                erased = erased or taken.upkeep.erase or taken.upkeep.prune
                if taken.is_whole:
                    break
            if taken is None:
                return None
            if not taken.is_whole:
                raise Conflict(f"the copy ends in the middle of a change, at {copying.newest}")
            copying.end()
        self._last, self._edge = taken.head, taken.edge
        self.epoch = taken.upkeep.epoch or self.epoch
        if erased:
            with self._write_lock:
                _empty_wal(self._writer)
        self._notify()
        return taken.head

    def _grow_tree(self, db: sqlite3.Connection, head: LogHead, leaves: list[bytes]) -> Edge:
        """The edge of the tree with these leaves after `head`, tiles stored. Where another process
        has appended, or the stored tiles are behind, the rest of the leaves is read."""
        edge = self._edge
        if edge is None or edge.size != head.seq:
            edge = Edge.read(_tiled_size(db, head.seq), partial(_stored_hashes, db))
            sql = "SELECT leaf FROM log WHERE seq > ? AND seq <= ? ORDER BY seq"
            found = [row[0] for row in db.execute(sql, (edge.size, head.seq))]
            leaves = found + leaves
        edge, tiles = edge.extended(leaves)
        insert_tiles(db, tiles)
        return edge

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction, committed at the end. The write lock is taken by its first
        statement: read the head before that, and another process could move it in between (of
        two that tried, 65 to 92 % of appends failed)."""
        with self._write_lock, storage_errors(self.path):
            if self._refusal:
                raise StorageBroken(self._refusal)
            db = self._writer
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
            except BaseException as error:
                _roll_back(db)
                if primary_code(error) == sqlite3.SQLITE_FULL:
                    _empty_wal(db)  # or what was refused would go on filling the disk
                raise
            self._wait_begins()
            try:
                db.execute("COMMIT")
            except BaseException as error:
                self._commit_failed(error)
                raise

    def _commit_failed(self, error: BaseException) -> None:
        """A full disk writes no commit mark, so nothing was recorded. After anything else nobody
        knows what is durable: appending stops, and opening the log again reads what is.
        Raises: StorageBroken."""
        _roll_back(self._writer)
        if primary_code(error) == sqlite3.SQLITE_FULL:
            _empty_wal(self._writer)
            return
        if primary_code(error) == sqlite3.SQLITE_BUSY:
            return
        why = str(error) or type(error).__name__
        self._refusal = (
            f"{self.path}: a commit failed ({why}), so it is open whether the last change is "
            f"durable - {advice(error, self.path)}, then restart kudurru: it reads back what is"
        )
        if isinstance(error, sqlite3.Error):
            raise StorageBroken(self._refusal) from error

    def _head(self, db: sqlite3.Connection) -> LogHead:
        found = db.execute(_HEAD).fetchone()
        return LogHead(*found) if found else LogHead(Position(0), 0, self._genesis)

    def _check_head(self, db: sqlite3.Connection, head: LogHead) -> None:
        """The row that was newest is still there as it was; another process may have added."""
        last = self._last
        if head == last or not last.seq:
            return
        found = db.execute("SELECT head FROM log WHERE seq = ?", (last.seq,)).fetchone()
        check_last(found[0] if found else None, last)

    def _query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._read_lock, storage_errors(self.path):
            return self._reader.execute(sql, parameters).fetchall()

    def head(self) -> LogHead:
        with self._read_lock, storage_errors(self.path):
            return self._head(self._reader)

    def secret(self, key: Key) -> bytes | None:
        found = self._query("SELECT sealed FROM secrets WHERE key = ?", (key,))
        return found[0][0] if found else None

    def stream_version(self, key: Key) -> int:
        found = self._query(_STREAM, (key,))
        return (found[0][1] or 0) if found else 0

    def get(self, seq: int) -> Recorded | None:
        found = self._query("SELECT seq, entry, body, who FROM log WHERE seq = ?", (seq,))
        return recorded_of(*found[0]) if found else None

    def read(
        self,
        after: int = 0,
        upto: int | None = None,
        *,
        scope: str | None = None,
        key: Key | None = None,
        newest_first: bool = False,
    ) -> Iterator[Recorded]:
        """See `EventLog.read`. Events come from the entries: the columns only find them."""
        where, names = "seq > ? AND seq <= ?", []
        if key is not None:
            where += " AND stream = (SELECT id FROM streams WHERE key = ?)"
            names.append(str(key))
        if scope is not None:
            where += " AND scope = (SELECT id FROM scopes WHERE scope = ?)"
            names.append(scope)
        # Within a stream the order of versions is that of seqs, and has an index.
        order = f"{'ver' if key is not None else 'seq'} {'DESC' if newest_first else 'ASC'}"
        sql = f"SELECT seq, entry, body, who FROM log WHERE {where} ORDER BY {order} LIMIT ?"  # noqa: S608  # of constants
        low, high = after, _SEQ_MAX if upto is None else upto
        for wanted in batch_sizes():
            if low >= high:
                return  # and nothing behind is touched, which may be damaged
            batch, size = self._query_batch(sql, (low, high, *names), wanted)
            for row in batch:
                seq = row[0]
                if not low < seq <= high:
                    raise _goes_back(self.path, low, seq)
                yield recorded_of(*row)
                if newest_first:
                    high = seq - 1
                else:
                    low = seq
            if len(batch) < size:
                return

    def _query_batch(self, sql: str, parameters: Sequence[Any], size: int) -> tuple[list[Any], int]:
        """Up to `size` rows, and how many were asked for: fewer where the file is damaged behind
        them. Raises: StorageBroken when not even one can be read."""
        while True:
            try:
                return self._query(sql, (*parameters, size)), size
            except StorageBroken:
                if size == 1:
                    raise
                size //= 2

    def scopes(self) -> list[str]:
        return [row[0] for row in self._query(_SCOPES)]

    def births(self, kind: str, upto: int) -> Iterator[Recorded]:
        found = self._query(_BIRTHS, (f"{kind}/", f"{kind}0", upto, upto))  # 0 follows /
        return (recorded_of(*row) for row in found)

    def rows(self, after: int = 0, upto: int | None = None) -> Iterator[LogRow]:
        """See `VerifiableLog`. Raises: LogDamaged at a row that cannot be read at all."""
        high = _SEQ_MAX if upto is None else upto
        seq = after
        for wanted in batch_sizes():
            try:
                batch, _ = self._query_batch(_ROWS, (seq, high), wanted)
            except StorageBroken as error:
                raise LogDamaged("gap", seq + 1, f"the row cannot be read: {error}") from error
            for row in batch:
                if row[0] <= seq:
                    raise _goes_back(self.path, seq, row[0])
                yield LogRow(*row)
                seq = row[0]
            if not batch:  # fewer than asked for may be the work of a damaged page
                return

    def hashes(self, level: int, first: int, last: int) -> Sequence[bytes]:
        with self._read_lock, storage_errors(self.path):
            return _stored_hashes(self._reader, level, first, last)

    def checkpoints(self, after: int = 0) -> Iterator[StoredCheckpoint]:
        sql = f"{_CHECKPOINTS} WHERE size > ? ORDER BY size LIMIT ?"
        for size in batch_sizes():
            batch = self._query(sql, (after, size))
            for row in batch:
                yield StoredCheckpoint(*row)
                after = row[0]
            if len(batch) < size:
                return

    def newest_checkpoint(self) -> StoredCheckpoint | None:
        found = self._query(f"{_CHECKPOINTS} ORDER BY size DESC LIMIT 1")
        return StoredCheckpoint(*found[0]) if found else None

    def anchor(self) -> Anchor | None:
        found = self._query(_ANCHOR)
        return Anchor(*found[0]) if found else None

    def elector(self, name: str) -> FileElector:
        place = f"{self.path.name}.{checked_role(name)}.leader"
        return FileElector(self.path.with_name(place), self._clock)

    def check_storage(self) -> None:
        """What `verify` does not see: SQLite's indexes, of which one that lies answers reads of one
        object or one zone wrongly; triggers, that are gone or somebody else's; what stands beside
        the rows. As slow as reading the whole file.

        Raises: LogDamaged of kind `entry`, as an index is columns that must agree with it; of kind
        `tree` for tiles.
        """
        try:
            found = self._query("PRAGMA integrity_check(1)")[0][0]
        except StorageBroken as error:
            found = str(error)
        if found == "ok":
            check_tables(self._query, lambda: self.head().seq)
            found = schema.difference(self._query(schema.OBJECTS))
        if found:
            raise LogDamaged("entry", 0, f"{self.path} is inconsistent: {found}; {ADVICE}")


def _tiled_size(db: sqlite3.Connection, size: int) -> int:
    """How many of the first `size` leaves lie in full stored tiles."""
    found = db.execute("SELECT max(idx) FROM tiles WHERE level = 0").fetchone()[0]
    tiles = 0 if found is None else found + 1
    return int(min(tiles, size // TILE_WIDTH)) * TILE_WIDTH


def _stored_hashes(db: sqlite3.Connection, level: int, first: int, last: int) -> list[bytes]:
    """See `domain.tree.ReadHashes`. Fewer where some are missing."""
    index, at = divmod(first, TILE_WIDTH)
    sql = "SELECT hashes FROM tiles WHERE level = ? AND idx = ?"
    found = db.execute(sql, (level, index)).fetchone()
    if found is not None:
        octets = found[0]
        return [octets[i : i + HASH_SIZE] for i in _offsets(at, at + last - first, len(octets))]
    if level:
        return []
    sql = "SELECT leaf FROM log WHERE seq > ? AND seq <= ? ORDER BY seq"
    return [row[0] for row in db.execute(sql, (first, last))]


def _offsets(first: int, last: int, octets: int) -> range:
    return range(first * HASH_SIZE, min(last * HASH_SIZE, octets), HASH_SIZE)


def _goes_back(path: Path, after: int, found: int) -> LogDamaged:
    """Pages of a damaged file may lead in a circle, and a reader would never come to an end."""
    message = f"row {found} of {path} comes after row {after}: its pages are damaged; {ADVICE}"
    return LogDamaged("gap", after + 1, message)


def _roll_back(db: sqlite3.Connection) -> None:
    # Where SQLite has rolled back already, or cannot, there is nothing left to undo.
    with suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")


def _empty_wal(db: sqlite3.Connection) -> None:
    """Begin the -wal file anew, cut to nothing. That waits for readers, and so may have to wait
    for the next time."""
    with suppress(sqlite3.Error):
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _prepare(
    db: sqlite3.Connection,
    path: Path,
    entropy: Entropy,
    clock: Clock,
    create: bool,
    copy_of: tuple[str, int] | None,
) -> None:
    """Settings of the appending connection, and the tables where the file has none. Whose file it
    is comes first: somebody else's database stays as it is."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    is_empty = not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if application != schema.APPLICATION_ID and not (application == 0 and is_empty):
        raise StorageFailed(f"{path} is a SQLite database, and no kudurru log: {_RIGHT_PLACE}")
    if is_empty and not create:
        raise NotFound(f"{path} is empty, there is no log in it: {_RIGHT_PLACE}")
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StorageFailed(
            f"{path} cannot use a write-ahead log ({mode}) - keep the data directory on a local "
            "file system that is mounted for writing"
        )
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    db.execute(f"PRAGMA cache_spill = {SPILL_PAGES}")
    db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    db.execute(f"PRAGMA journal_size_limit = {WAL_SIZE_MAX}")
    if not create:
        return  # who only reads does not wait for who writes
    db.execute("BEGIN IMMEDIATE")
    try:
        if is_empty:
            log_id, epoch = copy_of or (entropy.token(16).hex(), 1)
            _create_tables(db, log_id, epoch, clock.now_us())
        db.execute(schema.SECRETS)
        # Changes nothing, and shows here, not at the first append, whether we may write.
        db.execute("DELETE FROM tracking WHERE 0")
        db.execute("COMMIT")
        # After an fsync that failed, the system may show pages that never reached the disk and not
        # write them again. What is read here as recorded is made so.
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    except BaseException:
        _roll_back(db)
        raise


_RIGHT_PLACE = "name the right data directory"


def _create_tables(db: sqlite3.Connection, log_id: str, epoch: int, now_us: int) -> None:
    if db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        return  # another process was faster
    statement = ""
    for line in (schema.TABLES + schema.TRIGGERS).splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):  # executescript would commit
            db.execute(statement)
            statement = ""
    meta = (log_id, epoch, schema.SCHEMA_VERSION, now_us)
    db.execute("INSERT INTO meta VALUES (1, ?, ?, ?, ?)", meta)
    db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")


def _check_meta(db: sqlite3.Connection, path: Path) -> tuple[str, int]:
    """Log id and epoch. Raises: LogNewer, StorageFailed."""
    try:
        version = db.execute("SELECT schema FROM meta").fetchone()
        if version is not None and version[0] > schema.SCHEMA_VERSION:
            _refuse_newer(path, f"has schema {version[0]}", schema.SCHEMA_VERSION)
        meta = db.execute("SELECT log_id, epoch FROM meta").fetchone()
        newest = db.execute("SELECT entry FROM log ORDER BY seq DESC LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        if primary_code(error) != sqlite3.SQLITE_ERROR:
            raise
        raise StorageFailed(f"{path} is no whole kudurru log ({error}): {_BACKUP}") from error
    if meta is None:
        raise StorageFailed(f"{path} is no whole kudurru log (meta is empty): {_BACKUP}")
    if newest is not None and (entry_version(newest[0]) or 0) > ENTRY_VERSION:
        _refuse_newer(path, f"has entries of version {entry_version(newest[0])}", ENTRY_VERSION)
    log_id, epoch = meta
    return log_id, epoch


_BACKUP = "keep it, and go back to a backup that verifies"


def _refuse_newer(path: Path, what: str, ours: int) -> NoReturn:
    raise LogNewer(
        f"{path} {what}, and this kudurru knows up to {ours}: it was written by a newer one, "
        "use that or a later one"
    )
