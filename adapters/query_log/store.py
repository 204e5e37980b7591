"""Writes the query log: batches of facts, roll-ups, retention, purge.

One transaction per batch, in which facts and roll-ups change together. A batch that the disk does
not take is lost and counted; a file that is damaged is set aside and a new one begun.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from kudurru.adapters.query_log.schema import open_log
from kudurru.adapters.sqlite.connection import storage_errors
from kudurru.domain.errors import NotFound, StorageBroken, StorageFailed
from kudurru.domain.query_log import (
    KEY_SIZE,
    Fact,
    Filter,
    Kept,
    Privacy,
    Retention,
    Seen,
    fact_of,
    question_key,
)

DELETE_BATCH = 5_000
"""Rows of one delete: what writers wait for, some milliseconds."""
TEMPLATES_MAX = 131_072
"""Questions of which it is known what engines repeat, twice: as many as their memos hold."""
DICTIONARY_MAX = 50_000
"""Ids remembered per dictionary. The rest is looked up in the file."""
ROLLUPS_S = 400 * 86_400
"""How long roll-ups stay: the same month of last year can be compared."""

HOUR_US = 3_600_000_000
_BLOCKED = "blocked"
_RULES_MAX = 512  # characters of a rule that are kept


Repeated = tuple[str, int, bytes]
"""What engines repeat: a protocol, a class of clients, and a question as `Fact.key` has it."""


class StoreStatistics(msgspec.Struct, frozen=True, kw_only=True):
    written: int = 0  # queries
    ignored: int = 0
    unknown: int = 0  # repeats of what was not noted
    failed: int = 0  # queries that the disk did not take
    deleted: int = 0

    def plus(self, other: "StoreStatistics") -> "StoreStatistics":
        mine, its = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return StoreStatistics(**{name: count + its[name] for name, count in mine.items()})


def purge(path: Path, before_us: int | None) -> int:
    """Delete from a query log that nobody writes just now. Raises: NotFound, StorageFailed."""
    if not path.exists():
        raise NotFound(f"there is no query log at {path}")
    store = QueryLogStore(path, bytes)
    try:
        return store.purge(before_us)
    finally:
        store.close()


class QueryLogStore:
    """The file at `path`, open for writing. `new_key` makes keys for pseudonyms."""

    def __init__(self, path: Path, new_key: Callable[[int], bytes]) -> None:
        self._path = path
        self._new_key = new_key
        self._filter = Filter(Privacy(), new_key(KEY_SIZE))
        self._retention = Retention()
        self._young: dict[Repeated, Fact] = {}
        self._old: dict[Repeated, Fact] = {}
        self._counts: Counter[str] = Counter()
        self._connection: sqlite3.Connection | None = None
        self._open()

    def configure(self, privacy: Privacy, retention: Retention) -> None:
        """Take new settings. Where privacy changes, pseudonyms do: those before and after cannot
        be joined."""
        self._retention = retention
        if privacy != self._filter.privacy:
            self._filter = Filter(privacy, self._new_key(KEY_SIZE))

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(**self._counts)

    def close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _open(self) -> None:
        """Open the file; one that is damaged goes aside. Without a file nothing is kept."""
        self._ids: dict[str, dict[str, int]] = {"names": {}, "clients": {}, "words": {}}
        try:
            self._connection = open_log(self._path)
        except StorageBroken:
            self.close()
            self._set_aside()
            with suppress(StorageFailed):
                self._connection = open_log(self._path)
        except StorageFailed:
            self._connection = None

    def _set_aside(self) -> None:
        aside = self._path.with_name(self._path.name + ".damaged")
        with suppress(OSError):
            for end in ("-wal", "-shm"):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
            self._path.replace(aside)

    # --- writing ------------------------------------------------------------------------

    def write(self, seen: Seen) -> None:
        """Keep what was noted, as far as privacy lets it. Never raises for the disk."""
        counted: Counter[Kept] = Counter()
        total = 0
        for fact in self._facts(seen):
            kept = self._filter.keep(fact)
            if kept is None:
                self._counts["ignored"] += 1
            else:
                counted[kept] += fact.weight
                total += 1
        if not counted:
            return
        try:
            with self._transaction() as connection:
                if self._filter.keeps_queries:
                    self._insert(connection, counted)
                self._roll_up(connection, counted)
            self._counts["written"] += total
        except StorageFailed as error:
            self._counts["failed"] += total
            self._forget_ids()
            if isinstance(error, StorageBroken):
                self.close()
                self._set_aside()
                self._open()

    def _facts(self, seen: Seen) -> Iterator[Fact]:
        for fact in seen.facts:
            if fact.key:
                self._remember(fact)
            if fact.weight:
                yield fact
        for answered in seen.answers:
            yield fact_of(answered, seen.now_us)
        for proto, repeats in seen.repeats.items():
            for client, query, client_class, weight in repeats:
                key = question_key(query)
                template = self._recall((proto, client_class, key)) if key is not None else None
                if template is None:
                    self._counts["unknown"] += 1
                    continue
                yield msgspec.structs.replace(
                    template,
                    ts_us=seen.now_us,
                    client=client,
                    duration_us=0,
                    key=b"",
                    weight=weight,
                )

    def _remember(self, fact: Fact) -> None:
        if len(self._young) >= TEMPLATES_MAX:
            self._old, self._young = self._young, {}
        self._young[fact.proto, fact.client_class, fact.key] = fact

    def _recall(self, key: Repeated) -> Fact | None:
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self._remember(found)
        return found

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._connection is None:
            self._open()
        if self._connection is None:
            raise StorageFailed(f"{self._path} cannot be opened")
        connection = self._connection
        with storage_errors(self._path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def _insert(self, connection: sqlite3.Connection, counted: Counter[Kept]) -> None:
        word = self._word
        rows = [
            (
                kept.fact.ts_us, self._id(connection, "clients", kept.client),
                self._id(connection, "names", kept.name), kept.fact.rtype,
                word(connection, kept.fact.proto), kept.fact.rcode,
                word(connection, kept.fact.source), word(connection, kept.fact.reason),
                word(connection, kept.fact.policy), word(connection, kept.fact.list),
                word(connection, kept.fact.rule[:_RULES_MAX]), word(connection, kept.fact.upstream),
                kept.fact.duration_us, count,
            )
            for kept, count in counted.items()
        ]  # fmt: skip
        connection.executemany(
            "INSERT INTO facts (ts, client, name, type, proto, rcode, source, reason, policy, list,"
            " rule, upstream, duration_us, count) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            rows,
        )

    def _roll_up(self, connection: sqlite3.Connection, counted: Counter[Kept]) -> None:
        totals: Counter[tuple[int, int, int]] = Counter()
        by: dict[str, Counter[tuple[int, int]]] = {"names": Counter(), "clients": Counter()}
        blocked: dict[str, Counter[tuple[int, int]]] = {"names": Counter(), "clients": Counter()}
        for kept, count in counted.items():
            hour = kept.fact.ts_us // HOUR_US
            totals[hour, self._word(connection, kept.fact.source), kept.fact.rcode] += count
            if not self._filter.keeps_queries:
                continue
            for table, text in (("names", kept.name), ("clients", kept.client)):
                place = hour, self._id(connection, table, text)
                by[table][place] += count
                if kept.fact.source == _BLOCKED:
                    blocked[table][place] += count
        connection.executemany(
            "INSERT INTO hourly VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET"
            " queries = queries + excluded.queries",
            [(*place, count) for place, count in totals.items()],
        )
        for table, counts in by.items():
            connection.executemany(
                f"INSERT INTO hourly_{table} VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET"  # noqa: S608  # our own table names
                " queries = queries + excluded.queries, blocked = blocked + excluded.blocked",
                [(*place, count, blocked[table][place]) for place, count in counts.items()],
            )

    def _word(self, connection: sqlite3.Connection, text: str) -> int:
        return self._id(connection, "words", text)

    def _id(self, connection: sqlite3.Connection, table: str, text: str) -> int:
        """Id of a text in a dictionary, made when it is new."""
        known = self._ids[table]
        found = known.get(text)
        if found is None:
            row = connection.execute(
                f"INSERT INTO {table} (text) VALUES (?) ON CONFLICT DO UPDATE SET text = text"  # noqa: S608  # as above
                " RETURNING id",
                (text,),
            ).fetchone()
            if len(known) >= DICTIONARY_MAX:
                known.clear()
            found = known[text] = int(row[0])
        return found

    def _forget_ids(self) -> None:
        """What a transaction that failed had made is not there."""
        for known in self._ids.values():
            known.clear()

    # --- deleting -----------------------------------------------------------------------

    def purge(self, before_us: int | None) -> int:
        """Delete queries from before a moment, None: all. Roll-ups and dictionaries stay. How many
        queries that were. Raises: StorageFailed."""
        where, arguments = ("", ()) if before_us is None else ("WHERE ts < ?", (before_us,))
        return self._delete_facts(where, arguments)

    def tidy(self, now_us: int) -> int:
        """Delete what is too old, and the oldest of what is too much. How many queries."""
        deleted = 0
        with suppress(StorageFailed):
            before = now_us - self._retention.age_s * 1_000_000
            deleted = self._delete_facts("WHERE ts < ?", (before,))
            while self._size() > self._retention.bytes_max:
                found = self._delete_facts("", (), limit=DELETE_BATCH)
                deleted += found
                if not found:
                    self._halve_rollups()
                    break
            kept_s = max(ROLLUPS_S, self._retention.age_s)
            self._delete_rollups((now_us - kept_s * 1_000_000) // HOUR_US)
        return deleted

    def _delete_facts(
        self, where: str, arguments: tuple[Any, ...], limit: int | None = None
    ) -> int:
        deleted = 0
        while limit is None or limit > 0:
            with self._transaction() as connection:
                rows = connection.execute(
                    f"DELETE FROM facts WHERE id IN (SELECT id FROM facts {where} ORDER BY ts"  # noqa: S608  # our own conditions
                    " LIMIT ?) RETURNING count",
                    (*arguments, DELETE_BATCH),
                ).fetchall()
            if not rows:
                break
            deleted += sum(row[0] for row in rows)
            limit = None if limit is None else limit - len(rows)
            self._shrink()
        self._counts["deleted"] += deleted
        return deleted

    def _shrink(self) -> None:
        """Give pages that are free back, also those that the write-ahead log remembers."""
        assert self._connection is not None
        with storage_errors(self._path):
            # `execute` would take one step of it, which is one page.
            self._connection.executescript("PRAGMA incremental_vacuum")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _size(self) -> int:
        if self._connection is None:
            return 0
        with storage_errors(self._path):
            (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
            (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
            (size,) = self._connection.execute("PRAGMA page_size").fetchone()
        return int((pages - free) * size)

    def _halve_rollups(self) -> None:
        """Without a query left, names alone are too much, as after a flood of them: the oldest
        hours go, until there is room for queries again."""
        while self._size() > self._retention.bytes_max // 2:
            with self._transaction() as connection:
                (oldest,) = connection.execute("SELECT min(hour) FROM hourly").fetchone()
            if oldest is None:
                break
            self._delete_rollups(oldest + 1)

    def _delete_rollups(self, before_hour: int) -> None:
        """And what only they named: whatever a fact names, its hour names too."""
        with self._transaction() as connection:
            gone = 0
            for table in ("hourly", "hourly_names", "hourly_clients"):
                found = connection.execute(f"DELETE FROM {table} WHERE hour < ?", (before_hour,))  # noqa: S608  # our own table names
                gone += found.rowcount
            for table in ("names", "clients") if gone else ():
                connection.execute(
                    f"DELETE FROM {table} WHERE id NOT IN"  # noqa: S608  # our own table names
                    f" (SELECT {table[:-1]} FROM hourly_{table})"
                )
        if gone:
            self._forget_ids()
            self._shrink()
