"""Writes the query log: batches of facts, roll-ups, retention, purge.

One transaction per batch, in which facts and roll-ups change together. A batch that the disk does
not take is lost and counted; a file that is damaged is set aside and a new one begun.
"""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from kudurru.adapters.query_log.schema import open_log
from kudurru.adapters.sqlite.connection import storage_errors
from kudurru.domain.errors import NotFound, StorageBroken, StorageFailed
from kudurru.domain.query_log import (
    KEY_SIZE,
    Fact,
    Filter,
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
ANSWERED_MAX = 8_192
"""The same of answers from the zones, which say by themselves what they are."""
QUERIES_MAX = 16_384
"""Messages of which the question is remembered."""
DICTIONARY_MAX = 50_000
"""Ids remembered per dictionary. The rest is looked up in the file."""
ROLLUPS_S = 400 * 86_400
"""How long roll-ups stay: the same month of last year can be compared."""

VARIABLES_MAX = 900
"""In one statement: SQLite was built for 999 at least, and more gains nothing."""

HOUR_US = 3_600_000_000
_BLOCKED = "blocked"
_RCODE, _SOURCE = 1, 3  # places in `_Asked.said`
_RULES_MAX = 512  # characters of a rule that are kept


Repeated = tuple[str, int, bytes]
"""What engines repeat: a protocol, a class of clients, and a question as `Fact.key` has it."""


class _Asked:
    """A question and what became of it, with what the file has for that once it was written:
    repeats of it are rows without a look at names and words. 0 and (): nothing yet. What privacy
    wants gone never gets anything there."""

    __slots__ = ("name", "said", "what")

    def __init__(self, what: Fact) -> None:
        self.what = what
        self.forget()

    def forget(self) -> None:
        """What the file has is another thing now."""
        self.name = 0  # id
        self.said: tuple[int, ...] = ()  # type, RCODE and ids of words, in the order of the columns


_Entry = tuple[_Asked, bytes, int, int, int, int]
"""Queries that are one row: what was asked, the client's address, when, how long that took, how
many they are and what all of them weigh. A bare tuple, because there is one for every row."""

_Key = TypeVar("_Key", bound=Hashable)


class _Recent(Generic[_Key]):
    """What was used last: at least `size`, and at most twice as many."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._young: dict[_Key, _Asked] = {}
        self._old: dict[_Key, _Asked] = {}

    def put(self, key: _Key, asked: _Asked) -> None:
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[key] = asked

    def get(self, key: _Key) -> _Asked | None:
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.put(key, found)
        return found

    def forget(self) -> None:
        """Of all, what the file has for them."""
        for generation in (self._young, self._old):
            for asked in generation.values():
                asked.forget()


class _Hour:
    """What is rolled up of one hour: what queries weigh, by what the tables of that hour have."""

    def __init__(self) -> None:
        self.sources: dict[tuple[int, int], int] = {}  # and RCODE
        self.names: dict[int, int] = {}
        self.clients: dict[int, int] = {}
        self.blocked_names: dict[int, int] = {}
        self.blocked_clients: dict[int, int] = {}


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
        self._repeated: _Recent[Repeated] = _Recent(TEMPLATES_MAX)
        self._answered: _Recent[tuple[bytes, int]] = _Recent(ANSWERED_MAX)  # message and RCODE
        self._counts: Counter[str] = Counter()
        self._connection: sqlite3.Connection | None = None
        self._open()

    def configure(self, privacy: Privacy, retention: Retention) -> None:
        """Take new settings. Where privacy changes, pseudonyms do: those before and after cannot
        be joined."""
        self._retention = retention
        if privacy != self._filter.privacy:
            self._filter = Filter(privacy, self._new_key(KEY_SIZE))
            self._forget_asked()

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
        self._said: dict[tuple[int | str, ...], tuple[int, ...]] = {}
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
        entries, new = [], []
        for entry in self._entries(seen):
            asked = entry[0]
            if not asked.said:
                if not self._filter.keeps(asked.what.name):
                    self._counts["ignored"] += entry[4]
                    continue
                new.append(asked)
            entries.append(entry)
        if not entries:
            return
        total = sum(entry[4] for entry in entries)
        try:
            with self._transaction() as connection:
                self._number(connection, new)
                clients = self._clients(connection, entries) if self._filter.keeps_queries else {}
                if clients:
                    self._insert(connection, entries, clients)
                self._count(connection, entries, clients)
            self._counts["written"] += total
        except StorageFailed as error:
            self._counts["failed"] += total
            self._forget_ids()
            if isinstance(error, StorageBroken):
                self.close()
                self._set_aside()
                self._open()

    def _entries(self, seen: Seen) -> Iterator[_Entry]:
        now_us = seen.now_us
        for fact in seen.facts:
            asked = _Asked(fact)
            if fact.key:
                place = fact.proto, fact.client_class, fact.key
                if (earlier := self._repeated.get(place)) is not None:
                    asked.name = earlier.name
                self._repeated.put(place, asked)
            if fact.weight:
                yield asked, fact.client, fact.ts_us, fact.duration_us, 1, fact.weight
        for answered, times in Counter(seen.answers).items():
            client, query, rcode, weight = answered
            known = self._answered.get((query, rcode))
            if known is None:
                known = _Asked(fact_of(answered, now_us))
                self._answered.put((query, rcode), known)
            yield known, client, now_us, 0, times, times * weight
        for proto, repeats in seen.repeats.items():
            for (client, known), (times, weight) in self._together(proto, repeats).items():
                yield known, client, now_us, 0, times, weight

    def _together(
        self, proto: str, repeats: Iterable[Repeat]
    ) -> dict[tuple[bytes, _Asked], tuple[int, int]]:
        """How many times a client repeated what, and what they weigh."""
        found: dict[tuple[bytes, _Asked], tuple[int, int]] = {}
        for (client, query, client_class, weight), times in Counter(repeats).items():
            key = _question_key(query)
            asked = self._repeated.get((proto, client_class, key)) if key is not None else None
            if asked is None:
                self._counts["unknown"] += times
                continue
            one = client, asked
            queries, weights = found.get(one, (0, 0))
            found[one] = queries + times, weights + times * weight
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

    def _number(self, connection: sqlite3.Connection, new: Iterable[_Asked]) -> None:
        """Have ids for what was asked, and for what became of it."""
        for asked in new:
            asked.said = self._words(connection, asked.what)
        if self._filter.keeps_queries:
            unknown = [asked for asked in new if not asked.name]
            texts = [self._filter.name(asked.what.name) for asked in unknown]
            self._learn(connection, "names", texts)
            for asked, text in zip(unknown, texts, strict=True):
                asked.name = self._id(connection, "names", text)

    def _clients(
        self, connection: sqlite3.Connection, entries: Iterable[_Entry]
    ) -> dict[bytes, int]:
        """Ids of who asked."""
        texts = {client: self._filter.client(client) for client in {entry[1] for entry in entries}}
        self._learn(connection, "clients", texts.values())
        return {client: self._id(connection, "clients", text) for client, text in texts.items()}

    def _insert(
        self,
        connection: sqlite3.Connection,
        entries: Iterable[_Entry],
        clients: Mapping[bytes, int],
    ) -> None:
        _insert_all(
            connection,
            "facts (client, name, ts, duration_us, count, type, rcode, proto, source, reason,"
            " policy, list, rule, upstream)",
            [
                (clients[client], asked.name, ts_us, duration_us, weight, *asked.said)
                for asked, client, ts_us, duration_us, _, weight in entries
            ],
        )

    def _count(
        self,
        connection: sqlite3.Connection,
        entries: Iterable[_Entry],
        clients: Mapping[bytes, int],
    ) -> None:
        """Roll up by source and code and, where there are clients, by name and client."""
        for hour, sums in _hours(entries, clients).items():
            _insert_all(
                connection,
                "hourly",
                [(hour, *place, count) for place, count in sums.sources.items()],
                "ON CONFLICT DO UPDATE SET queries = queries + excluded.queries",
            )
            for table, queries, blocked in (
                ("hourly_clients", sums.clients, sums.blocked_clients),
                ("hourly_names", sums.names, sums.blocked_names),
            ):
                _insert_all(
                    connection,
                    table,
                    [(hour, one, queries[one], blocked.get(one, 0)) for one in sorted(queries)],
                    "ON CONFLICT DO UPDATE SET queries = queries + excluded.queries,"
                    " blocked = blocked + excluded.blocked",
                )

    def _words(self, connection: sqlite3.Connection, what: Fact) -> tuple[int, ...]:
        """`_Asked.said` of a fact. Most say the same."""
        words = (what.proto, what.source, what.reason, what.policy, what.list,
                 what.rule[:_RULES_MAX], what.upstream)  # fmt: skip
        said = (what.rtype, what.rcode, *words)
        found = self._said.get(said)
        if found is None:
            if len(self._said) >= DICTIONARY_MAX:
                self._said.clear()
            ids = [self._id(connection, "words", text) for text in words]
            found = self._said[said] = (what.rtype, what.rcode, *ids)
        return found

    def _learn(self, connection: sqlite3.Connection, table: str, texts: Iterable[str]) -> None:
        """Get to know the ids of texts, made where they are new: all in two statements, in the
        order of the index, so that it is walked once."""
        known = self._ids[table]
        new = sorted({text for text in texts if text not in known})
        if not new:
            return
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
        self._forget_asked()

    def _forget_asked(self) -> None:
        self._repeated.forget()
        self._answered.forget()

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


_question_key = lru_cache(QUERIES_MAX)(question_key)


def _hours(entries: Iterable[_Entry], clients: Mapping[bytes, int]) -> dict[int, _Hour]:
    """What is rolled up of entries whose words have ids, and their names where clients have."""
    found: dict[int, _Hour] = defaultdict(_Hour)
    for asked, client_, ts_us, _, _, weight in entries:
        hour = found[ts_us // HOUR_US]
        place = asked.said[_SOURCE], asked.said[_RCODE]
        hour.sources[place] = hour.sources.get(place, 0) + weight
        if not clients:
            continue
        name, client = asked.name, clients[client_]
        hour.names[name] = hour.names.get(name, 0) + weight
        hour.clients[client] = hour.clients.get(client, 0) + weight
        if asked.what.source == _BLOCKED:
            hour.blocked_names[name] = hour.blocked_names.get(name, 0) + weight
            hour.blocked_clients[client] = hour.blocked_clients.get(client, 0) + weight
    return found


def _insert_all(
    connection: sqlite3.Connection, table: str, rows: Sequence[tuple[int, ...]], end: str = ""
) -> None:
    """Insert rows, many of them with one statement: that costs a quarter less than one each."""
    for size in (VARIABLES_MAX // len(rows[0]), 1) if rows else ():
        at_once = [
            list(chain(*rows[i : i + size])) for i in range(0, len(rows) // size * size, size)
        ]
        rows = rows[len(at_once) * size :]
        if at_once:
            row = f"({','.join('?' * (len(at_once[0]) // size))})"
            connection.executemany(
                f"INSERT INTO {table} VALUES {','.join([row] * size)} {end}",  # noqa: S608  # our own tables
                at_once,
            )
