"""What is particular to the log in SQLite: the file, triggers, errors, and edits of the file."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.errors import (
    Conflict,
    KudurruError,
    LogDamaged,
    LogNewer,
    NotFound,
    StorageBroken,
    StorageFailed,
)
from kudurru.domain.verify import verify
from tests.logs import (
    NOON_US,
    SeededEntropy,
    StillClock,
    applied,
    change,
    key,
    recorded_history,
    sqlite_log,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[SQLiteEventLog]:
    log = sqlite_log(path)
    yield log
    log.close()


def damages(path: Path) -> list[tuple[str, int]]:
    with closing(sqlite_log(path, create=False)) as log:
        return [(damage.kind, damage.position) for damage in verify(log).damages]


def edit(path: Path, sql: str, *parameters: Any) -> int:
    """What somebody with the file can do: the triggers are no protection against that."""
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
        for (trigger,) in found.fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        changed = db.execute(sql, parameters).rowcount
        db.commit()
        return changed


# The file


def test_a_log_is_what_it_was_after_it_is_opened_again(path: Path) -> None:
    with closing(sqlite_log(path)) as log:
        recorded_history(log)
        before = (log.log_id, log.epoch, log.head(), list(log.read()), list(log.rows()))
    with closing(sqlite_log(path, create=False)) as log:
        assert (log.log_id, log.epoch, log.head(), list(log.read()), list(log.rows())) == before
        assert log.append([change(applied("www", 5))], NOON_US)[0].seq == 11
        assert verify(log).is_whole
        log.check_storage()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_files_are_private_whatever_the_umask(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        log = sqlite_log(path)
        recorded_history(log)
    finally:
        os.umask(before)
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["log.db", "log.db-shm", "log.db-wal"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    log.close()


def test_the_writing_connection_syncs_and_wipes(log: SQLiteEventLog) -> None:
    db = log._writer
    settings = ["journal_mode", "synchronous", "secure_delete"]
    found = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    assert found == ["wal", 2, 1]  # 2 is FULL


def test_streams_and_scopes_are_named_by_their_first_event(log: SQLiteEventLog, path: Path) -> None:
    recorded_history(log)
    with closing(sqlite3.connect(path)) as db:
        streams = db.execute("SELECT id, key FROM streams ORDER BY id").fetchall()
        scopes = db.execute("SELECT id, scope FROM scopes ORDER BY id").fetchall()
    assert streams == [(1, key("www")), (2, key("mail")), (3, key("db")), (7, key("api")),
                       (8, key("ftp"))]  # fmt: skip
    assert scopes == [(1, "default/example.org"), (3, "team/internal.test"), (8, "")]


def test_a_missing_log_is_not_made_unless_asked(path: Path) -> None:
    with pytest.raises(NotFound, match="there is no log at"):
        sqlite_log(path, create=False)
    assert not path.exists()


def test_an_empty_file_is_no_log_and_becomes_one_when_asked(path: Path) -> None:
    path.touch()
    with pytest.raises(NotFound, match="is empty"):
        sqlite_log(path, create=False)
    sqlite_log(path).close()
    assert damages(path) == []


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" * 300])
def test_a_file_that_is_no_database_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StorageFailed, match=r"log\.db.* - "):
        sqlite_log(path)
    assert path.read_bytes() == content


def test_somebody_elses_database_is_refused_and_kept(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY)")
    before = path.read_bytes()
    with pytest.raises(StorageFailed, match="no kudurru log: name the right data directory"):
        sqlite_log(path)
    assert path.read_bytes() == before


def test_a_log_of_a_newer_schema_is_refused_and_kept(path: Path) -> None:
    sqlite_log(path).close()
    edit(path, "UPDATE meta SET schema = 2")
    before = path.read_bytes()
    with pytest.raises(LogNewer, match="has schema 2, and this kudurru knows up to 1"):
        sqlite_log(path)
    assert path.read_bytes() == before


def test_a_log_with_entries_of_a_newer_version_is_refused(path: Path) -> None:
    with closing(sqlite_log(path)) as log:
        recorded_history(log)
    edit(path, "UPDATE log SET entry = ? WHERE seq = 10", b'{"seq":10,"v":2}')
    with pytest.raises(LogNewer, match="entries of version 2"):
        sqlite_log(path)


def test_a_log_without_its_tables_is_refused(path: Path) -> None:
    sqlite_log(path).close()
    edit(path, "DROP TABLE log")
    with pytest.raises(StorageFailed, match="no whole kudurru log"):
        sqlite_log(path)


# Append-only

ROW_10 = (
    "SELECT {seq}, txn, ts, stream, 99, scope, type, entry, salt, body, who_salt, who, leaf, head "
    "FROM log WHERE seq = 10"
)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE log SET ts = ts + 1 WHERE seq = 2", "not changed"),
        ("UPDATE log SET body = x'00' WHERE seq = 2", "not changed"),
        ("UPDATE log SET body = NULL WHERE seq = 2", "not changed"),
        ("UPDATE log SET salt = NULL WHERE seq = 2", "not changed"),
        ("UPDATE log SET who = NULL WHERE seq = 2", "not changed"),
        ("UPDATE log SET entry = x'00', body = NULL, salt = NULL WHERE seq = 2", "not changed"),
        ("UPDATE log SET seq = 99 WHERE seq = 10", "not changed"),
        ("DELETE FROM log WHERE seq = 1", "only rows up to an anchor"),
        ("DELETE FROM log WHERE seq = 10", "only rows up to an anchor"),
        (f"INSERT INTO log {ROW_10.format(seq=12)}", "no gaps"),
        (f"INSERT INTO log {ROW_10.format(seq=0)}", "no gaps"),
        (f"INSERT INTO log {ROW_10.format(seq='NULL')}", "no gaps"),
        (f"INSERT OR REPLACE INTO log {ROW_10.format(seq=1)}", "no gaps"),
        (f"INSERT OR REPLACE INTO log {ROW_10.format(seq=10)}", "no gaps"),
        (f"INSERT OR REPLACE INTO log {ROW_10.format(seq=11).replace('99', 'ver')}", "no gaps"),
        ("UPDATE streams SET key = 'x' WHERE id = 1", "streams are not changed"),
        ("DELETE FROM streams WHERE id = 1", "streams are kept"),
        ("UPDATE scopes SET scope = 'x' WHERE id = 1", "scopes are not changed"),
        ("DELETE FROM scopes WHERE id = 1", "scopes are kept"),
        ("DELETE FROM meta", "keeps its name"),
    ],
)  # fmt: skip
def test_the_file_refuses_what_is_no_append(
    log: SQLiteEventLog, path: Path, sql: str, message: str
) -> None:
    recorded_history(log)
    with closing(sqlite3.connect(path)) as db, pytest.raises(sqlite3.Error, match=message):
        db.execute(sql)
    assert verify(log).is_whole


def test_the_file_lets_a_payload_be_erased_with_its_salt(log: SQLiteEventLog, path: Path) -> None:
    recorded_history(log)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE log SET salt = NULL, body = NULL WHERE seq = 2")
        db.execute("UPDATE log SET who_salt = NULL, who = NULL WHERE seq = 3")
    assert [(d.kind, d.position) for d in verify(log).damages] == [("payload", 2), ("payload", 3)]
    second, third = list(log.read(1, 3))
    assert (second.body, second.who is None, third.who) == (None, False, None)
    assert log.select_notifications(start=2, limit=1)[0].state == b""


def test_rows_up_to_an_anchor_may_go_and_appends_go_on(log: SQLiteEventLog, path: Path) -> None:
    recorded_history(log)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO checkpoints VALUES (5, 'note', x'', NULL, 1)")
        db.execute("DELETE FROM log WHERE seq <= 5")
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("DELETE FROM log WHERE seq = 6")
    assert log.append([change(applied("www", 5))], NOON_US)[0].seq == 11
    assert [event.seq for event in log.read()] == [6, 7, 8, 9, 10, 11]


# Edits of the file


def flip(value: Any) -> Any:
    if isinstance(value, int):
        return value ^ 1
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1)
    return value[:-1] + bytes([value[-1] ^ 1])


@pytest.mark.parametrize(
    ("table", "where", "column", "expected"),
    [
        ("log", 4, "txn", ("entry", 4)),
        ("log", 4, "ts", ("entry", 4)),
        ("log", 4, "stream", ("entry", 4)),
        ("log", 9, "ver", ("entry", 9)),
        ("log", 4, "scope", ("entry", 4)),
        ("log", 4, "type", ("entry", 4)),
        ("log", 4, "entry", ("entry", 4)),
        ("log", 4, "salt", ("payload", 4)),
        ("log", 4, "body", ("payload", 4)),
        ("log", 4, "who_salt", ("payload", 4)),
        ("log", 4, "who", ("payload", 4)),
        ("log", 4, "leaf", ("chain", 4)),
        ("log", 4, "head", ("chain", 4)),
        ("log", 10, "seq", ("gap", 10)),
        ("streams", 2, "key", ("entry", 2)),
        ("streams", 8, "id", ("entry", 8)),
        ("scopes", 3, "scope", ("entry", 3)),
        ("scopes", 8, "id", ("entry", 8)),
        ("meta", 1, "log_id", ("chain", 1)),
        ("meta", 1, "epoch", ("chain", 1)),
    ],
)
def test_a_value_changed_in_any_column_is_found_where_it_is(
    path: Path, table: str, where: int, column: str, expected: tuple[str, int]
) -> None:
    with closing(sqlite_log(path)) as log:
        recorded_history(log)
    rowid = "seq" if table == "log" else "id"
    with closing(sqlite3.connect(path)) as db:
        sql = f"SELECT {column} FROM {table} WHERE {rowid} = ?"
        value = db.execute(sql, (where,)).fetchone()[0]
    assert edit(path, f"UPDATE {table} SET {column} = ? WHERE {rowid} = ?", flip(value), where) == 1
    assert damages(path)[0] == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DELETE FROM log WHERE seq = 1", ("gap", 1)),
        ("DELETE FROM log WHERE seq = 5", ("gap", 5)),
        ("DELETE FROM log WHERE seq > 7", ("gap", 8)),
        ("DELETE FROM streams WHERE id = 3", ("entry", 3)),
        ("DELETE FROM scopes WHERE id = 1", ("entry", 1)),
        ("UPDATE log SET body = NULL, salt = NULL WHERE seq = 6", ("payload", 6)),
    ],
)
def test_rows_that_are_gone_are_found(path: Path, sql: str, expected: tuple[str, int]) -> None:
    with closing(sqlite_log(path)) as log:
        recorded_history(log)
    edit(path, sql)
    assert damages(path)[0] == expected


def test_octets_changed_in_the_file_are_found(path: Path) -> None:
    """Below SQLite: invalid text, an index that no longer agrees with its table."""
    with closing(sqlite_log(path)) as log:
        recorded_history(log)
        rows = list(log.rows())
    whole = path.read_bytes()
    needles = [rows[6].entry, rows[6].body, rows[6].who, rows[6].head, b"DNSRecordSet/default/api",
               b"team/internal.test", b"obj.applied.v1"]  # fmt: skip
    for needle in needles:
        start = whole.find(needle)
        assert start > 0
        while start > 0:
            for bit in (0x01, 0x80):
                at = start + len(needle) // 2
                path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
                with closing(sqlite_log(path, create=False)) as log:
                    is_found = not verify(log).is_whole
                    try:
                        log.check_storage()
                    except LogDamaged:
                        is_found = True
                    assert is_found, (needle, start, bit)
            start = whole.find(needle, start + 1)


def test_a_page_that_cannot_be_read_is_a_gap_where_it_begins(path: Path) -> None:
    with closing(sqlite_log(path)) as log:
        log.append([change(applied(f"host{n}")) for n in range(1, 201)], NOON_US)
        entry = next(log.rows(149)).entry
    whole = bytearray(path.read_bytes())
    page = whole.find(entry) // 4096 * 4096
    whole[page : page + 4096] = os.urandom(4096)
    path.write_bytes(whole)
    with closing(sqlite_log(path, create=False)) as log:
        found = verify(log).damages
        assert found[0].kind == "gap"
        assert 100 < found[0].position <= 150
        assert [event.seq for event in log.read(0, 100)] == list(range(1, 101))
        with pytest.raises(KudurruError):
            list(log.read())
        with pytest.raises(LogDamaged, match="inconsistent"):
            log.check_storage()


def test_pages_that_lead_in_a_circle_are_a_gap_and_no_endless_read(path: Path) -> None:
    with closing(sqlite_log(path)) as log:
        log.append([change(applied(f"host{n}")) for n in range(1, 201)], NOON_US)
    with closing(sqlite3.connect(path)) as db:
        sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'log'"
        root = (db.execute(sql).fetchone()[0] - 1) * 4096
    file = bytearray(path.read_bytes())
    cells = [int.from_bytes(file[at : at + 2]) for at in range(root + 12, root + 20, 2)]
    # The third page below the root is the first once more.
    file[root + cells[2] : root + cells[2] + 4] = file[root + cells[0] : root + cells[0] + 4]
    path.write_bytes(file)
    with closing(sqlite_log(path, create=False)) as log:
        assert (verify(log).damages[0].kind, verify(log, tail=200).is_whole) == ("gap", False)
        with pytest.raises(LogDamaged, match=r"row 1 of .* its pages are damaged"):
            list(log.read())
        with pytest.raises(LogDamaged, match="its pages are damaged"):
            list(log.read(newest_first=True))


def test_an_append_sees_that_the_log_was_changed_under_it(log: SQLiteEventLog, path: Path) -> None:
    recorded_history(log)
    edit(path, "UPDATE log SET head = zeroblob(32) WHERE seq = 10")
    with pytest.raises(LogDamaged, match="position 10: the head changed while in use"):
        log.append([change(applied("x"))], NOON_US)
    edit(path, "DELETE FROM log WHERE seq >= 9")
    with pytest.raises(LogDamaged, match="position 10: the row was deleted while in use"):
        log.append([change(applied("x"))], NOON_US)


def test_the_verifier_reads_a_log_whose_text_is_invalid(path: Path) -> None:
    with closing(sqlite_log(path)) as log:
        recorded_history(log)
    edit(path, "UPDATE log SET type = CAST(x'ff41' AS TEXT) WHERE seq = 2")
    assert damages(path) == [("entry", 2)]


# Errors of the storage


def test_a_full_disk_refuses_and_appends_go_on_when_there_is_space(log: SQLiteEventLog) -> None:
    recorded_history(log)
    pages = log._writer.execute("PRAGMA page_count").fetchone()[0]
    log._writer.execute(f"PRAGMA max_page_count = {pages}")
    big = change(applied("big", body=b'"%s"' % (b"x" * 100_000)))
    with pytest.raises(StorageFailed, match="full - free space on that disk"):
        log.append([big], NOON_US)
    assert log.head().seq == 10
    log._writer.execute(f"PRAGMA max_page_count = {pages + 100}")
    assert log.append([big], NOON_US)[0].seq == 11
    assert verify(log).is_whole


class Faulty:
    """A connection on which COMMIT fails, before or after it takes effect."""

    def __init__(self, db: sqlite3.Connection, code: int, *, after: bool) -> None:
        self._db, self._code, self._after = db, code, after

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            if self._after:
                self._db.execute(sql)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self._code
            raise error
        return self._db.execute(sql, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


@pytest.mark.parametrize("after", [False, True])
def test_after_a_commit_of_unknown_outcome_nothing_is_appended_until_reopened(
    path: Path, after: bool
) -> None:
    log = sqlite_log(path)
    recorded_history(log)
    real = log._writer
    log._writer = Faulty(real, sqlite3.SQLITE_IOERR_FSYNC, after=after)  # type: ignore[assignment]
    with pytest.raises(StorageBroken, match=r"disk I/O error\), so it is open whether"):
        log.append([change(applied("x"))], NOON_US)
    log._writer = real
    with pytest.raises(StorageBroken, match="open whether the last change is durable"):
        log.append([change(applied("y"))], NOON_US)
    assert len(list(log.read())) >= 10  # reading goes on
    log.close()
    with closing(sqlite_log(path, create=False)) as log:
        assert log.stream_version(key("x")) == int(after)
        log.append([change(applied("y"))], NOON_US)
        assert verify(log).is_whole
        assert log.head().seq == 11 + after


def test_a_commit_that_finds_the_disk_full_recorded_nothing(log: SQLiteEventLog) -> None:
    recorded_history(log)
    real = log._writer
    log._writer = Faulty(real, sqlite3.SQLITE_FULL, after=False)  # type: ignore[assignment]
    with pytest.raises(StorageFailed, match="free space"):
        log.append([change(applied("x"))], NOON_US)
    log._writer = real
    assert log.append([change(applied("x"))], NOON_US)[0].seq == 11


def test_a_log_that_is_locked_by_another_program_says_so(log: SQLiteEventLog, path: Path) -> None:
    log._writer.execute("PRAGMA busy_timeout = 1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageFailed, match="another process holds the file"):
            log.append([change(applied("x"))], NOON_US)
        other.execute("ROLLBACK")
    assert log.append([change(applied("x"))], NOON_US)[0].seq == 1


def test_a_log_is_opened_for_reading_while_another_process_writes_it(
    log: SQLiteEventLog, path: Path
) -> None:
    recorded_history(log)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with closing(sqlite_log(path, create=False)) as reader:
            assert len(list(reader.read())) == 10
        other.execute("ROLLBACK")


def test_a_log_that_may_not_be_written_is_refused_at_once(
    path: Path, unprivileged: Callable[..., Any]
) -> None:
    with closing(sqlite_log(path)) as log:
        recorded_history(log)
    path.chmod(0o444)
    with unprivileged(path.parent), pytest.raises(StorageFailed, match="writable for this user"):
        sqlite_log(path)


def test_a_folder_that_may_not_be_written_is_refused(
    tmp_path: Path, unprivileged: Callable[..., Any]
) -> None:
    with unprivileged(tmp_path, mode=0o555), pytest.raises(StorageFailed, match=r"log\.db"):
        sqlite_log(tmp_path / "log.db")


# Two processes

WRITER = """
import sys
from kudurru.domain.errors import Conflict
from tests.logs import NOON_US, applied, change, key, sqlite_log
from pathlib import Path
log = sqlite_log(Path(sys.argv[1]), create=False)
me, lost = sys.argv[2], 0
print("ready", flush=True)
sys.stdin.readline()
for number in range(60):
    log.append([change(applied(f"{me}-{number}"))], NOON_US)
    while True:
        ver = log.stream_version(key("shared")) + 1
        try:
            log.append([change(applied("shared", ver))], NOON_US)
            break
        except Conflict:
            lost += 1
