"""Answers from the query log: single queries, the busiest names and clients, totals.

Reads the file beside whoever writes it, and changes nothing.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec

from kudurru.adapters.query_log.schema import VERSION
from kudurru.adapters.query_log.store import HOUR_US
from kudurru.adapters.sqlite.connection import BUSY_TIMEOUT_S, storage_errors
from kudurru.domain.errors import NotFound
from kudurru.domain.query_log import PSEUDONYM

if TYPE_CHECKING:
    from sqlite_utils import Database

Subject = Literal["domains", "clients", "blocked"]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which queries. Empty or None: all."""

    name: str = ""  # and what is below it
    client: str = ""  # as it is stored: an address, a network or a pseudonym
    rtype: int | None = None
    source: str = ""
    policy: str = ""
    list: str = ""
    since_us: int | None = None
    until_us: int | None = None  # before it
    after: int = 0  # id of the newest that is known
    pseudonyms_only: bool = False  # kept at a privacy level that names no client


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """A query as it is kept."""

    id: int
    ts_us: int
    client: str
    name: str
    type: int
    proto: str
    rcode: int
    source: str
    reason: str
    policy: str
    list: str
    rule: str
    upstream: str
    duration_us: int
    count: int


class Top(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    queries: int
    blocked: int


_DICTIONARIES = {
    "client": "clients", "name": "names", "proto": "words", "source": "words", "reason": "words",
    "policy": "words", "list": "words", "rule": "words", "upstream": "words",
}  # fmt: skip
_COLUMNS = ", ".join(
    ["f.id", "f.ts AS ts_us", "f.type", "f.rcode", "f.duration_us", "f.count"]
    + [f"{column}_.text AS {column}" for column in _DICTIONARIES]
)
_JOINS = " ".join(
    f"JOIN {table} AS {column}_ ON {column}_.id = f.{column}"
    for column, table in _DICTIONARIES.items()
)


class QueryLogReader:
    def __init__(self, database: "Database") -> None:
        self._database = database

    def queries(self, wanted: Wanted, limit: int, *, newest_first: bool = True) -> Iterator[Logged]:
        conditions, arguments = _conditions(wanted)
        order = "DESC" if newest_first else "ASC"
        sql = (
            f"SELECT {_COLUMNS} FROM facts f {_JOINS} WHERE {conditions}"  # noqa: S608  # our own columns
            f" ORDER BY f.id {order} LIMIT :limit"
        )
        for row in self._database.query(sql, {**arguments, "limit": limit}):
            yield msgspec.convert(row, Logged)

    def top(
        self, subject: Subject, since_us: int, limit: int, *, pseudonyms_only: bool = False
    ) -> list[Top]:
        """The busiest, from the roll-ups of the hours since a moment; of clients only those that
        are not named, if so wanted."""
        table = "clients" if subject == "clients" else "names"
        order = "blocked" if subject == "blocked" else "queries"
        some = f" AND {_is_pseudonym('t')}" if pseudonyms_only and table == "clients" else ""
        sql = (
            f"SELECT t.text, sum(queries) AS queries, sum(blocked) AS blocked FROM hourly_{table} h"  # noqa: S608  # our own tables
            f" JOIN {table} t ON t.id = h.{table[:-1]} WHERE hour >= :hour{some} GROUP BY t.id"
            f" HAVING {order} > 0 ORDER BY {order} DESC, t.text LIMIT :limit"
        )
        rows = self._database.query(sql, {"hour": since_us // HOUR_US, "limit": limit})
        return [msgspec.convert(row, Top) for row in rows]

    def totals(self, since_us: int) -> dict[str, int]:
        """Queries by source, from the roll-ups of the hours since a moment."""
        rows = self._database.query(
            "SELECT w.text, sum(queries) AS queries FROM hourly h JOIN words w ON w.id = h.source"
            " WHERE hour >= :hour GROUP BY w.text ORDER BY queries DESC",
            {"hour": since_us // HOUR_US},
        )
        return {row["text"]: row["queries"] for row in rows}

    def newest(self) -> int:
        """Id of the newest query, 0 when there is none."""
        row = next(iter(self._database.query("SELECT max(id) AS id FROM facts")))
        return row["id"] or 0


def _conditions(wanted: Wanted) -> tuple[str, dict[str, Any]]:
    """SQL of what is wanted, and its arguments."""
    found = ["f.id > :after"]
    arguments: dict[str, Any] = {"after": wanted.after}
    for column in ("client", "source", "policy", "list"):
        if value := getattr(wanted, column):
            found.append(f"{column}_.text = :{column}")
            arguments[column] = value
    if wanted.pseudonyms_only:
        found.append(_is_pseudonym("client_"))
    if wanted.name:
        found.append("(name_.text = :name OR substr(name_.text, -length(:below)) = :below)")
        arguments |= {"name": wanted.name, "below": f".{wanted.name}"}
    for condition, value in (
        ("f.type = :rtype", wanted.rtype),
        ("f.ts >= :since", wanted.since_us),
        ("f.ts < :until", wanted.until_us),
    ):
        if value is not None:
            found.append(condition)
            arguments[condition.rpartition(":")[2]] = value
    return " AND ".join(found), arguments


def _is_pseudonym(table: str) -> str:
    return f"{table}.text GLOB '{PSEUDONYM}*'"


class NotBegun(NotFound):
    """No query was logged there yet."""


@contextmanager
def open_reader(path: Path) -> Iterator[QueryLogReader]:
    """Raises: NotBegun when there is no query log; NotFound when it is another version's;
    StorageFailed."""
    if not path.exists():
        raise NotBegun(
            f"there is no query log at {path}: it begins with the first query of a server that has "
            "querylog.enabled"
        )
    with storage_errors(path):
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(path))}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S
        )
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if not version:
                raise NotBegun(f"the query log at {path} is being made: try again")
            if version != VERSION:
                raise NotFound(f"the query log at {path} is of version {version}, not {VERSION}")
            from sqlite_utils import Database  # a server imports this module and reads seldom

            yield QueryLogReader(Database(connection))
        finally:
            connection.close()
