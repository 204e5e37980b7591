"""What was checked is stored in a thread of its own."""

import shutil
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain import replica
from kudurru.domain.errors import Conflict, Unreachable
from kudurru.domain.ports import Copied, Erasure, LogHead, Upkeep
from kudurru.domain.replica import Page, Target
from kudurru.domain.verify import verify
from kudurru.entrypoints.follow_storing import AHEAD_MAX, Storing
from tests.followers import PATIENCE_S
from tests.logs import NOON_US, adopt, applied, change, memory_log, sign
from tests.replicas import empty_copy, frames, receiver

ROWS = 3_000


@pytest.fixture
def leader() -> MemoryEventLog:
    """With change sets of three rows, so that a page of a thousand is cut before its end."""
    log = memory_log()
    log.append([adopt(log)], NOON_US)
    sets = [change(*(applied(f"host{i}.{j}") for j in range(3))) for i in range(ROWS // 3)]
    log.append(sets, NOON_US)
    sign(log)
    return log


@pytest.fixture
def copy(leader: MemoryEventLog, tmp_path: Path) -> Iterator[SQLiteEventLog]:
    with closing(empty_copy(leader, tmp_path / "copy.db")) as log:
        yield log


def nothing(*_: object) -> None:
    pass


def parts(leader: MemoryEventLog, copy: SQLiteEventLog) -> Iterator[Copied]:
    ours = receiver(copy)
    for frame in frames(leader, int(copy.head().seq)):
        if isinstance(frame, Target):
            ours.aim(frame)
        elif isinstance(frame, Page):
            yield ours.take(frame)


def check_prefix(copy: SQLiteEventLog, leader: MemoryEventLog, size: int) -> None:
    assert list(copy.rows()) == list(leader.rows(0, size))
    found = verify(copy)
    assert found.is_whole, found.damages
    copy.check_storage()  # the triggers and indexes too


def test_what_is_added_is_durable_once_it_is_settled(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    with Storing(copy, nothing) as storing:
        for part in parts(leader, copy):
            storing.add(part)
        storing.settle()
        assert copy.head() == leader.head()
    check_prefix(copy, leader, int(leader.head().seq))


def test_what_is_taken_away_is_so_of_rows_that_came_in_the_same_transaction(
    leader: MemoryEventLog, copy: SQLiteEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "COMMIT_ROWS", 10 * ROWS)  # all pages together
    *before, last = parts(leader, copy)
    assert before
    assert not any(part.is_whole for part in before)
    old, new = 5, last.rows[0].seq
    erase = (Erasure(old, old, "body"), Erasure(new, new, "body"))
    late = msgspec.structs.replace(last, upkeep=Upkeep(erase=erase))
    assert copy.take_over([*before, late]) == leader.head()
    for seq in (old, new):
        (row,) = copy.rows(seq - 1, seq)
        assert (row.seq, row.body, row.salt) == (seq, None, None)


def store(copy: SQLiteEventLog, coming: Iterable[Copied], *, breaks_off: bool = False) -> None:
    with Storing(copy, nothing) as storing:
        for part in coming:
            storing.add(part)
        if breaks_off:
            raise Unreachable("the leader went away")
        storing.settle()


def test_what_is_not_whole_when_it_ends_is_forgotten(
    leader: MemoryEventLog, copy: SQLiteEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "COMMIT_ROWS", 1_500)  # two pages
    with pytest.raises(Unreachable):
        store(copy, islice(parts(leader, copy), 3), breaks_off=True)
    size = int(copy.head().seq)
    assert 1_500 <= size < 2_000
    check_prefix(copy, leader, size)


@pytest.mark.parametrize("breaks_off", [False, True], ids=["who adds", "the end"])
def test_a_failure_of_the_storage_is_raised_by(
    leader: MemoryEventLog, copy: SQLiteEventLog, breaks_off: bool
) -> None:
    every = list(parts(leader, copy))
    with pytest.raises(Conflict, match="begin again"):
        store(copy, [*every, every[-1]], breaks_off=breaks_off)
    check_prefix(copy, leader, int(leader.head().seq))


def test_a_failure_of_the_storage_is_said_at_once_to_who_waits_for_more(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    every, said = list(parts(leader, copy)), threading.Event()

    def wait_for_more() -> None:
        with Storing(copy, said.set) as storing:
            for part in [*every, every[-1]]:
                storing.add(part)
            assert said.wait(PATIENCE_S)
            raise Unreachable("what was waited for was broken off")

    with pytest.raises(Conflict, match="begin again"):
        wait_for_more()


def test_a_power_cut_leaves_what_was_whole(
    leader: MemoryEventLog, copy: SQLiteEventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the pages of a transaction, with more written than SQLite keeps in memory."""
    monkeypatch.setattr(replica, "COMMIT_ROWS", 1_500)
    copy._writer.execute("PRAGMA cache_spill = 10")
    copy._writer.execute("PRAGMA cache_size = 10")

    def watched() -> Iterator[Copied]:
        for i, part in enumerate(parts(leader, copy)):
            folder = tmp_path / f"cut-{i}"
            folder.mkdir()
            for file in tmp_path.glob("copy.db*"):
                shutil.copy(file, folder / file.name)
            yield part

    coming = watched()
    while copy.take_over(coming) is not None:
        pass
    sizes = []
    for folder in sorted(tmp_path.glob("cut-*")):
        with closing(sqlite3.connect(folder / "copy.db")) as db:  # takes the -wal file in
            db.execute("PRAGMA wal_checkpoint")
        with closing(empty_copy(leader, folder / "copy.db")) as found:
            size = int(found.head().seq)
            check_prefix(found, leader, size)
            store(found, parts(leader, found))
            check_prefix(found, leader, int(leader.head().seq))
            sizes.append(size)
    assert sizes[0] == sizes[1] == 0 < sizes[2] == sizes[3] < leader.head().seq


class Slow:
    """A log that takes parts one by one, and notes how many wait meanwhile."""

    def __init__(self) -> None:
        self.added = 0
        self.ahead: list[int] = []
        self.taken: list[Copied] = []

    def head(self) -> LogHead:
        return self.taken[-1].head if self.taken else LogHead(0, 0, b"")  # type: ignore[arg-type]  # a Position

    def take_over(self, coming: Iterable[Copied]) -> LogHead:
        for part in coming:
            self.ahead.append(self.added - len(self.taken))
            self.taken.append(part)
            if part.is_whole:
                break
        return self.taken[-1].head


def test_no_more_waits_than_is_bounded(
    leader: MemoryEventLog, copy: SQLiteEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "PAGE_ROWS", 30)
    slow = Slow()
    with Storing(slow, nothing) as storing:  # type: ignore[arg-type]  # all that is used
        for part in parts(leader, copy):
            storing.add(part)
            slow.added += 1
        storing.settle()
        assert len(slow.taken) == slow.added > 90
    assert max(slow.ahead) <= AHEAD_MAX + 1
    assert [part.head.seq for part in slow.taken] == sorted(part.head.seq for part in slow.taken)
