"""Whoever owns the file rewrites it, chain and all: what the tree and the signatures still show.

Rows 1 to 300 are objects; 301 adopts key 1 and 302 is its checkpoint; 303 to 602 are objects and
603 is a checkpoint; 604 to 606 are under none.
"""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.adapters.sqlite.schema import TRIGGERS
from kudurru.domain import chain
from kudurru.domain.chain import Redaction
from kudurru.domain.checkpoint import Checkpoint, parse_checkpoint
from kudurru.domain.codec import canonical
from kudurru.domain.errors import LogDamaged
from kudurru.domain.events import PAYLOAD_REDACTED, REDACTION_KEY, Event
from kudurru.domain.ports import StoredCheckpoint
from kudurru.domain.signed_note import sign_note
from kudurru.domain.tree import Edge
from kudurru.domain.verify import verify
from tests.logs import (
    NOON_US,
    adopt,
    applied,
    change,
    log_key,
    sign,
    sqlite_log,
    trust,
)

FIRST, SECOND, NEWEST = 302, 603, 606


class Kept(msgspec.Struct):
    """A log, and its checkpoints as somebody else has them."""

    path: Path
    first: Checkpoint
    second: Checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    path = tmp_path_factory.mktemp("log") / "log.db"
    with closing(sqlite_log(path)) as log:
        log.append([change(applied(f"a{i}")) for i in range(300)], NOON_US)
        first = sign(log, 1, adopt(log))
        log.append([change(applied(f"b{i}")) for i in range(300)], NOON_US)
        second = sign(log)
        log.append([change(applied(f"c{i}")) for i in range(3)], NOON_US)
        assert (first.size, second.size, log.head().seq) == (FIRST, SECOND, NEWEST)
    return Kept(path, parse_checkpoint(first.note), parse_checkpoint(second.note))


@pytest.fixture
def kept(whole: Kept, tmp_path: Path) -> Kept:
    shutil.copy(whole.path, tmp_path / "log.db")
    return msgspec.structs.replace(whole, path=tmp_path / "log.db")


def opened(kept: Kept) -> SQLiteEventLog:
    return sqlite_log(kept.path, create=False)


def found_in(kept: Kept, *keys: int, since: Checkpoint | None = None) -> list[tuple[str, int]]:
    """Kinds and positions of damage; from a checkpoint that was kept, where one is given."""
    with closing(opened(kept)) as log:
        found = verify(
            log, after=since.size if since else 0, trust=trust(log, *keys, checkpoint=since)
        )
        return [(damage.kind, damage.position) for damage in found.damages]


@pytest.fixture
def db(kept: Kept) -> Iterator[sqlite3.Connection]:
    """The file in the hands of somebody who knows SQLite."""
    with closing(sqlite3.connect(kept.path, isolation_level=None)) as db:
        names = db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for (name,) in names:
            db.execute(f"DROP TRIGGER {name}")
        yield db


def rechain(db: sqlite3.Connection, log_id: str) -> None:
    """Leaf and head of every row anew: what a forger with this code does."""
    head = chain.genesis(chain.origin_of(log_id, 1))
    for seq, entry in db.execute("SELECT seq, entry FROM log ORDER BY seq").fetchall():
        leaf = chain.leaf_of(entry)
        head = chain.head_after(head, leaf)
        db.execute("UPDATE log SET leaf = ?, head = ? WHERE seq = ?", (leaf, head, seq))


def retile(db: sqlite3.Connection) -> Edge:
    """Every tile anew."""
    db.execute("DELETE FROM tiles")
    leaves = [row[0] for row in db.execute("SELECT leaf FROM log ORDER BY seq")]
    edge, tiles = Edge().extended(leaves)
    for tile in tiles:
        row = (tile.level, tile.index, len(tile.hashes), b"".join(tile.hashes))
        db.execute("INSERT INTO tiles VALUES (?, ?, ?, ?)", row)
    return edge


def forge(db: sqlite3.Connection, seq: int) -> None:
    """Another body at a position, committed to as it should be."""
    entry, salt = db.execute("SELECT entry, salt FROM log WHERE seq = ?", (seq,)).fetchone()
    body = b'{"forged":true}'
    header = msgspec.structs.replace(chain.decode_header(entry), body=chain.commitment(salt, body))
    db.execute(
        "UPDATE log SET entry = ?, body = ? WHERE seq = ?",
        (chain.encode_header(header), body, seq),
    )


def log_id(kept: Kept) -> str:
    return kept.first.origin.split("/")[1]


def test_the_log_is_whole(kept: Kept) -> None:
    for keys in ((), (1,)):
        for since in (None, kept.first, kept.second):
            assert found_in(kept, *keys, since=since) == []


