"""A log in one file: what `log export` writes and `log import` reads.

It is a log.db like any other, written anew row by row: so every store has the same backup, and
nothing is in it that was erased. The copy ends at a position: what comes in meanwhile stays out.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from kudurru.adapters.sqlite import schema
from kudurru.adapters.sqlite.connection import connect, create_private, storage_errors
from kudurru.adapters.sqlite.storing import columns_of
from kudurru.domain.ports import LogRow, VerifiableLog
from kudurru.domain.tree import LEVELS_MAX, TILE_HEIGHT, TILE_WIDTH

BATCH = 1_000


def copy_log(
    log: VerifiableLog, upto: int, path: Path, now_us: int, seen: Callable[[int], None]
) -> None:
    """Write rows, tree and checkpoints up to a position into a new file of mode 0600. `seen` is
    called with the position of each row. Durable once it was opened as a log and closed, or synced.
    Raises: StorageFailed."""
    with storage_errors(path):
        create_private(path)
        with closing(connect(path)) as db:
            # Until it has its name nobody reads it: the caller syncs it whole.
            db.execute("PRAGMA journal_mode = OFF")
            db.execute("PRAGMA synchronous = OFF")
            db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            db.executescript(schema.TABLES)
            db.execute("BEGIN")
            meta = (log.log_id, log.epoch, schema.SCHEMA_VERSION, now_us)
            db.execute("INSERT INTO meta VALUES (1, ?, ?, ?, ?)", meta)
            _copy_rows(db, log.rows(0, upto), seen)
            _copy_tiles(db, log, upto)
            _copy_checkpoints(db, log, upto)
            db.execute("COMMIT")
            db.executescript(schema.TRIGGERS)  # last: rows that were pruned leave gaps


def _copy_rows(db: sqlite3.Connection, rows: Iterator[LogRow], seen: Callable[[int], None]) -> None:
    streams: dict[str | None, int] = {}
    scopes: dict[str | None, int] = {}
    insert = "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    while batch := list(islice(rows, BATCH)):
        columns = [_columns(row, streams, scopes) for row in batch]
        db.executemany(insert, columns)
        seen(batch[-1].seq)
    db.executemany("INSERT INTO streams VALUES (?, ?)", ((i, key) for key, i in streams.items()))
    db.executemany("INSERT INTO scopes VALUES (?, ?)", ((i, scope) for scope, i in scopes.items()))


def _columns(
    row: LogRow, streams: dict[str | None, int], scopes: dict[str | None, int]
) -> tuple[Any, ...]:
    """A stream gets the seq of the first row it has here as its id."""
    stream = streams.setdefault(row.obj, row.seq)
    return columns_of(row, stream, scopes.setdefault(row.scope, row.seq))


def _copy_tiles(db: sqlite3.Connection, log: VerifiableLog, upto: int) -> None:
    """Of level 0 full tiles only, as the rows have the rest."""
    insert = "INSERT INTO tiles (level, idx, width, hashes) VALUES (?, ?, ?, ?)"
    for level in range(LEVELS_MAX):
        count = upto >> TILE_HEIGHT * level
        if level == 0:
            count -= count % TILE_WIDTH
        for first in range(0, count, TILE_WIDTH):
            hashes = log.hashes(level, first, min(first + TILE_WIDTH, count))
            values = (level, first // TILE_WIDTH, len(hashes), b"".join(hashes))
            db.execute(insert, values)


def _copy_checkpoints(db: sqlite3.Connection, log: VerifiableLog, upto: int) -> None:
    insert = "INSERT INTO checkpoints (size, note, frontier, state) VALUES (?, ?, ?, ?)"
    for one in log.checkpoints():
        if one.size > upto:
            break
        db.execute(insert, (one.size, one.note, one.frontier, one.state))
    anchor = log.anchor()
    if anchor is not None:
        values = (anchor.kept, anchor.size)
        db.execute("UPDATE checkpoints SET anchor = 1, state = ? WHERE size = ?", values)