log.close()
"""


def test_two_processes_lose_nothing_and_leave_no_gap(path: Path) -> None:
    sqlite_log(path).close()
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, path, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.communicate("go\n", timeout=60)
    assert [writer.returncode for writer in writers] == [0, 0]
    with closing(sqlite_log(path, create=False)) as log:
        assert log.stream_version(key("shared")) == 120
        for name in ("a", "b"):
            assert all(log.stream_version(key(f"{name}-{n}")) == 1 for n in range(60))
        assert [event.seq for event in log.read()] == list(range(1, 241))
        assert verify(log).is_whole


def test_a_second_writer_is_taken_in_and_the_loser_conflicts(path: Path) -> None:
    with closing(sqlite_log(path)) as one, closing(sqlite_log(path)) as two:
        one.append([change(applied("www"))], NOON_US)
        with pytest.raises(Conflict):
            two.append([change(applied("www"))], NOON_US)
        assert two.append([change(applied("www", 2))], NOON_US)[0].seq == 2
        assert one.append([change(applied("www", 3))], NOON_US)[0].seq == 3
        assert verify(two).is_whole


def test_two_that_open_a_new_log_at_once_open_the_same(path: Path) -> None:
    path.touch(0o600)
    with closing(sqlite_log(path)) as one:
        other = SQLiteEventLog.open(path, entropy=SeededEntropy(2), clock=StillClock(), create=True)
        assert other.log_id == one.log_id
        other.close()
