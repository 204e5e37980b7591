"""Damages of a log that was pruned or redacted: each is named, with its position."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kudurru.domain.checkpoint import parse_checkpoint
from kudurru.domain.ports import Erasure
from kudurru.domain.verify import verify
from tests.contracts.test_upkeep import erase, log_of_600, prune
from tests.logs import log_key, sqlite_log, trust

NOTHING = "UPDATE meta SET id = 1"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 events, 1 to 512 of them pruned but for 510 to 512, of which 511 is redacted."""
    path = tmp_path_factory.mktemp("pruned") / "log.db"
    with closing(sqlite_log(path)) as log:
        log_of_600(log)
        erase(log, Erasure(511, 511, "body"))
        prune(log, 512)
    with closing(sqlite3.connect(path)) as db:
        for (name,) in db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'trigger'"
        ).fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute("PRAGMA journal_mode = DELETE")
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "log.db"
    copy.write_bytes(whole.read_bytes())
    return copy


def damages(path: Path) -> list[tuple[str, int]]:
    with closing(sqlite_log(path, create=False)) as log:
        found = verify(log, trust=trust(log, 1)).damages
        return [(damage.kind, damage.position) for damage in found]


def edit(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(sql)


BACK = """
    INSERT INTO log SELECT {seq}, txn, ts, stream, {seq}, scope, type, entry, salt, body, who_salt,
        who, leaf, head FROM log WHERE seq = 510"""
FLIP = "CAST(substr({0}, 1, length({0}) - 1) || x'00' AS BLOB)"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (NOTHING, None),
        ("DELETE FROM log WHERE seq = 510", ("gap", 510)),
        ("DELETE FROM log WHERE seq = 512", ("gap", 512)),
        ("DELETE FROM log WHERE seq = 513", ("gap", 513)),
        (BACK.format(seq=300), ("gap", 300)),
        ("UPDATE log SET salt = NULL, body = NULL WHERE seq = 510", ("payload", 510)),
        ("UPDATE log SET body = x'7b7d' WHERE seq = 510", ("payload", 510)),
        ("UPDATE log SET who = x'7b7d' WHERE seq = 511", ("payload", 511)),
        ("UPDATE log SET ts = ts - 1 WHERE seq = 510", ("entry", 510)),
        ("UPDATE log SET ver = 999 WHERE seq = 512", ("entry", 512)),
        (f"UPDATE log SET leaf = {FLIP.format('leaf')} WHERE seq = 510", ("chain", 510)),
        (f"UPDATE log SET head = {FLIP.format('head')} WHERE seq = 510", ("chain", 510)),
        (f"UPDATE log SET head = {FLIP.format('head')} WHERE seq = 512", ("chain", 512)),
        ("UPDATE checkpoints SET state = zeroblob(64) WHERE anchor = 1", ("state", 512)),
        ("UPDATE checkpoints SET anchor = 0", ("state", 512)),
        ("UPDATE tiles SET hashes = zeroblob(8192) WHERE level = 0 AND idx = 0", ("chain", 510)),
    ],
)
def test_a_damage_of_what_is_left_is_named(
    path: Path, sql: str, expected: tuple[str, int] | None
) -> None:
    edit(path, sql)
    found = damages(path)
    assert (min(found, key=lambda one: one[1]) if found else None) == expected, found


def test_an_anchor_that_was_replaced_by_another_note_is_named(path: Path) -> None:
    with closing(sqlite_log(path, create=False)) as log:
        anchor = log.anchor()
    assert anchor is not None
    edit(path, f"UPDATE checkpoints SET note = replace(note, '{anchor.size}', '999')")
    assert damages(path)[0] == ("signature", anchor.size)
    edit(path, f"DELETE FROM checkpoints WHERE size = {anchor.size}")
    assert ("signature", anchor.size) not in damages(path)  # nobody knows of it any more
    assert damages(path)[0] == ("state", 512)


def test_rows_that_somebody_without_a_key_pruned_are_missed(path: Path) -> None:
    """The event alone is in nobody's name: a pruning is always signed."""
    with closing(sqlite_log(path, create=False)) as log:
        head = log.head().seq
    edit(path, f"DELETE FROM checkpoints WHERE size = {head}; DELETE FROM log WHERE seq = {head}")
    assert damages(path) == [("signature", head - 1)]


def test_a_checkpoint_from_before_the_pruning_still_proves_the_log(
    tmp_path: Path,
) -> None:
    with closing(sqlite_log(tmp_path / "log.db")) as log:
        log_of_600(log, early=300)
        old = parse_checkpoint(next(log.checkpoints()).note)
        prune(log, 512)
        assert old.size < 512
        for after in (0, 512):
            assert verify(log, after=after, trust=trust(log, 1, checkpoint=old)).is_whole
        with closing(sqlite_log(tmp_path / "other.db")) as other:
            log_of_600(other, early=301)
            given = parse_checkpoint(next(other.checkpoints()).note)
            found = verify(log, after=512, trust=trust(log, 1, checkpoint=given)).damages
        assert [one.kind for one in found] == ["signature"] or given.origin == old.origin
        assert log_key(log).verifier.name == old.origin
