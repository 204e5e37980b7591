"""Fault points: everything that a program asks of the outside fails once, before it takes effect
or after it did.

Points are numbered in the order in which a run comes to them, so a run without a fault tells how
many there are. They lie in the modules `os`, `fcntl` and `sqlite3` as the adapters see them, and
exist in tests only.
"""

import errno
import fcntl
import functools
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

Moment = Literal["before", "after"]

_CALLS = (
    (os, "open"),
    (os, "mkdir"),
    (os, "fsync"),
    (os, "chmod"),
    (os, "fchmod"),
    (os, "write"),
    (os, "pwrite"),
    (os, "ftruncate"),
    (os, "unlink"),
    (os, "rename"),
    (os, "replace"),
    (fcntl, "flock"),
    (socket.socket, "bind"),
)
_STATEMENTS = ("BEGIN", "COMMIT", "INSERT", "UPDATE", "DELETE", "CREATE", "PRAGMA journal_mode")


class Faults:
    """Counts the points that a run passes, and fails at one of them."""

    def __init__(self, at: int, moment: Moment, *, is_full: bool) -> None:
        self.points: list[str] = []
        self.has_failed = False
        self._at, self._moment, self._is_full = at, moment, is_full

    def pass_through(
        self, what: str, fail: Callable[[bool], Exception], call: Callable[[], Any]
    ) -> Any:
        """Do what was asked for; once, fail instead or after it."""
        self.points.append(what)
        if self.has_failed or len(self.points) != self._at:
            return call()
        self.has_failed = True
        if self._moment == "after":
            call()
        raise fail(self._is_full)


def _os_error(is_full: bool) -> OSError:
    code = errno.ENOSPC if is_full else errno.EIO
    return OSError(code, os.strerror(code))


def _sqlite_error(is_full: bool) -> sqlite3.Error:
    text = "database or disk is full" if is_full else "disk I/O error"
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = sqlite3.SQLITE_FULL if is_full else sqlite3.SQLITE_IOERR
    return error


@contextmanager
def faults(at: int = 0, moment: Moment = "before", *, is_full: bool = False) -> Iterator[Faults]:
    """Fail at point `at` (0: at none) for as long as the block lasts. `is_full`: as on a disk
    without space, else as on one that is broken."""
    found = Faults(at, moment, is_full=is_full)

    def faulty(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            is_no_write = (name == "open" and not args[1] & os.O_CREAT) or (
                name == "flock" and args[1] == fcntl.LOCK_UN
            )
            if is_no_write:
                return real(*args, **kwargs)
            return found.pass_through(name, _os_error, lambda: real(*args, **kwargs))

        return call

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            return self._pass(sql, lambda: super(Connection, self).execute(sql, *args))

        def executemany(self, sql: str, *args: Any) -> sqlite3.Cursor:
            return self._pass(sql, lambda: super(Connection, self).executemany(sql, *args))

        def _pass(self, sql: str, call: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
            statement = " ".join(sql.split())
            if not statement.startswith(_STATEMENTS):
                return call()
            return found.pass_through(statement[:40], _sqlite_error, call)  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        for module, name in _CALLS:
            patch.setattr(module, name, faulty(name, getattr(module, name)))
        connect = functools.partial(sqlite3.connect, factory=Connection)
        patch.setattr(sqlite3, "connect", connect)
        yield found
