"""Hears that other nodes append: a thread on a connection of its own.

A notification says only that there is something; what it is, the log says. So nothing is lost when
notifications are: the log is looked at every POLL_S anyway, and right after each connection.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg import sql

from kudurru.adapters.postgres.connection import (
    EXCHANGE_TIMEOUT_S,
    Connection,
    Place,
    cut,
    deadline,
)
from kudurru.domain.errors import KudurruError

POLL_S = 5.0
RETRY_S = 0.25
"""Between attempts to connect again: followers are to be equal within a second of healing, and one
attempt every quarter of a second is no load."""


class Listener:
    """Runs from when it is made until `close`. `heard` is called in its thread, with the server's
    process id of who appended, or 0 when somebody may have."""

    def __init__(self, place: Place, channel: str, heard: Callable[[int], None]) -> None:
        self._place = place
        self._channel = channel
        self._heard = heard
        self._is_closing = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="kudurru-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        connection = self._connection
        if connection is not None:
            cut(connection)
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closing.is_set():
            with suppress(KudurruError, psycopg.Error), self._place.connect() as connection:
                self._connection = connection
                self._listen(connection)
            self._connection = None
            self._is_closing.wait(RETRY_S)

    def _listen(self, connection: Connection) -> None:
        listen = sql.SQL("LISTEN {}").format(sql.Identifier(self._channel))
        while not self._is_closing.is_set():
            with deadline(connection, EXCHANGE_TIMEOUT_S):
                connection.execute(listen)  # again each time: it also shows that the peer lives
            self._heard(0)
            for notification in connection.notifies(timeout=POLL_S):
                self._heard(notification.pid)
