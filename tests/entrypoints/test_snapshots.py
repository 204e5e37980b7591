"""Snapshots of a data directory: what is loaded is what the log says, whatever was done to the
file, the log, or the directory."""

import logging
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import DataDir, open_data_dir
from kudurru.adapters.sqlite.snapshots import KEY_SIZE, Unusable, open_snapshot, write_snapshot
from kudurru.domain.errors import StorageFailed
from kudurru.domain.events import Position
from kudurru.domain.kinds.validation import Manifest
from kudurru.entrypoints import snapshot_child, snapshots
from kudurru.entrypoints.directory import open_log, open_service
from kudurru.entrypoints.service import ChangeRequest
from kudurru.entrypoints.upkeep import PruneRequest, RedactRequest
from kudurru.entrypoints.wiring import Node
from tests.nodes import TESTER
from tests.objects import endpoint, record_set, zone

TAMPERED = 100


def host(name: str, address: str = "192.0.2.1") -> Manifest:
    return record_set(name, endpoint(f"{name}.example.org", "A", address))


def change(data: Path, *manifests: Any) -> None:
    with service(data) as found:
        found.change(ChangeRequest(apply=list(manifests)))


@contextmanager
def service(data: Path) -> Iterator[Any]:
    with open_service(data, who=TESTER, write=True, on_damage=lambda damage: None) as found:
        yield found


@contextmanager
def node_of(data: Path) -> Iterator[tuple[DataDir, Node]]:
    directory = open_data_dir(data)
    with open_log(directory, create=False) as log:
        yield directory, Node(log, SystemClock(), SystemEntropy())


def save(data: Path) -> None:
    """As the process beside a server does."""
    snapshot_child.main(data)


def loaded(data: Path, upto: Position | None = None) -> int:
    """Position of the snapshot. The views it leads to are always those of the log."""
    with node_of(data) as (directory, node):
        position = snapshots.load_snapshot(directory, node, upto)
        node.views.follower.catch_up(node.log)
        rebuilt = Node(node.log, SystemClock(), SystemEntropy())
        rebuilt.views.follower.catch_up(node.log)
        assert node.views.digests() == rebuilt.views.digests()
        return int(position)


@pytest.fixture(name="data")
def a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    data = tmp_path / "data"
    change(data, zone("example.org"), *(host(f"h{i}") for i in range(20)))
    change(data, host("h3", "192.0.2.77"))
    save(data)
    capsys.readouterr()
    return data


@pytest.fixture(name="warned")
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    def warned() -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        caplog.clear()
        return found

    return warned


def test_views_begin_with_the_snapshot_and_go_on_with_what_came_since(
    data: Path, warned: Callable[[], list[str]]
) -> None:
    before = loaded(data)
    assert before > 0
    change(data, host("late"))
    assert loaded(data) == before
    with node_of(data) as (_, node):
        newest = node.log.head().seq
    save(data)
    assert loaded(data) == newest > before
    assert not warned()


def test_only_the_owner_can_read_a_snapshot(data: Path) -> None:
    directory = open_data_dir(data)
    assert directory.views.stat().st_mode & 0o777 == 0o600
    assert directory.snapshot_key.stat().st_mode & 0o777 == 0o600


def test_there_is_a_snapshot_after_a_long_replay_and_not_after_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    change(data, zone("example.org"))
    assert not open_data_dir(data).views.exists()
    monkeypatch.setattr("kudurru.entrypoints.directory.SHORT_REPLAY", 3)
    change(data, host("www"))
    assert loaded(data)


@pytest.mark.parametrize(
    ("position", "snapshot", "is_due"),
    [(0, 0, False), (1, 0, True), (5, 5, False), (6, 5, True),
     (1_000_000, 990_001, False), (1_000_000, 990_000, True)],
)  # fmt: skip
def test_a_snapshot_is_due_when_a_hundredth_of_the_log_is_not_in_it(
    position: int, snapshot: int, is_due: bool
) -> None:
    assert snapshots.is_due(position, snapshot) == is_due


# --- what is not ours -------------------------------------------------------------------------


