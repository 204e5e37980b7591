"""Writes the query log: batches of facts, roll-ups, retention, purge.

One transaction per batch, in which facts and roll-ups change together. A batch that the disk does
not take is lost and counted; a file that is damaged is set aside and a new one begun.
"""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

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
    Repeat,
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


class _Entry(NamedTuple):
    """Queries that are one row."""

    what: Fact  # but for what is said here
    ts_us: int
    client: bytes
    duration_us: int
    queries: int
    weight: int  # of all of them


_Kept = Sequence[tuple[_Entry, Kept]]
_Row = tuple[_Entry, int, int]
"""With the ids of its client and its name."""


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
        self._said: dict[tuple[str, ...], tuple[int, ...]] = {}
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
        entries = []
        total = 0
        for entry in self._entries(seen):
            kept = self._filter.keep(entry.client, entry.what.name)
            if kept is None:
                self._counts["ignored"] += entry.queries
            else:
                entries.append((entry, kept))
                total += entry.queries
        if not entries:
            return
        try:
            with self._transaction() as connection:
                self._count(connection, entries)
                if self._filter.keeps_queries:
                    rows = self._numbered(connection, entries)
                    self._insert(connection, rows)
                    self._count_by(connection, rows)
            self._counts["written"] += total
        except StorageFailed as error:
            self._counts["failed"] += total
            self._forget_ids()
            if isinstance(error, StorageBroken):
                self.close()
                self._set_aside()
                self._open()

    def _entries(self, seen: Seen) -> Iterator[_Entry]:
        for fact in seen.facts:
            if fact.key:
                self._remember(fact)
            if fact.weight:
                yield _Entry(fact, fact.ts_us, fact.client, fact.duration_us, 1, fact.weight)
        for answered, times in Counter(seen.answers).items():
            what = fact_of(answered, seen.now_us)
            yield _Entry(what, seen.now_us, what.client, 0, times, times * what.weight)
        for proto, repeats in seen.repeats.items():
            for (client, client_class, key), (times, weight) in _together(repeats).items():
                known = self._recall((proto, client_class, key)) if key is not None else None
                if known is None:
                    self._counts["unknown"] += times
                else:
                    yield _Entry(known, seen.now_us, client, 0, times, weight)

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

    def _numbered(self, connection: sqlite3.Connection, entries: _Kept) -> list[_Row]:
        self._learn(connection, "clients", [kept.client for _, kept in entries])
        self._learn(connection, "names", [kept.name for _, kept in entries])
        return [
            (entry, self._id(connection, "clients", client), self._id(connection, "names", name))
            for entry, (client, name) in entries
        ]

    def _insert(self, connection: sqlite3.Connection, rows: Iterable[_Row]) -> None:
        connection.executemany(
            "INSERT INTO facts (client, name, ts, type, rcode, duration_us, count, proto, source,"
            " reason, policy, list, rule, upstream) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            [
                (client, name, ts_us, what.rtype, what.rcode, duration_us, weight,
                 *self._words(connection, what))
                for (what, ts_us, _, duration_us, _, weight), client, name in rows
            ],
        )  # fmt: skip

    def _count(self, connection: sqlite3.Connection, entries: _Kept) -> None:
        """Roll up by source and code."""
        totals: dict[tuple[int, int, int], int] = defaultdict(int)
        for entry, _ in entries:
            source = self._id(connection, "words", entry.what.source)
            totals[entry.ts_us // HOUR_US, source, entry.what.rcode] += entry.weight
        connection.executemany(
            "INSERT INTO hourly VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET"
            " queries = queries + excluded.queries",
            [(*place, count) for place, count in totals.items()],
        )

    def _count_by(self, connection: sqlite3.Connection, rows: Iterable[_Row]) -> None:
        """Roll up by name and by client."""
        counts: dict[str, dict[tuple[int, int], list[int]]] = {"clients": {}, "names": {}}
        by_client, by_name = counts["clients"], counts["names"]
        for (what, ts_us, _, _, _, weight), client, name in rows:
            hour = ts_us // HOUR_US
            blocked = weight if what.source == _BLOCKED else 0
            for by, place in ((by_client, (hour, client)), (by_name, (hour, name))):
                if (sums := by.get(place)) is None:
                    by[place] = [weight, blocked]
                else:
                    sums[0] += weight
                    sums[1] += blocked
        for table, by in counts.items():
            connection.executemany(
                f"INSERT INTO hourly_{table} VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET"  # noqa: S608  # our own table names
                " queries = queries + excluded.queries, blocked = blocked + excluded.blocked",
                [(*place, *sums) for place, sums in sorted(by.items())],
            )

    def _words(self, connection: sqlite3.Connection, what: Fact) -> tuple[int, ...]:
        """Ids of what a fact says in words. Most say the same."""
        said = (what.proto, what.source, what.reason, what.policy, what.list,
                what.rule[:_RULES_MAX], what.upstream)  # fmt: skip
        found = self._said.get(said)
        if found is None:
            if len(self._said) >= DICTIONARY_MAX:
                self._said.clear()
            found = tuple([self._id(connection, "words", text) for text in said])
            self._said[said] = found
        return found

    def _learn(self, connection: sqlite3.Connection, table: str, texts: Iterable[str]) -> None:
        """Get to know the ids of texts, made where they are new: all in two statements, in the
        order of the index, so that it is walked once."""
        known = self._ids[table]
        new = sorted({text for text in texts if text not in known})
        if len(known) + len(new) > DICTIONARY_MAX:
            known.clear()
        connection.executemany(
            f"INSERT INTO {table} (text) VALUES (?) ON CONFLICT DO NOTHING",  # noqa: S608  # as above
            [(text,) for text in new],
        )
        known.update(
            connection.execute(
                f"SELECT t.text, t.id FROM json_each(?) j CROSS JOIN {table} t ON t.text = j.value",  # noqa: S608  # as above
                (json.dumps(new),),
            )
        )

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
        self._said.clear()
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


def _together(
    repeats: Iterable[Repeat],
) -> dict[tuple[bytes, int, bytes | None], tuple[int, int]]:
    """How many times a client repeated a question, by its class and key, and what they weigh."""
    found: dict[tuple[bytes, int, bytes | None], tuple[int, int]] = {}
    for (client, query, client_class, weight), times in Counter(repeats).items():
        one = client, client_class, question_key(query)
        queries, weights = found.get(one, (0, 0))
        found[one] = queries + times, weights + times * weight
    return found
