"""A PostgreSQL server for tests: Debian's package, on a socket in a folder that goes away.

Started when the first test asks for it, ended with the process. It forgets on power loss
(fsync=off), which only the benches may not.
"""

import atexit
import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import psycopg

from kudurru.adapters.postgres.log import PostgresEventLog
from tests.absent import absent
from tests.logs import SeededEntropy, StillClock

PATIENCE_S = 75.0
_numbers = itertools.count(1)


class Server:
    """One running PostgreSQL, its superuser `kudurru` let in without a password."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://kudurru@/{database}?host={self.folder}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(self.url(database), autocommit=True)

    def new_database(self) -> str:
        """Name of a new, empty one."""
        name = f"test{next(_numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name


def new_schema() -> str:
    """Name of a schema that no other test uses: quicker to have than a database."""
    return f"log{next(_numbers)}"


@cache
def server(*, fsync: bool = False) -> Server:
    """Skips the test where PostgreSQL is not installed, and fails it in CI."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not binaries:
        absent("PostgreSQL is missing: install Debian's package postgresql")
    return start(binaries[-1].parent, fsync=fsync)


def start(binaries: Path, *, fsync: bool) -> Server:
    folder = Path(tempfile.mkdtemp(prefix="kudurru-pg-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    user = []
    if os.geteuid() == 0:  # which PostgreSQL refuses to run as
        postgres = pwd.getpwnam("postgres")
        os.chown(folder, postgres.pw_uid, postgres.pw_gid)
        user = ["--reuid=postgres", f"--regid={postgres.pw_gid}", "--clear-groups"]
    as_user = ["setpriv", *user, "--pdeathsig=SIGQUIT"]
    data = folder / "data"
    initdb = ["initdb", "-D", data, "-U", "kudurru", "-A", "trust", "-E", "UTF8", "--no-locale"]
    subprocess.run(
        [*as_user, binaries / initdb[0], *initdb[1:], "--no-sync"],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    options = {"unix_socket_directories": folder, "listen_addresses": "", "shared_buffers": "16MB"}
    if not fsync:
        options |= {"fsync": "off", "full_page_writes": "off"}
    settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*as_user, binaries / "postgres", "-D", data, *settings],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    atexit.register(_end, process)
    found = Server(folder)
    _wait_for(found, process)
    return found


def _wait_for(found: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(psycopg.OperationalError):
            found.connect().close()
            return
        why = (found.folder / "server.log").read_text()
        assert process.poll() is None, why
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGQUIT)  # at once: what it holds goes away with it
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def postgres_log(schema: str | None = None, *, create: bool = True) -> PostgresEventLog:
    """A log of its own, or the one that `schema` holds already."""
    return PostgresEventLog.open(
        server().url(),
        entropy=SeededEntropy(),
        clock=StillClock(),
        create=create,
        schema=schema or new_schema(),
    )
