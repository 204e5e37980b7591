"""Writing into the tables of a log, inside of a transaction that the log opened."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kudurru.adapters.sqlite import schema
from kudurru.domain.errors import Conflict
from kudurru.domain.objects import Key
from kudurru.domain.ports import Copied, LogRow, StoredCheckpoint, Upkeep
from kudurru.domain.tree import Tile

_INSERT = "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
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
    new_streams, new_scopes = [], []
    scopes: dict[str | None, int] = {}
    for row in rows:
        if row.obj not in streams:
            streams[row.obj] = row.seq
            new_streams.append((row.seq, row.obj))
        if row.scope not in scopes:
            sql = "SELECT id FROM scopes WHERE scope = ?"
            found = db.execute(sql, (row.scope,)).fetchone()
            scopes[row.scope] = found[0] if found else row.seq
            if not found:
                new_scopes.append((row.seq, row.scope))
    db.executemany("INSERT INTO streams VALUES (?, ?)", new_streams)
    db.executemany("INSERT INTO scopes VALUES (?, ?)", new_scopes)
    db.executemany(_INSERT, _columns(rows, streams, scopes))


def _columns(
    rows: Iterable[LogRow], streams: dict[str | None, int], scopes: dict[str | None, int]
) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        yield (
            row.seq,
            row.txn,
            row.ts,
            streams[row.obj],
            row.ver,
            scopes[row.scope],
            row.type,
            row.entry,
            row.salt,
            row.body,
            row.who_salt,
            row.who,
            row.leaf,
            row.head,
        )


def copy_in(db: sqlite3.Connection, after: int, taken: Copied) -> None:
    """Rows of another node's log, that come after a position, and all that belongs to them."""
    has_gap = len(taken.rows) != taken.head.seq - after
    if has_gap:  # of rows that were pruned there
        db.execute("DROP TRIGGER log_has_no_gap")
    streams: dict[str | None, int] = {}
    for row in taken.rows:
        if row.ver != 1 and row.obj not in streams:
            found = db.execute("SELECT id FROM streams WHERE key = ?", (row.obj,)).fetchone()
            if found is not None:
                streams[row.obj] = found[0]
    insert_rows(db, taken.rows, streams)
    if has_gap:
        db.execute(schema.NO_GAP)
    insert_tiles(db, taken.tiles)
    for checkpoint in taken.checkpoints:
        insert_checkpoint(db, checkpoint)
    write_secrets(db, dict(taken.secrets))
    take_away(db, taken.upkeep)


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
