"""A server that begins with a snapshot: as quick as it is, it serves what the log says."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.program import (
    command,
    kudurru,
    records,
    serving,
    wait_until,
    write_json,
    zone,
)

NAME = "www.example.org"
OFTEN = {"KUDURRU__SNAPSHOTS__INTERVAL": "50ms"}
SECRET = bytes((203, 0, 113, 66))
"""An address that is erased, in wire form."""


@pytest.fixture(name="data")
def a_directory(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    manifests = zone("example.org"), records("www", "example.org", (NAME, "A", "192.0.2.1"))
    file = write_json(tmp_path / "zone.json", *manifests)
    assert command("apply", "-f", file, "--data", data).code == 0
    return data


def point_to(data: Path, address: str) -> None:
    file = write_json(data.parent / "www.json", records("www", "example.org", (NAME, "A", address)))
    assert command("apply", "-f", file, "--data", data).code == 0


def position_of(data: Path) -> int:
    with closing(sqlite3.connect(data / "views.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    verified: Any = command("audit", "verify", "--data", data, "-o", "json").json()
    return int(verified["newest"])


def compared(data: Path) -> str:
    """Of the running server's views with those that a replay makes."""
    found: Any = command("replay", "--verify", "--data", data, "-o", "json").json()
    return str(found["server"])


EQUAL = "the server's views equal the replayed ones"


def test_a_server_leaves_a_snapshot_and_the_next_one_serves_from_it(data: Path) -> None:
    with serving(data) as server:
        assert server.texts(NAME) == ["192.0.2.1"]
        assert server.stop() == 0
    assert (data / "views.db").exists()
    assert position_of(data)
    with serving(data) as server:
        assert server.texts(NAME) == ["192.0.2.1"]
        assert compared(data) == EQUAL
        point_to(data, "192.0.2.2")
        assert server.texts(NAME) == ["192.0.2.2"]
        assert compared(data) == EQUAL


def test_what_came_after_a_snapshot_is_served(data: Path) -> None:
    with serving(data):
        pass
    snapshot = (data / "views.db").read_bytes()
    with serving(data):
        point_to(data, "192.0.2.3")
    (data / "views.db").write_bytes(snapshot)
    with serving(data) as server:
        assert server.texts(NAME) == ["192.0.2.3"]
        assert compared(data) == EQUAL


def version(file: Path) -> tuple[int, int]:
    """An inode that became free is soon that of another file."""
    found = file.stat()
    return found.st_ino, found.st_mtime_ns


def test_a_running_server_writes_a_snapshot_now_and_then(data: Path) -> None:
    views = data / "views.db"
    with serving(data, env=OFTEN) as server:
        wait_until(views.exists)
        first = version(views)
        point_to(data, "192.0.2.4")
        wait_until(lambda: version(views) != first)
        assert server.texts(NAME) == ["192.0.2.4"]
        server.process.kill()  # so what is there was written while it ran
        server.process.wait()
    assert_served(data, "192.0.2.4")


def assert_served(data: Path, address: str) -> None:
    with serving(data) as server:
        assert server.texts(NAME) == [address]
        assert compared(data) == EQUAL


def test_an_edited_snapshot_is_told_and_the_log_is_served(data: Path) -> None:
    with serving(data):
        pass
    with closing(sqlite3.connect(data / "views.db")) as db:
        old, new = b"\xc0\x00\x02\x01", b"\xc0\x00\x02\x63"  # 192.0.2.1 becomes 192.0.2.99
        for at, body in db.execute("SELECT at, body FROM parts").fetchall():
            db.execute("UPDATE parts SET body = ? WHERE at = ?", (body.replace(old, new), at))
        db.commit()
    shown = kudurru("query", NAME, "--data", data)
    assert "192.0.2.1" in shown.out
    assert "the snapshot of the views is not used" in shown.err
    assert_served(data, "192.0.2.1")
    assert kudurru("query", NAME, "--data", data).err == "", "a good one took its place"


def test_a_server_redacts_what_its_snapshot_holds_too(data: Path) -> None:
    for address in ("203.0.113.66", "192.0.2.5", "192.0.2.6"):
        point_to(data, address)
    with closing(sqlite3.connect(data / "log.db")) as db:
        sql = "SELECT seq FROM log WHERE CAST(body AS TEXT) LIKE '%203.0.113.66%'"
        (secret,) = db.execute(sql).fetchone()
    with serving(data):
        pass
    assert SECRET in (data / "views.db").read_bytes(), "in the journal of the zone"
    with serving(data, env=OFTEN) as server:
        done = command("audit", "redact", str(secret), "--reason", "x", "--data", data)
        assert done.code == 0, done
        assert_forgotten(data)
        wait_until((data / "views.db").exists)
        assert_forgotten(data)
        assert server.stop() == 0
    assert_forgotten(data)
    assert_served(data, "192.0.2.6")


def assert_forgotten(data: Path) -> None:
    views = data / "views.db"
    assert not views.exists() or SECRET not in views.read_bytes()


def test_a_log_in_memory_has_no_snapshot(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, "--store", "memory", "--demo", env=OFTEN) as server:
        assert server.texts("www.demo.example")
    assert not (data / "views.db").exists()
