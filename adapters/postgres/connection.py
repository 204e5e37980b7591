"""Connections to PostgreSQL, and its errors in our words.

A network is in between: every exchange has a deadline after which its socket is cut, because
neither TCP nor libpq ends a wait for a peer that is reachable and silent.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from kudurru.domain.errors import Busy, Cause, Invalid, KudurruError, StorageFailed
from kudurru.domain.ports import Clock

CONNECT_TIMEOUT_S = 2
"""libpq's smallest."""

EXCHANGE_TIMEOUT_S = 10.0
"""For one exchange of small statements. Past this the peer is taken for gone."""

LOCK_TIMEOUT_MS = 8_000
"""How long to wait for another node that appends; less than EXCHANGE_TIMEOUT_S, so that the answer
is PostgreSQL's and says what it waited for."""

_DEFAULTS = {
    "connect_timeout": str(CONNECT_TIMEOUT_S),
    "application_name": "kudurru",
    "client_encoding": "utf8",
    # A dead peer is noticed in 11 seconds even where nothing is being sent.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

_SESSION = """
    SELECT set_config('idle_in_transaction_session_timeout', '30s', false),
           set_config('lock_timeout', '{lock_ms}', false),
           set_config('tcp_keepalives_idle', '5', false),
           set_config('tcp_keepalives_interval', '2', false),
           set_config('tcp_keepalives_count', '3', false),
           set_config('default_transaction_isolation', 'read committed', false),
           -- plans are kept, and those made while a table was small would scan it when it is big
           set_config('enable_seqscan', 'off', false),
           -- compiling a statement takes longer than any of ours
           set_config('jit', 'off', false),
           -- acknowledged means durable, whatever the server's default
           set_config('synchronous_commit', CASE current_setting('synchronous_commit')
               WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)"""
"""The server, too, lets go of a node that is gone: a transaction that it left open holds the
counter row, and with it every other node."""

Connection = psycopg.Connection[tuple[Any, ...]]


class ConnectionLost(Exception):
    """The connection broke: what was sent last may have happened or not."""


class Place:
    """Where a log is: how to connect, and what to call it in messages (without a password)."""

    def __init__(self, url: str, schema: str) -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            why = f"is no PostgreSQL URL: {str(error).strip()}"
            raise Invalid("--store", [Cause("", why)]) from None
        self.conninfo = make_conninfo(url, **{k: v for k, v in _DEFAULTS.items() if k not in given})
        self.schema = schema
        host = given.get("host") or given.get("hostaddr") or "localhost"
        port = f":{given['port']}" if given.get("port") else ""
        self.text = f"postgresql://{host}{port}/{given.get('dbname') or ''}"

    def __str__(self) -> str:
        return self.text

    def connect(self) -> Connection:
        """A session whose statements are in the log's schema. Raises: StorageFailed."""
        with self.errors():
            connection = psycopg.connect(self.conninfo, autocommit=True)
            try:
                with deadline(connection, EXCHANGE_TIMEOUT_S):
                    connection.execute(_SESSION.format(lock_ms=LOCK_TIMEOUT_MS))
                    connection.execute(
                        sql.SQL("SET search_path TO {}").format(sql.Identifier(self.schema))
                    )
            except BaseException:
                connection.close()
                raise
            return connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise what psycopg raises as errors of ours, but IntegrityError, which stays."""
        try:
            yield
        except psycopg.IntegrityError:
            raise
        except psycopg.Error as error:
            raise self.failed(error) from error

    def failed(self, error: Exception) -> KudurruError:
        text = str(error).strip().splitlines() or [type(error).__name__]
        message = f"{self.text}: {text[0]} - {_advice(error)}"
        return (
            Busy(message) if isinstance(error, errors.LockNotAvailable) else StorageFailed(message)
        )


_ADVICES: tuple[tuple[type[Exception], str], ...] = (
    (
        errors.DiskFull,
        "free space on the database's disk, then try again",
    ),
    (errors.LockNotAvailable, "another node appends, or left a transaction open: try again"),
    (errors.ReadOnlySqlTransaction, "this is a standby: name the primary"),
    (errors.InsufficientPrivilege, "grant this role its own schema, see docs/operate.md"),
    (psycopg.OperationalError, "check that the database runs, and lets this user in from here"),
)


def _advice(error: Exception) -> str:
    return next((text for kind, text in _ADVICES if isinstance(error, kind)), "look at its log")


class Session:
    """One connection behind a lock, opened when it is needed and anew after it broke."""

    def __init__(self, place: Place, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self.answered_us = 0  # when the last exchange ended well
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._is_closed = False

    @property
    def backend(self) -> int:
        """Process id of the server's side, 0 when there is no connection."""
        connection = self._connection
        return connection.info.backend_pid if connection and not connection.closed else 0

    @contextmanager
    def use(self, timeout_s: float = EXCHANGE_TIMEOUT_S) -> Iterator[Connection]:
        """The connection, for one exchange by one thread.

        Raises: ConnectionLost when it breaks in the block; StorageFailed when none can be had;
        whatever else the block raises, psycopg's errors as they are.
        """
        with self._lock:
            connection = self._open()
            try:
                with deadline(connection, timeout_s):
                    yield connection
                self.answered_us = self._clock.now_us()
            except psycopg.Error as error:
                if connection.closed or connection.broken:
                    self._drop()
                    raise ConnectionLost(str(error)) from error
                raise

    def query(self, statement: str, parameters: Any = ()) -> list[Any]:
        """All rows of one read, which is asked again once when the connection turns out to be
        gone. Raises: StorageFailed."""
        with self._place.errors():
            try:
                return self._ask(statement, parameters)
            except ConnectionLost:
                pass
            try:
                return self._ask(statement, parameters)
            except ConnectionLost as error:
                raise self._place.failed(error.__cause__ or error) from error  # type: ignore[arg-type]  # a psycopg.Error

    def _ask(self, statement: str, parameters: Any) -> list[Any]:
        with self.use() as connection:
            return connection.execute(statement, parameters).fetchall()

    def _open(self) -> Connection:
        if self._is_closed:
            raise StorageFailed(f"{self._place}: the log was closed")
        if self._connection is None or self._connection.closed:
            self._connection = self._place.connect()
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error, OSError):
                connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._drop()


@contextmanager
def deadline(connection: Connection, timeout_s: float) -> Iterator[None]:
    """Cut the connection when the block takes longer; psycopg then raises OperationalError."""
    timer = threading.Timer(timeout_s, cut, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def cut(connection: Connection) -> None:
    """End a connection that another thread waits on: its wait raises."""
    with (
        suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as copy,
    ):
        copy.shutdown(socket.SHUT_RDWR)