def edit(data: Path, sql: str, *values: Any) -> None:
    with closing(sqlite3.connect(open_data_dir(data).views)) as db:
        assert db.execute(sql, values).rowcount, "nothing was edited"
        db.commit()


EDITS = {
    "what it is of": "UPDATE snapshot SET about = CAST(about || x'00' AS BLOB)",
    "what it is of, all of it": "UPDATE snapshot SET about = randomblob(length(about))",
    "its MAC": "UPDATE snapshot SET mac = zeroblob(32)",
    "no row": "DELETE FROM snapshot",
    "two rows": "INSERT INTO snapshot SELECT 2, about, mac FROM snapshot",
    "a body": "UPDATE parts SET body = CAST(body || x'00' AS BLOB) WHERE at = 2",
    "a body of no octets": "UPDATE parts SET body = x'' WHERE at = 2",
    "a digest": "UPDATE parts SET digest = zeroblob(32) WHERE at = 0",
    "the view of a part": "UPDATE parts SET view = 'zones' WHERE view = 'clock'",
    "a part less": "DELETE FROM parts WHERE at = (SELECT max(at) FROM parts)",
    "the first part less": "DELETE FROM parts WHERE at = 0",
    "a part more": "INSERT INTO parts SELECT at + 100, view, digest, body FROM parts WHERE at = 0",
    "the order": "UPDATE parts SET at = CASE at WHEN 1 THEN -1 ELSE at END",
    "no parts": "DELETE FROM parts",
    "another table": "ALTER TABLE parts RENAME TO pieces",
    "no table": "DROP TABLE snapshot",
}


@pytest.mark.parametrize("what", EDITS)
def test_a_snapshot_that_was_edited_is_not_used(
    data: Path, what: str, warned: Callable[[], list[str]]
) -> None:
    sql = EDITS[what]
    with closing(sqlite3.connect(open_data_dir(data).views)) as db:
        db.execute(sql)
        db.commit()
    assert loaded(data) == 0
    (line,) = warned()
    assert line.startswith("the snapshot of the views is not used, it ")
    assert line.endswith(": they are built from the log")


def test_a_body_and_its_digest_that_were_edited_together_are_not_used(
    data: Path, warned: Callable[[], list[str]]
) -> None:
    edit(data, "UPDATE parts SET body = x'90', digest = ? WHERE at = 1", sha256(b"\x90").digest())
    assert loaded(data) == 0
    assert len(warned()) == 1


@pytest.mark.parametrize("times", [20, pytest.param(TAMPERED, marks=pytest.mark.slow)])
def test_no_damaged_octet_leads_to_another_view(
    data: Path, warned: Callable[[], list[str]], times: int
) -> None:
    views = open_data_dir(data).views
    whole = views.read_bytes()
    rng = random.Random(1)
    refused = 0
    for _ in range(times):
        at = rng.randrange(len(whole))
        flipped = bytes((whole[at] ^ 1 << rng.randrange(8),))
        views.write_bytes(whole[:at] + flipped + whole[at + 1 :])
        refused += not loaded(data)
    assert refused == len(warned()) > 0  # most octets of so small a file are in no use


@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_a_file_that_was_cut_short_is_not_used(
    data: Path, size: int, warned: Callable[[], list[str]]
) -> None:
    views = open_data_dir(data).views
    views.write_bytes(views.read_bytes()[:size])
    assert loaded(data) == 0
    assert len(warned()) == 1


def test_a_snapshot_of_another_directory_is_not_used(
    data: Path, tmp_path: Path, warned: Callable[[], list[str]]
) -> None:
    other = tmp_path / "other"
    change(other, zone("example.net"))
    open_data_dir(other).views.write_bytes(open_data_dir(data).views.read_bytes())
    assert loaded(other) == 0
    assert "made for another data directory" in warned()[0]
    # with the key of that directory too
    open_data_dir(other).snapshot_key.write_bytes(open_data_dir(data).snapshot_key.read_bytes())
    assert loaded(other) == 0
    assert "another log" in warned()[0]


