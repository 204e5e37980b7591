"""Tables of querylog.db, through sqlite-utils.

facts        one row per query (or per identical repeats of one batch: `count`)
names, clients, words   dictionaries: what repeats is stored once
hourly       queries and their answers by hour, source and code
hourly_names, hourly_clients   by hour and name or client: all, and those blocked
"""

import sqlite3
from pathlib import Path
from typing import Any

from kudurru.adapters.sqlite.connection import connect, create_private, storage_errors

VERSION = 1
"""In PRAGMA user_version. A file of another version is set aside."""

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",  # a power cut may cost the newest rows, never the file
    "PRAGMA secure_delete=ON",  # what is purged is gone from the file
    "PRAGMA journal_size_limit=16777216",
)
_TABLES: dict[str, tuple[dict[str, type], Any]] = {
    "names": ({"id": int, "text": str}, "id"),
    "clients": ({"id": int, "text": str}, "id"),
    "words": ({"id": int, "text": str}, "id"),
    "facts": (
        {
            "id": int, "ts": int, "client": int, "name": int, "type": int, "proto": int,
            "rcode": int, "source": int, "reason": int, "policy": int, "list": int, "rule": int,
            "upstream": int, "duration_us": int, "count": int,
        },
        "id",
    ),
    "hourly": ({"hour": int, "source": int, "rcode": int, "queries": int},
               ("hour", "source", "rcode")),
    "hourly_names": ({"hour": int, "name": int, "queries": int, "blocked": int}, ("hour", "name")),
    "hourly_clients": ({"hour": int, "client": int, "queries": int, "blocked": int},
                       ("hour", "client")),
}  # fmt: skip


def open_log(path: Path) -> sqlite3.Connection:
    """The file for writing, made with mode 0600 where it is missing. Raises: StorageFailed, and
    StorageBroken for a file that is damaged or of another version."""
    with storage_errors(path):
        if not path.exists():
            create_private(path)
    connection = connect(path)
    try:
        with storage_errors(path):
            _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found not in (0, VERSION):
        error = sqlite3.DatabaseError(f"a query log of version {found}")
        error.sqlite_errorcode = sqlite3.SQLITE_NOTADB  # set aside like what is none
        raise error
    if not found:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    for pragma in _PRAGMAS:
        connection.execute(pragma)
    if not found:
        _create(connection)


def _create(connection: sqlite3.Connection) -> None:
    from sqlite_utils import (
        Database,
    )  # here, as it takes a third of the time that a server starts in

    database = Database(connection)
    for table, (columns, pk) in _TABLES.items():
        database[table].create(columns, pk=pk, if_not_exists=True)  # type: ignore[union-attr]  # tables, not views
    for table in ("names", "clients", "words"):
        database[table].create_index(["text"], unique=True, if_not_exists=True)  # type: ignore[union-attr]  # as above
    database["facts"].create_index(["ts"], if_not_exists=True)  # type: ignore[union-attr]  # as above
    connection.execute(f"PRAGMA user_version={VERSION}")
