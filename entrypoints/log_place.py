"""Which log a data directory uses: its own `log.db`, or one that nodes share in PostgreSQL.

`serve --store postgresql://…` leaves `DIR/store` behind, so that every command on the directory
finds the same log. A directory that has a log is never given another one.
"""

from pathlib import Path

import msgspec

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import DataDir
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.errors import Cause, Invalid, KudurruError
from kudurru.domain.extras import how_to_install
from kudurru.domain.ports import VerifiableLog
from kudurru.entrypoints.place_file import read_file, write_file

SCHEMES = ("postgresql://", "postgres://")
KNOWN = "memory, sqlite, or postgresql://HOST/DATABASE"


class Pointer(msgspec.Struct, frozen=True):
    """Content of DIR/store."""

    url: str
    log_id: str


def open_event_log(directory: DataDir, *, store: str = "", create: bool = False) -> VerifiableLog:
    """The log of a directory. `store` is where a server was told that it is, "" for where it has
    always been; a server makes it where there is none (`create`).

    Raises: Invalid when the directory has another log; what opening the log does.
    """
    pointer = read_pointer(directory.store)
    found = pointer.url if pointer else "sqlite" if directory.log.exists() else ""
    driver = driver_of(store or found or "sqlite")
    if store and found and driver != driver_of(found):
        raise _refused(
            f"{directory.path} has its log in {found}: leave --store out, or give another --data"
        )
    match driver:
        case "memory":
            return MemoryEventLog(entropy=SystemEntropy(), clock=SystemClock())
        case "sqlite":
            return SQLiteEventLog.open(
                directory.log, entropy=SystemEntropy(), clock=SystemClock(), create=create
            )
        case _:
            return _open_shared(directory, store or found, pointer, create)


def _open_shared(
    directory: DataDir, url: str, pointer: Pointer | None, create: bool
) -> VerifiableLog:
    try:
        from kudurru.adapters.postgres.log import PostgresEventLog
    except ModuleNotFoundError:
        raise _refused(f"PostgreSQL needs {how_to_install('postgres')}") from None
    log = PostgresEventLog.open(
        url, entropy=SystemEntropy(), clock=SystemClock(), create=create and pointer is None
    )
    try:
        if pointer is not None and pointer.log_id != log.log_id:
            raise _refused(
                f"{log.place} holds another log than {directory.path} belongs to: "
                "name the right database, or give another --data"
            )
        if create:
            write_file(directory.store, Pointer(url, log.log_id))
    except KudurruError:
        log.close()
        raise
    return log


def driver_of(store: str) -> str:
    """memory, sqlite or postgres. Raises: Invalid."""
    if store in ("memory", "sqlite"):
        return store
    if not store.startswith(SCHEMES):
        # Of what may be a URL with a password only the scheme is repeated.
        raise _refused(f"{store.partition(':')[0]!r} is no store: {KNOWN}")
    address = store.partition("://")[2]
    userinfo, at, _ = address.partition("/")[0].rpartition("@")
    if (at and ":" in userinfo) or "password=" in address:
        raise _refused(
            "the URL holds a password, which `ps` and `config show` would show: write it into a "
            "file for libpq and name that, postgresql://…?passfile=/path"
        )
    return "postgres"


def read_pointer(path: Path) -> Pointer | None:
    """Raises: StorageFailed."""
    return read_file(path, Pointer, "mend it, or write it anew with `kudurru serve --store URL`")


def _refused(why: str) -> Invalid:
    return Invalid("--store", [Cause("", why)])
