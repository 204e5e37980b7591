"""Event log in PostgreSQL: any node appends, all follow.

An append is two exchanges. The first locks the counter row, which orders the nodes until the
commit, and reads under it the head and the streams that the change continues. The second writes,
notifies and commits. So positions have no gap and become visible in order, and a node whose
decision was overtaken gets Conflict, catches up and decides again.

When the connection breaks and a COMMIT was under way, nobody knows what became of it. The append
then connects again and waits for the counter row, which the lost session held: having it, the old
transaction is over, and the row at its last position says how it ended.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import msgspec
import psycopg
from eventsourcing.persistence import IntegrityError
from psycopg import sql

from kudurru.adapters.postgres import schema
from kudurru.adapters.postgres.connection import (
    EXCHANGE_TIMEOUT_S,
    Connection,
    ConnectionLost,
    Place,
    Session,
    deadline,
)
from kudurru.adapters.postgres.elector import PostgresElector
from kudurru.adapters.postgres.listener import Listener
from kudurru.adapters.recorder import (
    RecordedLog,
    batch_sizes,
    check_head,
    check_last,
    continue_streams,
    secret_writes,
)
from kudurru.adapters.tables import check_tables
from kudurru.domain.chain import (
    ENTRY_VERSION,
    Sealed,
    entry_version,
    genesis,
    origin_of,
    recorded_of,
    salts_size,
    seal,
)
from kudurru.domain.errors import (
    ADVICE,
    KudurruError,
    LogDamaged,
    LogNewer,
    NotFound,
    StorageFailed,
)
from kudurru.domain.events import ChangeSet, Position, Recorded
from kudurru.domain.leadership import checked_role
from kudurru.domain.objects import Key
from kudurru.domain.ports import (
    Anchor,
    Clock,
    Entropy,
    LogHead,
    LogRow,
    SignTree,
    StoredCheckpoint,
    Upkeep,
)
from kudurru.domain.tree import HASH_SIZE, TILE_WIDTH, Edge

SCHEMA = "kudurru"
"""PostgreSQL schema of the tables: a database of its own is not needed."""

ROWS_PER_INSERT = 2_000
"""Rows of one statement: a million of them make no message of a gigabyte, and no single step that
takes longer than a deadline."""

LEAVES_MAX = 4_096
"""Leaves that an append reads to bring its edge of the tree up to date. What other nodes appended
beyond that is read from the tiles, which takes a few exchanges more."""

SETTLE_S = 10.0
"""How long an append goes on trying to learn what became of it after its connection broke."""

SETTLE_PAUSE_S = 0.1
SCHEMA_LOCK = 0x6B756475727275  # "kudurru": orders nodes that make the tables at the same time

_LOCK = "SELECT seq FROM counter FOR UPDATE"
_HEAD = "SELECT seq, ts, head FROM log ORDER BY seq DESC LIMIT 1"
_ROW = "SELECT seq, ts, head FROM log WHERE seq = %s"
_STREAMS = """
    SELECT key, id, (SELECT max(ver) FROM log WHERE stream = streams.id)
    FROM streams WHERE key = ANY(%b)"""
_SCOPES = "SELECT scope, id FROM scopes WHERE scope = ANY(%b)"
_INSERT = """
    INSERT INTO log SELECT * FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[],
        %b::bigint[], %b::bigint[], %s::text[], %b::bytea[], %b::bytea[], %b::bytea[],
        %b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[])"""
_ROWS = """
    SELECT seq, txn, ts, key, ver, scopes.scope, type, entry, salt, body, who_salt, who, leaf, head
    FROM log LEFT JOIN streams ON streams.id = log.stream
             LEFT JOIN scopes ON scopes.id = log.scope
    WHERE seq > %s AND seq <= %s ORDER BY seq LIMIT %s"""
_UNNEST_NAMES = "SELECT * FROM unnest(%b::bigint[], %b::bytea[])"
_LEAVES = "SELECT leaf FROM log WHERE seq > %s ORDER BY seq LIMIT %s"
_TILED = "SELECT max(idx) FROM tiles WHERE level = 0"
_INSERT_TILE = """
    INSERT INTO tiles (level, idx, width, hashes) VALUES (%s, %s, %s, %s)
    ON CONFLICT (level, idx) DO UPDATE SET width = excluded.width, hashes = excluded.hashes"""
_CHECKPOINTS = "SELECT size, note, frontier, state FROM checkpoints"
_INSERT_CHECKPOINT = """
    INSERT INTO checkpoints (size, note, frontier, state) VALUES (%s, %s, %s, %s)"""
_DROP_SEALED = "DELETE FROM secrets WHERE key = %s"
_PUT_SEALED = """
    INSERT INTO secrets (key, sealed) VALUES (%s, %s)
    ON CONFLICT (key) DO UPDATE SET sealed = excluded.sealed"""
_ANCHOR = """
    SELECT size, state FROM checkpoints WHERE anchor = 1 AND state IS NOT NULL
    ORDER BY size DESC LIMIT 1"""
_SET_ANCHOR = "UPDATE checkpoints SET anchor = 1, state = %s WHERE size = %s"
_PRUNE = """
    DELETE FROM log USING unnest(%b::bigint[], %b::bigint[]) AS run (first, last)
    WHERE seq BETWEEN run.first AND run.last"""
_ERASE = {
    "body": "UPDATE log SET salt = NULL, body = NULL WHERE seq BETWEEN %s AND %s",
    "who": "UPDATE log SET who_salt = NULL, who = NULL WHERE seq BETWEEN %s AND %s",
}
_BIRTHS = """
    SELECT seq, entry, body, who FROM streams JOIN log ON log.stream = streams.id
    WHERE streams.key >= %s AND streams.key < %s AND log.seq <= %s
      AND log.ver = (
          SELECT min(own.ver) FROM log AS own WHERE own.stream = streams.id AND own.ver > coalesce((
              SELECT gone.ver FROM log AS gone
              WHERE gone.type = 'obj.deleted.v1' AND gone.stream = streams.id AND gone.seq <= %s
              ORDER BY gone.seq DESC LIMIT 1), 0))"""
_SEQ_MAX = 2**63 - 1


class PostgresEventLog(RecordedLog):
    """See `EventLog` and `VerifiableLog`. Made by `open`."""

    @classmethod
    def open(
        cls,
        url: str,
        *,
        entropy: Entropy,
        clock: Clock,
        create: bool = False,
        schema: str = SCHEMA,
    ) -> Self:
        """Open a log, made new where there is none and `create` says so.

        Raises: Invalid for no URL; NotFound when there is none; StorageFailed when the database
        cannot be used; LogNewer when a newer kudurru wrote it.
        """
        place = Place(url, schema)
        with (
            place.connect() as connection,
            place.errors(),
            deadline(connection, EXCHANGE_TIMEOUT_S),
        ):
            _prepare(connection, place, entropy, clock, create)
        return cls(place, entropy, clock)

    def __init__(self, place: Place, entropy: Entropy, clock: Clock) -> None:
        super().__init__(clock)
        self.place = place
        self._entropy = entropy
        self._writer = Session(place, clock)
        self._reader = Session(place, clock)
        self._listener: Listener | None = None
        self._listener_lock = threading.Lock()
        self._wakes: list[Callable[[], None]] = []
        try:
            self.log_id, self.epoch = self._check_meta()
            self._genesis = genesis(origin_of(self.log_id, self.epoch))
            self._last = self.head()  # what this process wrote or read last
            self._edge = self._read_edge()  # of the tree, at a size that was once the log's
        except BaseException:
            self._reader.close()
            raise

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def last_contact_us(self) -> int:
        return max(self._writer.answered_us, self._reader.answered_us)

    def close(self) -> None:
        with self._listener_lock:
            if self._listener is not None:
                self._listener.close()
        self._reader.close()
        self._writer.close()

    # --- appending ----------------------------------------------------------------------

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
        append = _Append(channel(self.log_id), change_sets, now_us, first, head_seq, sign, upkeep)
        salts = self._entropy.token(salts_size(change_sets))
        with self.place.errors():
            try:
                return self._attempt(append, salts)
            except ConnectionLost:
                pass
            if append.sealed and self._settle(append.sealed[-1]):
                return self._done(append)
            try:
                return self._attempt(append, salts)
            except ConnectionLost as lost:
                raise StorageFailed(
                    f"{self.place}: the connection broke twice ({lost}), and it is open whether "
                    "the change is durable - look at `kudurru history` before you try again"
                ) from lost

    def _attempt(self, append: "_Append", salts: bytes) -> list[Recorded]:
        append.sealed = []
        try:
            with self._writer.use(append.timeout_s) as connection:
                self._wait_begins()  # for a database that is asked several times
                try:
                    append.run(connection, _Known(self._genesis, self._last, self._edge), salts)
                except BaseException:
                    if not connection.closed:
                        connection.execute("ROLLBACK")
                    raise
        except psycopg.IntegrityError as error:
            raise IntegrityError(str(error)) from error
        return self._done(append)

    def _done(self, append: "_Append") -> list[Recorded]:
        if append.sealed:
            newest = append.sealed[-1]
            self._last = LogHead(newest.event.seq, newest.event.ts, newest.head)
            self._edge = append.edge
            self.epoch = append.upkeep.epoch or self.epoch
        return [row.event for row in append.sealed]

    def _settle(self, newest: Sealed) -> bool:
        """Whether an append whose connection broke is durable. Raises: StorageFailed when that
        cannot be learnt now."""
        until = time.monotonic() + SETTLE_S
        while True:
            try:
                with self._writer.use() as connection, connection.transaction():
                    connection.execute(_LOCK)  # waits until the lost transaction is over
                    found = connection.execute(_ROW, (newest.event.seq,)).fetchone()
                    return found is not None and bytes(found[2]) == newest.head
            except (ConnectionLost, KudurruError) as error:
                if time.monotonic() > until:
                    raise StorageFailed(
                        f"{self.place}: the connection broke in a commit ({error}), and it is open "
                        "whether the change is durable - look at `kudurru history` when the "
                        "database is back"
                    ) from error
                time.sleep(SETTLE_PAUSE_S)

    # --- reading ------------------------------------------------------------------------

    def head(self) -> LogHead:
        found = self._reader.query(_HEAD)
        return LogHead(*found[0]) if found else LogHead(Position(0), 0, self._genesis)

    def stream_version(self, key: Key) -> int:
        found = self._reader.query(_STREAMS, ([str(key).encode()],))
        return (found[0][2] or 0) if found else 0

    def get(self, seq: int) -> Recorded | None:
        found = self._reader.query("SELECT seq, entry, body, who FROM log WHERE seq = %s", (seq,))
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
        where, names = "seq > %s AND seq <= %s", []
        if key is not None:
            where += " AND stream = (SELECT id FROM streams WHERE key = %s)"
            names.append(str(key).encode())
        if scope is not None:
            where += " AND scope = (SELECT id FROM scopes WHERE scope = %s)"
            names.append(scope.encode())
        # Within a stream the order of versions is that of seqs, and has an index.
        order = f"{'ver' if key is not None else 'seq'} {'DESC' if newest_first else 'ASC'}"
        statement = f"SELECT seq, entry, body, who FROM log WHERE {where} ORDER BY {order} LIMIT %s"  # noqa: S608  # of constants
        low, high = after, _SEQ_MAX if upto is None else upto
        for size in batch_sizes():
            batch = self._reader.query(statement, (low, high, *names, size))
            for row in batch:
                yield recorded_of(*row)
            if len(batch) < size:
                return
            if newest_first:
                high = batch[-1][0] - 1
            else:
                low = batch[-1][0]

    def rows(self, after: int = 0, upto: int | None = None) -> Iterator[LogRow]:
        high = _SEQ_MAX if upto is None else upto
        seq = after
        for size in batch_sizes():
            batch = self._reader.query(_ROWS, (seq, high, size))
            for row in batch:
                columns = list(row)
                columns[3], columns[5] = _text(row[3]), _text(row[5])
                yield LogRow(*columns)
                seq = row[0]
            if not batch:
                return

    def _check_meta(self) -> tuple[str, int]:
        meta = self._reader.query("SELECT schema, log_id, epoch FROM meta")
        if not meta:
            raise StorageFailed(
                f"{self.place} holds no whole log: go back to a backup that verifies"
            )
        version, log_id, epoch = meta[0]
        if version > schema.SCHEMA_VERSION:
            _refuse_newer(self.place, f"has schema {version}", schema.SCHEMA_VERSION)
        newest = self._reader.query("SELECT entry FROM log ORDER BY seq DESC LIMIT 1")
        found = entry_version(newest[0][0]) or 0 if newest else 0
        if found > ENTRY_VERSION:
            _refuse_newer(self.place, f"has entries of version {found}", ENTRY_VERSION)
        return log_id, epoch

    def secret(self, key: Key) -> bytes | None:
        found = self._reader.query("SELECT sealed FROM secrets WHERE key = %s", (key.encode(),))
        return bytes(found[0][0]) if found else None

    def scopes(self) -> list[str]:
        rows = self._reader.query("SELECT scope FROM scopes ORDER BY id")
        return [row[0].decode() for row in rows]

    def births(self, kind: str, upto: int) -> Iterator[Recorded]:
        first, beyond = f"{kind}/".encode(), f"{kind}0".encode()  # "0" is what follows "/"
        rows = self._reader.query(_BIRTHS, (first, beyond, upto, upto))
        return (recorded_of(*row) for row in rows)

    def hashes(self, level: int, first: int, last: int) -> Sequence[bytes]:
        return _stored_hashes(self._reader.query, level, first, last)

    def _read_edge(self) -> Edge:
        return Edge.read(_tiled_size(self._reader.query(_TILED), self._last), self.hashes)

    def checkpoints(self, after: int = 0) -> Iterator[StoredCheckpoint]:
        for size in batch_sizes():
            batch = self._reader.query(
                f"{_CHECKPOINTS} WHERE size > %s ORDER BY size LIMIT %s", (after, size)
            )
            for row in batch:
                yield StoredCheckpoint(*row)
                after = row[0]
            if len(batch) < size:
                return

    def newest_checkpoint(self) -> StoredCheckpoint | None:
        found = self._reader.query(f"{_CHECKPOINTS} ORDER BY size DESC LIMIT 1")
        return StoredCheckpoint(*found[0]) if found else None

    def anchor(self) -> Anchor | None:
        found = self._reader.query(_ANCHOR)
        return Anchor(*found[0]) if found else None

    def check_storage(self) -> None:
        """What stands beside the rows, and `verify` does not see."""
        check_tables(self._reader.query, lambda: self.head().seq)

    # --- following ----------------------------------------------------------------------

    def listen(self, wake: Callable[[], None]) -> None:
        super().listen(wake)
        self._start_listener()

    def follow(self, wake: Callable[[], None]) -> None:
        self._wakes.append(wake)
        self._start_listener()

    def elector(self, name: str) -> PostgresElector:
        return PostgresElector(self.place, f"{self.log_id}/{checked_role(name)}")

    def _start_listener(self) -> None:
        with self._listener_lock:
            if self._listener is None:
                self._listener = Listener(self.place, channel(self.log_id), self._heard)

    def _heard(self, backend: int) -> None:
        """Somebody appended, or may have (0)."""
        if backend and backend == self._writer.backend:
            return
        self._notify()
        for wake in tuple(self._wakes):
            wake()


class _Known(NamedTuple):
    """What this process knows of the log when it begins to append."""

    genesis: bytes
    last: LogHead  # which must still be there
    edge: Edge  # of the tree, not larger than `last` was


class _Found(NamedTuple):
    """What the log holds, once it is ours to append to."""

    head: LogHead
    edge: Edge
    streams: dict[Key, tuple[int, int | None]]  # id and newest version
    scopes: dict[str, int]


class _Append:
    """One append, which may be tried twice."""

    def __init__(
        self,
        channel: str,
        change_sets: Sequence[ChangeSet],
        now_us: int,
        first: Collection[int],
        head_seq: int | None,
        sign: SignTree | None,
        upkeep: Upkeep | None,
    ) -> None:
        self._channel = channel
        self._sign = sign
        self.upkeep = upkeep or Upkeep()
        self._change_sets = change_sets
        self._now_us = now_us
        self._first = first
        self._head_seq = head_seq
        events = [event for change_set in change_sets for event in change_set.events]
        self._keys = list({event.key: None for event in events})
        self._scopes = list({event.scope: None for event in events})
        rows = len(events) + (self.upkeep.prune.upto if self.upkeep.prune else 0)
        self.timeout_s = EXCHANGE_TIMEOUT_S + rows / 1_000
        self.sealed: list[Sealed] = []
        """What a COMMIT was sent for."""
        self.edge = Edge()  # of the tree after it

    def run(self, connection: Connection, known: _Known, salts: bytes) -> None:
        found = self._begin(connection, known)
        check_head(found.head.seq, self._head_seq)
        versions = {key: ver for key, (_, ver) in found.streams.items()}
        continue_streams(self._change_sets, versions.get, self._first)
        sealed = seal(self._change_sets, found.head, self._now_us, salts)
        if sealed:
            self._commit(connection, found, sealed)
        else:
            connection.execute("ROLLBACK")

    def _begin(self, connection: Connection, known: _Known) -> _Found:
        """Lock, then look: each statement after the lock sees all that was committed before."""
        with connection.pipeline():
            connection.execute("BEGIN")
            counter = connection.execute(_LOCK)
            newest = connection.execute(_HEAD)
            before = connection.execute(_ROW, (known.last.seq,))
            leaves = connection.execute(_LEAVES, (known.edge.size, LEAVES_MAX))
            streams = connection.execute(_STREAMS, ([key.encode() for key in self._keys],))
            scopes = connection.execute(_SCOPES, ([scope.encode() for scope in self._scopes],))
        row = newest.fetchone()
        head = LogHead(*row) if row else LogHead(Position(0), 0, known.genesis)
        _check_counter(counter.fetchone(), head)
        if known.last.seq:
            last = before.fetchone()
            check_last(last[2] if last else None, known.last)
        return _Found(
            head,
            _edge_at(connection, head, known.edge, [leaf for (leaf,) in leaves]),
            {Key(key.decode()): (id_, ver) for key, id_, ver in streams},
            {scope.decode(): id_ for scope, id_ in scopes},
        )

    def _commit(self, connection: Connection, found: _Found, sealed: list[Sealed]) -> None:
        streams = {key: id_ for key, (id_, _) in found.streams.items()}
        new_streams, new_scopes = _new_names(sealed, streams, found.scopes)
        edge, tiles = found.edge.extended([row.leaf for row in sealed])
        newest = sealed[-1].event
        checkpoint = self._sign(edge, newest.body or b"") if self._sign is not None else None
        with connection.pipeline():
            for table, new in (("streams", new_streams), ("scopes", new_scopes)):
                if new:
                    statement = f"INSERT INTO {table} {_UNNEST_NAMES}"  # of constants
                    connection.execute(statement, _transposed(new))
            for at in range(0, len(sealed), ROWS_PER_INSERT):
                part = sealed[at : at + ROWS_PER_INSERT]
                columns = [_columns(row, streams, found.scopes) for row in part]
                connection.execute(_INSERT, _transposed(columns))
            for tile in tiles:
                octets = b"".join(tile.hashes)
                values = (tile.level, tile.index, len(tile.hashes), octets)
                connection.execute(_INSERT_TILE, values)
            if checkpoint is not None:
                connection.execute(_INSERT_CHECKPOINT, msgspec.structs.astuple(checkpoint))
            for key, secret in secret_writes(self._change_sets).items():
                if secret is None:
                    connection.execute(_DROP_SEALED, (key.encode(),))
                else:
                    connection.execute(_PUT_SEALED, (key.encode(), secret))
            for statement, parameters in _taken_away(self.upkeep):
                connection.execute(statement, parameters)
            connection.execute("UPDATE counter SET seq = %s", (newest.seq,))
            connection.execute("SELECT pg_notify(%s, %s)", (self._channel, str(newest.seq)))
            self.sealed, self.edge = sealed, edge
            connection.execute("COMMIT")


def _taken_away(upkeep: Upkeep) -> Iterator[tuple[str, Sequence[Any]]]:
    for erasure in upkeep.erase:
        yield _ERASE[erasure.part], (erasure.first, erasure.last)
    if upkeep.epoch:
        yield "UPDATE meta SET epoch = %s", (upkeep.epoch,)
    if upkeep.prune is not None:
        # The anchor first: rows can only go when there is one after them.
        yield "UPDATE checkpoints SET state = NULL WHERE anchor = 1", ()
        yield _SET_ANCHOR, (upkeep.prune.kept, upkeep.prune.size)
        yield _PRUNE, _transposed(list(upkeep.prune.runs())) or [[], []]


def _new_names(
    sealed: Sequence[Sealed], streams: dict[Key, int], scopes: dict[str, int]
) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """Streams and scopes that begin here, which get the seq of their first event as id."""
    new_streams, new_scopes = [], []
    for row in sealed:
        event = row.event
        if event.key not in streams:
            streams[event.key] = event.seq
            new_streams.append((int(event.seq), event.key.encode()))
        if event.scope not in scopes:
            scopes[event.scope] = event.seq
            new_scopes.append((int(event.seq), event.scope.encode()))
    return new_streams, new_scopes


def _edge_at(connection: Connection, head: LogHead, edge: Edge, leaves: list[bytes]) -> Edge:
    """The edge of the tree at the head, from one at an earlier size and the leaves since; from
    the stored tiles where those are too many."""
    if edge.size + len(leaves) == head.seq:
        return edge.extended(leaves)[0]

    def ask(statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return connection.execute(statement, parameters).fetchall()

    edge = Edge.read(_tiled_size(ask(_TILED), head), partial(_stored_hashes, ask))
    rest = ask(_LEAVES, (edge.size, head.seq))
    return edge.extended([leaf for (leaf,) in rest])[0]


def _tiled_size(newest_tile: list[Any], head: LogHead) -> int:
    """How many leaves lie in full stored tiles, of those before `head`."""
    index = newest_tile[0][0]
    tiles = 0 if index is None else index + 1
    return int(min(tiles, head.seq // TILE_WIDTH)) * TILE_WIDTH


def _stored_hashes(
    ask: Callable[[str, Sequence[Any]], list[Any]], level: int, first: int, last: int
) -> list[bytes]:
    """See `domain.tree.ReadHashes`. Fewer where some are missing."""
    index, at = divmod(first, TILE_WIDTH)
    found = ask("SELECT hashes FROM tiles WHERE level = %s AND idx = %s", (level, index))
    if found:
        octets = found[0][0]
        end = min((at + last - first) * HASH_SIZE, len(octets))
        return [octets[i : i + HASH_SIZE] for i in range(at * HASH_SIZE, end, HASH_SIZE)]
    if level:
        return []
    return [leaf for (leaf,) in ask(_LEAVES, (first, last - first))]


def channel(log_id: str) -> str:
    """Where appends are announced: a database may hold several logs."""
    return f"kudurru_{log_id}"


def _check_counter(row: tuple[Any, ...] | None, head: LogHead) -> None:
    seq = row[0] if row else 0
    if seq > head.seq:
        raise LogDamaged(
            "gap", head.seq + 1, f"the log ends at {head.seq} and its counter says {seq}; {ADVICE}"
        )
    if seq < head.seq:
        raise LogDamaged("gap", seq + 1, f"the counter was set back to {seq}; {ADVICE}")


def _columns(row: Sealed, streams: dict[Key, int], scopes: dict[str, int]) -> tuple[Any, ...]:
    event = row.event
    return (
        int(event.seq),
        int(event.txn),
        event.ts,
        int(streams[event.key]),
        event.ver,
        int(scopes[event.scope]),
        event.type,
        row.entry,
        row.salt,
        event.body,
        row.who_salt,
        event.who,
        row.leaf,
        row.head,
    )


def _transposed(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _text(octets: bytes | None) -> str | None:
    # The verifier must see text that was made invalid, not stumble over it.
    return None if octets is None else octets.decode("utf-8", "surrogateescape")


def _prepare(
    connection: Connection, place: Place, entropy: Entropy, clock: Clock, create: bool
) -> None:
    """The tables, where there are none."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        if _has_table(connection, place, "meta"):
            if create and not _has_table(connection, place, "secrets"):
                connection.execute(schema.SECRETS)
            return
        if not create:
            raise NotFound(f"{place} holds no log: name the right database")
        name = sql.Identifier(place.schema)
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
        connection.execute(schema.TABLES)
        connection.execute(schema.SECRETS)
        connection.execute("INSERT INTO counter VALUES (1, 0)")
        connection.execute(
            "INSERT INTO meta VALUES (1, %s, 1, %s, %s)",
            (entropy.token(16).hex(), schema.SCHEMA_VERSION, clock.now_us()),
        )


def _has_table(connection: Connection, place: Place, name: str) -> bool:
    found = connection.execute(
        "SELECT to_regclass(%s) IS NOT NULL", (f'"{place.schema}".{name}',)
    ).fetchone()
    return found is not None and found[0]


def _refuse_newer(place: Place, what: str, ours: int) -> None:
    raise LogNewer(
        f"{place} {what}, and this kudurru knows up to {ours}: it was written by a newer one, "
        "use that or a later one"
    )