@pytest.mark.parametrize("seq", [1, 200, 256, 303, 512])
def test_a_row_that_was_rewritten_with_its_chain_is_found_in_its_tile(
    seq: int, kept: Kept, db: sqlite3.Connection
) -> None:
    forge(db, seq)
    rechain(db, log_id(kept))
    assert found_in(kept) == [("tree", seq)]


@pytest.mark.parametrize(
    ("seq", "first"), [(1, 1), (257, 257), (300, 297), (303, 303), (512, 303), (550, 513)]
)
def test_a_row_that_was_rewritten_with_chain_and_tiles_is_found_by_the_signed_root(
    seq: int, first: int, kept: Kept, db: sqlite3.Connection
) -> None:
    forge(db, seq)
    rechain(db, log_id(kept))
    retile(db)
    # Any row after the last root that is right and under the first subtree that is not.
    assert found_in(kept) == found_in(kept, 1) == [("tree", first)]


def test_a_row_under_no_checkpoint_is_only_protected_by_the_chain(
    kept: Kept, db: sqlite3.Connection
) -> None:
    forge(db, 605)
    assert found_in(kept)[0][1] == 605
    rechain(db, log_id(kept))
    assert found_in(kept) == []  # which is why a checkpoint comes after ten seconds


TILES: dict[str, tuple[str, str, int]] = {
    "a hash of a full tile": (
        "UPDATE tiles SET hashes = CAST(zeroblob(32) || substr(hashes, 33) AS BLOB) WHERE idx = 1",
        "tree",
        257,
    ),
    "a hash of a tile above": (
        "UPDATE tiles SET hashes = CAST(substr(hashes, 1, 32) || zeroblob(32) AS BLOB) WHERE level",
        "tree",
        257,
    ),
    "a tile above that is missing": ("DELETE FROM tiles WHERE level = 1", "tree", 1),
    "a tile of rows that are no more": (
        "INSERT INTO tiles SELECT 0, 2, 256, hashes FROM tiles WHERE level = 0 AND idx = 0",
        "truncation",
        607,
    ),
    "a tile above of rows that are no more": (
        "UPDATE tiles SET width = 3, hashes = CAST(hashes || zeroblob(32) AS BLOB) WHERE level = 1",
        "truncation",
        607,
    ),
}


@pytest.mark.parametrize("what", TILES)
def test_a_tile_that_is_not_that_of_the_rows_is_named(
    what: str, kept: Kept, db: sqlite3.Connection
) -> None:
    sql, kind, position = TILES[what]
    db.execute(sql)
    assert found_in(kept) == [(kind, position)]


