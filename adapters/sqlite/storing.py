"""Writing into the tables of a log, inside of a transaction that the log opened."""

import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from kudurru.adapters.sqlite import schema
from kudurru.domain.errors import Conflict
from kudurru.domain.objects import Key
from kudurru.domain.ports import Copied, LogRow, StoredCheckpoint, Upkeep
from kudurru.domain.tree import Tile

LOG_COLUMNS = 14
WIDTH_MAX = 2048
"""Rows of one statement, a power of two. SQLite lets the interpreter go once for each statement, so
that other threads go on while the rows are stored; the next statement then waits for those. It has
room for 32,766 parameters, which are 2,340 rows."""

NO_UPKEEP = Upkeep()

BARE_ROWS = 256
"""Rows in a part of a copy from which on the trigger that looks for gaps is taken off for them: it
costs a sixth of storing. Fewer are not worth a change of the schema, after which each connection
reads it anew."""

_INSERT_TILE = """
    INSERT INTO tiles (level, idx, width, hashes) VALUES (?, ?, ?, ?)
    ON CONFLICT (level, idx) DO UPDATE SET width = excluded.width, hashes = excluded.hashes"""
_ERASE = {
    "body": "UPDATE log SET salt = NULL, body = NULL WHERE seq BETWEEN ? AND ?",
    "who": "UPDATE log SET who_salt = NULL, who = NULL WHERE seq BETWEEN ? AND ?",
}


def insert_rows(
    db: sqlite3.Connection, rows: Sequence[LogRow], streams: dict[str | None, int]
) -> None:
    """`streams` has the id of each stream that exists and gets the others."""
    new_streams: list[Any] = []
    new_scopes: list[Any] = []
    scopes: dict[str | None, int] = {}
    for row in rows:
        if row.obj not in streams:
            streams[row.obj] = row.seq
            new_streams += (row.seq, row.obj)
        if row.scope not in scopes:
            sql = "SELECT id FROM scopes WHERE scope = ?"
            found = db.execute(sql, (row.scope,)).fetchone()
            scopes[row.scope] = found[0] if found else row.seq
            if not found:
                new_scopes += (row.seq, row.scope)
    _insert(db, "streams", 2, new_streams)
    _insert(db, "scopes", 2, new_scopes)
    _insert(db, "log", LOG_COLUMNS, _columns(rows, streams, scopes))


def _columns(
    rows: Iterable[LogRow], streams: dict[str | None, int], scopes: dict[str | None, int]
) -> list[Any]:
    """Of all rows, one after the other."""
    values: list[Any] = []
    for row in rows:
        values += columns_of(row, streams[row.obj], scopes[row.scope])
    return values


def columns_of(row: LogRow, stream: int, scope: int) -> tuple[Any, ...]:
    """In the order of the table `log`."""
    return (
        row.seq,
        row.txn,
        row.ts,
        stream,
        row.ver,
        scope,
        row.type,
        row.entry,
        row.salt,
        row.body,
        row.who_salt,
        row.who,
        row.leaf,
        row.head,
    )


def _insert(db: sqlite3.Connection, table: str, columns: int, values: list[Any]) -> None:
    """Rows of a table, in as few statements as may be."""
    at, left, width = 0, len(values) // columns, WIDTH_MAX
    while left:
        while width > left:
            width //= 2
        end = at + columns * width
        db.execute(_insertion(table, columns, width), values[at:end])
        at, left = end, left - width


@cache
def _insertion(table: str, columns: int, width: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * width)}"  # noqa: S608  # of constants


class Copying:
    """Writes a copy of another node's log, whose rows were checked, in one transaction."""

    def __init__(self, db: sqlite3.Connection, after: int) -> None:
        """The rows come after a position."""
        self._db = db
        self.newest = after
        self._is_bare = False  # of the trigger that looks for gaps
        self._waiting: list[LogRow] = []  # for a statement to be full

    def add(self, taken: Copied) -> None:
        """The next rows and all that belongs to them. Raises: Conflict."""
        db, rows = self._db, taken.rows
        # A part that was pruned as a whole has no rows, and an end.
        if (rows[0].seq if rows else taken.head.seq) <= self.newest:
            raise Conflict(f"the log is at {self.newest} already: begin again")
        # Rows that were pruned there are a gap here. Where there is none, who checked the rows has
        # seen that: the trigger is against mistakes of those who check nothing.
        has_gap = len(rows) != taken.head.seq - self.newest
        if not self._is_bare and (has_gap or len(rows) >= BARE_ROWS):
            db.execute("DROP TRIGGER log_has_no_gap")
            self._is_bare = True
        self._waiting += rows
        if len(self._waiting) >= WIDTH_MAX or taken.upkeep != NO_UPKEEP:
            self._insert_waiting()
        insert_tiles(db, taken.tiles)
        for checkpoint in taken.checkpoints:
            insert_checkpoint(db, checkpoint)
        write_secrets(db, dict(taken.secrets))
        take_away(db, taken.upkeep)
        self.newest = taken.head.seq

    def end(self) -> None:
        """Before the transaction is committed."""
        self._insert_waiting()
        if self._is_bare:
            self._db.execute(schema.NO_GAP)

    def _insert_waiting(self) -> None:
        rows, self._waiting = self._waiting, []
        insert_rows(self._db, rows, _streams_of(self._db, rows))


def _streams_of(db: sqlite3.Connection, rows: Iterable[LogRow]) -> dict[str | None, int]:
    """Ids of those that are there."""
    streams: dict[str | None, int] = {}
    for row in rows:
        if row.ver != 1 and row.obj not in streams:
            found = db.execute("SELECT id FROM streams WHERE key = ?", (row.obj,)).fetchone()
            if found is not None:
                streams[row.obj] = found[0]
    return streams


def insert_tiles(db: sqlite3.Connection, tiles: Iterable[Tile]) -> None:
    values = [(t.level, t.index, len(t.hashes), b"".join(t.hashes)) for t in tiles]
    if values:
        db.executemany(_INSERT_TILE, values)


def insert_checkpoint(db: sqlite3.Connection, found: StoredCheckpoint) -> None:
    db.execute(
        "INSERT INTO checkpoints (size, note, frontier, state) VALUES (?, ?, ?, ?)",
        (found.size, found.note, found.frontier, found.state),
    )


def write_secrets(db: sqlite3.Connection, writes: dict[Key, bytes | None]) -> None:
    for key, sealed in writes.items():
        if sealed is None:
            db.execute("DELETE FROM secrets WHERE key = ?", (key,))
        else:
            db.execute("INSERT OR REPLACE INTO secrets VALUES (?, ?)", (key, sealed))


def take_away(db: sqlite3.Connection, upkeep: Upkeep) -> None:
    for erasure in upkeep.erase:
        db.execute(_ERASE[erasure.part], (erasure.first, erasure.last))
    if upkeep.epoch:
        db.execute("UPDATE meta SET epoch = ?", (upkeep.epoch,))
    anchor = upkeep.prune
    if anchor is None:
        return
    # The anchor first: rows can only go when there is one after them.
    db.execute("UPDATE checkpoints SET state = NULL WHERE anchor = 1")
    changed = db.execute(
        "UPDATE checkpoints SET anchor = 1, state = ? WHERE size = ?", (anchor.kept, anchor.size)
    )
    if changed.rowcount != 1:
        raise Conflict(f"there is no checkpoint of {anchor.size} events any more")
    db.executemany("DELETE FROM log WHERE seq BETWEEN ? AND ?", anchor.runs())
