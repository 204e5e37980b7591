"""One leader per log and name, by an advisory lock of PostgreSQL.

The lock belongs to a session: whoever loses the session has lost the lock, and finds out within
PING_S plus PING_TIMEOUT_S, less than the eleven seconds that the server takes to give the lock of a
silent node away. Where a connection is closed the lock is free at once, and the leader finds out
within PING_S: who waited for it gives it that time before it leads. A node that did not have to
wait does not, so a leader's writes carry the versions that they were decided on, as all writes do.
"""

import asyncio
import hashlib
from contextlib import closing, suppress

import psycopg

from kudurru.adapters.postgres.connection import Connection, Place, deadline
from kudurru.domain.errors import KudurruError

RETRY_S = 0.5
PING_S = 1.0
PING_TIMEOUT_S = 3.0
GRACE_S = 1.5
"""More than PING_S by as long as work takes to end."""


NAME_MAX = 63
"""Octets that PostgreSQL keeps of the name of an application."""

_LED_BY = "kudurru leader "
_LEADER = (
    "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND ((classid::bigint << 32) | objid::bigint) = %s "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class PostgresElector:
    """See `Elector` and `NamesLeader`: a leader's session says its name, where who may use this
    database sees it."""

    def __init__(self, place: Place, name: str) -> None:
        self.node_name = ""
        self._place = place
        self._lock = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        self._connection: Connection | None = None
        self._trying: asyncio.Future[bool] | None = None

    async def campaign(self) -> None:
        has_waited = False
        while not await self._try_in_thread():
            has_waited = True
            await asyncio.sleep(RETRY_S)
        if has_waited:
            await asyncio.sleep(GRACE_S)

    async def lost(self) -> None:
        while await asyncio.to_thread(self._is_held):
            await asyncio.sleep(PING_S)

    async def resign(self) -> None:
        if self._trying is not None:  # a campaign that was given up may win in these moments
            await asyncio.wait({self._trying})
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.to_thread(_close, connection)

    async def leader(self) -> str | None:
        return await asyncio.to_thread(self._find_leader)

    def _find_leader(self) -> str | None:
        with (
            self._place.errors(),
            closing(self._place.connect()) as connection,
            deadline(connection, PING_TIMEOUT_S),
        ):
            row = connection.execute(_LEADER, (self._lock,)).fetchone()
        return str(row[0]).removeprefix(_LED_BY) if row else None

    async def _try_in_thread(self) -> bool:
        self._trying = asyncio.ensure_future(asyncio.to_thread(self._try))
        return await asyncio.shield(self._trying)

    def _try(self) -> bool:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._place.connect()
            if not self._ask("SELECT pg_try_advisory_lock(%s)"):
                return False
            name = f"{_LED_BY}{self.node_name}"[:NAME_MAX]
            self._connection.execute("SELECT set_config('application_name', %s, false)", (name,))
            return True
        except (KudurruError, psycopg.Error):
            self._connection = None
            return False

    def _is_held(self) -> bool:
        try:
            return self._connection is not None and self._ask(
                "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND granted "
                "AND pid = pg_backend_pid() AND ((classid::bigint << 32) | objid::bigint) = %s"
            )
        except psycopg.Error:
            self._connection = None
            return False

    def _ask(self, statement: str) -> bool:
        connection = self._connection
        assert connection is not None
        with deadline(connection, PING_TIMEOUT_S):
            row = connection.execute(statement, (self._lock,)).fetchone()
        return bool(row and row[0])


def _close(connection: Connection) -> None:
    with suppress(psycopg.Error):
        connection.close()