def test_leaves_stand_in_for_a_tile_that_is_missing(kept: Kept, db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM tiles WHERE level = 0 AND idx = 1")
    assert found_in(kept, 1, since=kept.second) == []


ROWS: dict[str, tuple[str, list[tuple[str, int]]]] = {
    "a row deleted": ("DELETE FROM log WHERE seq = 400", [("gap", 400)]),
    "the first rows deleted": ("DELETE FROM log WHERE seq < 10", [("gap", 1)]),
    "the tail cut after the last checkpoint": (
        "DELETE FROM log WHERE seq > 603",
        [],  # nothing knows of it
    ),
    "the tail cut with its checkpoint event": (
        "DELETE FROM log WHERE seq >= 603",
        [("truncation", 603)],
    ),
    "the tail cut far before": ("DELETE FROM log WHERE seq > 100", [("truncation", 101)]),
}


@pytest.mark.parametrize("what", ROWS)
def test_rows_that_are_gone_are_named(what: str, kept: Kept, db: sqlite3.Connection) -> None:
    sql, damages = ROWS[what]
    db.execute(sql)
    assert found_in(kept) == damages


def test_rows_that_were_swapped_are_named(kept: Kept, db: sqlite3.Connection) -> None:
    for before, after in ((40, 0), (41, 40), (0, 41)):
        db.execute("UPDATE log SET seq = ? WHERE seq = ?", (after, before))
    assert found_in(kept)[0] == ("chain", 40)
    rechain(db, log_id(kept))
    assert found_in(kept)[0][1] == 40


def test_a_row_that_was_put_in_between_is_named(kept: Kept, db: sqlite3.Connection) -> None:
    db.execute("UPDATE log SET seq = -(seq + 1) WHERE seq > 50")
    db.execute("UPDATE log SET seq = -seq WHERE seq < 0")
    db.execute(
        "INSERT INTO log SELECT 51, txn, ts, stream, 99, scope, type, entry, salt, body, who_salt,"
        " who, leaf, head FROM log WHERE seq = 50"
    )
    assert found_in(kept)[0][1] == 51


def test_a_tail_cut_with_its_checkpoint_is_found_with_one_that_was_kept(
    kept: Kept, db: sqlite3.Connection
) -> None:
    db.execute("DELETE FROM log WHERE seq > 302")
    db.execute("DELETE FROM checkpoints WHERE size > 302")
    retile(db)
    assert found_in(kept) == found_in(kept, 1) == []  # the file alone cannot show it
    assert found_in(kept, since=kept.first) == []
    assert found_in(kept, since=kept.second) == [("truncation", 303)]
    assert found_in(kept, 1, since=kept.second) == [("truncation", 303)]


NOTES: dict[str, tuple[str, int]] = {
    "UPDATE checkpoints SET note = replace(note, '603', '604') WHERE size = 603": (
        "signature",
        603,
    ),
    "UPDATE checkpoints SET note = 'nothing' WHERE size = 603": ("signature", 603),
    "UPDATE checkpoints SET note = (SELECT note FROM checkpoints WHERE size = 302) "
    "WHERE size = 603": ("signature", 603),
    "DELETE FROM checkpoints WHERE size = 603": ("signature", 603),
    "DELETE FROM checkpoints": ("signature", 302),
    "UPDATE checkpoints SET size = 604 WHERE size = 603": ("signature", 603),
    "UPDATE checkpoints SET frontier = zeroblob(32) WHERE size = 603": ("tree", 603),
    "UPDATE checkpoints SET state = zeroblob(32) WHERE size = 603": ("tree", 603),
    "UPDATE checkpoints SET anchor = 1 WHERE size = 302": ("state", 256),
    "UPDATE log SET body = NULL, salt = NULL WHERE seq = 301": ("signature", 301),
}


@pytest.mark.parametrize("sql", NOTES)
def test_a_checkpoint_that_was_replaced_or_taken_away_is_named(
    sql: str, kept: Kept, db: sqlite3.Connection
) -> None:
    db.execute(sql)
    assert NOTES[sql] in found_in(kept)


BESIDE: dict[str, tuple[str, int]] = {
    "INSERT INTO streams VALUES (9999, 'DNSZone//new')": ("entry", 606),
    "INSERT INTO scopes VALUES (9999, '/new')": ("entry", 606),
    "INSERT INTO tiles SELECT 0, 9, 256, hashes FROM tiles WHERE level = 0 AND idx = 0": (
        "tree",
        606,
    ),
    "INSERT INTO tiles SELECT 2, 0, 256, hashes FROM tiles WHERE level = 0 AND idx = 0": (
        "tree",
        606,
    ),
    "UPDATE tiles SET width = 200 WHERE level = 1": ("tree", 1),
    "UPDATE tiles SET width = 255 WHERE level = 0 AND idx = 1": ("tree", 257),
    "DROP TRIGGER log_is_kept": ("entry", 0),
    "CREATE TRIGGER another BEFORE INSERT ON log BEGIN SELECT raise(IGNORE); END": ("entry", 0),
    "CREATE VIEW another AS SELECT * FROM log": ("entry", 0),
}


@pytest.mark.parametrize("sql", BESIDE)
def test_what_no_row_leads_to_is_found_in_the_storage(
    sql: str, kept: Kept, db: sqlite3.Connection
) -> None:
    for statements in (TRIGGERS, sql) if sql.startswith("DROP") else (sql, TRIGGERS):
        db.executescript(statements)
    with closing(opened(kept)) as log:
        assert verify(log, trust=trust(log, 1)).is_whole
        with pytest.raises(LogDamaged) as found:
            log.check_storage()
    assert (found.value.kind, found.value.position) == BESIDE[sql]


def test_what_is_stored_is_as_kudurru_makes_it(kept: Kept) -> None:
    with closing(opened(kept)) as log:
        log.check_storage()


def test_a_payload_erased_by_somebody_without_a_key_is_missed(
    kept: Kept, db: sqlite3.Connection
) -> None:
    """They can add the event that excuses it, and cannot have it signed."""
    db.execute("UPDATE log SET salt = NULL, body = NULL WHERE seq = 40")
    assert found_in(kept) == [("payload", 40)]
    said = canonical(Redaction(40))
    redacted = Event(PAYLOAD_REDACTED, REDACTION_KEY, 1, "/", "kudurru-controller", said)
    with closing(opened(kept)) as log:
        log.append([change(redacted)], NOON_US)
    assert found_in(kept) == found_in(kept, 1) == [("signature", 607)]
    with closing(opened(kept)) as log:
        sign(log)
    assert found_in(kept) == []


def test_a_redaction_of_more_than_there_is_takes_no_time() -> None:
    assert Redaction(-(10**15), last=10**15).covers(3) == range(1, 4)


def resign(log: SQLiteEventLog, db: sqlite3.Connection, number: int) -> None:
    """Every checkpoint anew, by another key."""
    leaves = [row.leaf for row in log.rows()]
    for (size,) in db.execute("SELECT size FROM checkpoints").fetchall():
        stored = checkpoint_by(log, number, leaves[:size])
        db.execute(
            "UPDATE checkpoints SET note = ?, frontier = ? WHERE size = ?",
            (stored.note, stored.frontier, size),
        )


def checkpoint_by(log: SQLiteEventLog, number: int, leaves: list[bytes]) -> StoredCheckpoint:
    from kudurru.domain.checkpoint import checkpoint_of

    edge, _ = Edge().extended(leaves)
    return checkpoint_of(chain.origin_of(log.log_id, log.epoch), edge, log_key(log, number), b"{}")


def test_checkpoints_by_a_key_that_the_log_does_not_name_are_found(
    kept: Kept, db: sqlite3.Connection
) -> None:
    with closing(opened(kept)) as log:
        resign(log, db, 2)
    assert found_in(kept) == [("signature", 302)]


def adopt_another(kept: Kept, db: sqlite3.Connection, number: int) -> None:
    """Replace the key that the log names by another that consents, and sign all of it anew."""
    with closing(opened(kept)) as log:
        event = adopt(log, number).events[0]
        entry, salt = db.execute("SELECT entry, salt FROM log WHERE seq = 301").fetchone()
        header = msgspec.structs.replace(
            chain.decode_header(entry), body=chain.commitment(salt, event.body)
        )
        db.execute(
            "UPDATE log SET entry = ?, body = ? WHERE seq = 301",
            (chain.encode_header(header), event.body),
        )
    rechain(db, log_id(kept))
    retile(db)
    with closing(opened(kept)) as log:
        resign(log, db, number)


def test_a_log_re_signed_with_another_key_agrees_with_itself_and_with_nobody_else(
    kept: Kept, db: sqlite3.Connection
) -> None:
    forge(db, 7)
    adopt_another(kept, db, 2)
    assert found_in(kept) == []  # consistent, and by a key that was checked against nothing
    assert found_in(kept, 1) == [("signature", NEWEST)]
    assert found_in(kept, 1, since=kept.second)[0][0] == "tree"
    assert found_in(kept, since=kept.second)[0][0] == "signature"
    assert found_in(kept, 2) == []


def test_a_checkpoint_of_another_log_or_epoch_is_refused(kept: Kept) -> None:
    for origin in (kept.second.origin[:-1] + "2", "kudurru/other/1"):
        other = msgspec.structs.replace(kept.second, origin=origin)
        assert found_in(kept, since=other) == [("signature", 603)]


def test_a_checkpoint_that_nobody_known_has_signed_is_refused(kept: Kept) -> None:
    with closing(opened(kept)) as log:
        note = sign_note(kept.second.note.text, log_key(log, 3))
    assert found_in(kept, since=parse_checkpoint(note)) == [("signature", 603)]


def test_tiles_that_are_behind_are_caught_up_by_the_next_append(
    kept: Kept, db: sqlite3.Connection
) -> None:
    before = db.execute("SELECT * FROM tiles ORDER BY level, idx").fetchall()
    db.execute("DELETE FROM tiles")
    with closing(opened(kept)) as log:
        log.append([change(applied("late"))], NOON_US)
        assert verify(log, trust=trust(log, 1)).is_whole
    assert db.execute("SELECT * FROM tiles ORDER BY level, idx").fetchall() == before


def test_two_processes_that_append_keep_one_tree(tmp_path: Path) -> None:
    with (
        closing(sqlite_log(tmp_path / "log.db")) as one,
        closing(sqlite_log(tmp_path / "log.db")) as two,
    ):
        for round_ in range(8):
            for name, log in (("one", one), ("two", two)):
                sets = [change(applied(f"{name}{round_}-{i}")) for i in range(33)]
                log.append(sets, NOON_US)
        sign(two, 1, adopt(two))
        assert verify(one, trust=trust(one, 1)).is_whole


Attempt = Callable[[sqlite3.Connection], object]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM tiles",
        "UPDATE tiles SET hashes = zeroblob(8192) WHERE level = 0 AND idx = 0",
        "UPDATE tiles SET idx = 7 WHERE level = 0 AND idx = 0",
        "DELETE FROM checkpoints",
        "UPDATE checkpoints SET note = ''",
        "UPDATE checkpoints SET size = 5 WHERE size = 302",
    ],
)
def test_triggers_keep_tiles_and_checkpoints_from_mistakes(sql: str, kept: Kept) -> None:
    with closing(sqlite3.connect(kept.path)) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute(sql)


@pytest.mark.parametrize("state", [None, b"x" * 32], ids=["missing", "another"])
def test_the_digest_of_the_state_beside_a_checkpoint_is_that_of_its_row(
    kept: Kept, db: sqlite3.Connection, state: bytes | None
) -> None:
    db.execute("UPDATE checkpoints SET state = ? WHERE size = ?", (state, SECOND))
    assert found_in(kept, 1) == [("tree", SECOND)]