def test_a_snapshot_of_another_version_is_not_used(
    data: Path, monkeypatch: pytest.MonkeyPatch, warned: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr(snapshots, "FORMAT", "another")
    assert loaded(data) == 0
    assert "another version" in warned()[0]


def test_a_snapshot_is_not_used_with_an_older_copy_of_the_log(
    data: Path, tmp_path: Path, warned: Callable[[], list[str]]
) -> None:
    log = open_data_dir(data).log
    old = log.read_bytes()
    change(data, host("late"))
    save(data)
    log.write_bytes(old)
    open_data_dir(data).checkpoint.unlink()  # which shows it: whoever did this wants to go on
    assert loaded(data) == 0
    assert "the log ends at" in warned()[0]
    # and not when that log has gone another way since
    change(data, host("other"), host("more"))
    warned()
    assert loaded(data) == 0
    assert "another event" in warned()[0]


def test_a_snapshot_from_after_a_damage_is_not_used(
    data: Path, warned: Callable[[], list[str]]
) -> None:
    assert loaded(data, Position(3)) == 0
    assert "after 3" in warned()[0]


def test_a_redaction_takes_the_snapshot_away(data: Path) -> None:
    assert loaded(data)
    with service(data) as found:
        found.redact(RedactRequest(seq=position_of(data, "h3"), reason="a secret"))
    assert not open_data_dir(data).views.exists()


def test_a_snapshot_from_before_a_redaction_is_not_used(
    data: Path, warned: Callable[[], list[str]]
) -> None:
    views = open_data_dir(data).views
    old = views.read_bytes()
    with service(data) as found:
        found.redact(RedactRequest(seq=position_of(data, "h3"), reason="a secret"))
    views.write_bytes(old)  # the process died before it was taken away
    assert loaded(data) == 0
    assert "redacted" in warned()[0]


def position_of(data: Path, name: str) -> int:
    """The first content of a record set, which was changed since."""
    with node_of(data) as (_, node):
        return next(int(e.seq) for e in node.log.read() if e.key.endswith(f"/{name}"))


def test_a_snapshot_from_before_a_pruning_is_not_used(
    data: Path, warned: Callable[[], list[str]]
) -> None:
    with service(data) as found:
        for i in range(300):
            found.change(ChangeRequest(apply=[host("busy", f"192.0.2.{i % 250}")]))
        found.checkpoint()
        assert found.prune(PruneRequest(before=600)).rows
    assert loaded(data) == 0
    assert "pruned" in warned()[0]
    save(data)
    assert loaded(data)


# --- writing ----------------------------------------------------------------------------------


def test_who_fails_while_writing_leaves_the_snapshot_before(data: Path) -> None:
    directory = open_data_dir(data)
    before = directory.views.read_bytes()
    key = directory.snapshot_key.read_text()

    def parts() -> Iterator[tuple[str, bytes]]:
        yield "clock", b"x" * 100_000
        raise StorageFailed("the log cannot be read any more")

    with open_snapshot(directory.views, bytes.fromhex(key)) as found:
        assert found is not None
        with pytest.raises(StorageFailed):
            write_snapshot(directory.views, bytes(KEY_SIZE), found.of, parts())
    assert directory.views.read_bytes() == before
    assert sorted(path.name for path in data.glob("views*")) == ["views.db"]


def test_what_a_writer_that_was_killed_left_is_removed_by_the_next(data: Path) -> None:
    left = data / "views.db.4711.new"
    left.write_bytes(b"half a snap")
    save(data)
    assert not left.exists()


def test_a_snapshot_that_cannot_be_written_is_told_and_no_fault(
    data: Path, warned: Callable[[], list[str]]
) -> None:
    views = open_data_dir(data).views
    views.unlink()
    views.mkdir()
    with node_of(data) as (directory, node):
        node.views.follower.catch_up(node.log)
        snapshots.try_to_save(directory, node)
    (line,) = warned()
    assert str(views) in line
    assert loaded(data) == 0


def test_a_snapshot_of_no_file_is_none(tmp_path: Path) -> None:
    with open_snapshot(tmp_path / "views.db", bytes(KEY_SIZE)) as found:
        assert found is None


def test_a_database_of_somebody_else_is_no_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE snapshot (about, mac)")
        db.commit()
    with pytest.raises(Unusable, match="no snapshot"), open_snapshot(path, bytes(KEY_SIZE)):
        pass
