"""Logs of which long stretches were pruned, sent in parts that a follower takes."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain import replica
from kudurru.domain.errors import Conflict, LogDamaged
from kudurru.domain.ports import LogRow
from kudurru.domain.replica import GAP_MAX, PAGE_BYTES, Frame, Page
from kudurru.domain.tree import HASH_SIZE
from tests.logs import NOON_US, adopt, applied, change, key, memory_log, sign
from tests.replicas import bring_up, check_equal, empty_copy, frames, prune, receiver

PRUNED = 1024


def pruned_log(changed_every: int) -> MemoryEventLog:
    """Most of it is changes of one object; those of others in between are kept."""
    log = memory_log()
    log.append([adopt(log)], NOON_US)
    for i in range(PRUNED):
        name = "busy" if i % changed_every else f"quiet{i}"
        log.append([change(applied(name, log.stream_version(key(name)) + 1))], NOON_US)
        if i % 100 == 99:
            sign(log)
    sign(log)
    prune(log, PRUNED)
    sign(log)
    return log


def gone_in(page: Page) -> int:
    return len(page.leaves) // HASH_SIZE


@pytest.mark.parametrize("changed_every", [3, 50, 2 * PRUNED])
@pytest.mark.parametrize("gap_max", [1, 7, 60, PRUNED])
def test_a_log_of_which_much_was_pruned_is_copied_in_bounded_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed_every: int, gap_max: int
) -> None:
    monkeypatch.setattr(replica, "GAP_MAX", gap_max)
    leader = pruned_log(changed_every)
    sent = [frame for frame in frames(leader, 0) if isinstance(frame, Page)]
    assert max(map(gone_in, sent)) <= gap_max
    assert sum(map(gone_in, sent)) > PRUNED // 2
    with closing(empty_copy(leader, tmp_path / "log.db")) as copy:
        bring_up(leader, copy)
        check_equal(copy, leader)


def test_leaves_of_pruned_rows_are_no_more_than_payloads_may_be() -> None:
    assert GAP_MAX * HASH_SIZE == PAGE_BYTES


def test_a_part_without_rows_that_ends_where_the_log_does_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "GAP_MAX", 60)
    leader = pruned_log(2 * PRUNED)
    with closing(empty_copy(leader, tmp_path / "log.db")) as copy:
        ours = receiver(copy)
        target, *pages = frames(leader, 0)
        ours.aim(target)
        parts = [ours.take(page) for page in pages if isinstance(page, Page)]
        bare = next(part for part in parts if not part.rows)
        with pytest.raises(Conflict, match="begin again"):
            copy.take_over(iter([*parts[: parts.index(bare) + 1], bare]))
        assert copy.head().seq == 0


def made_up(row: LogRow, seq: int) -> LogRow:
    return msgspec.structs.replace(row, seq=seq, txn=seq, obj=key("nobody"), ver=1, body=b"{}")


@pytest.mark.parametrize("place", ["after", "far", "before", "twice", "out of order"])
def test_rows_that_are_no_part_of_a_page_with_a_gap_are_refused(tmp_path: Path, place: str) -> None:
    leader = pruned_log(3)
    size = int(leader.head().seq)

    def change(frame: Frame) -> Frame:
        if not isinstance(frame, Page) or not frame.leaves:
            return frame
        rows = frame.rows
        given = {
            "after": [*rows, made_up(rows[0], size + 1)],
            "far": [*rows, made_up(rows[0], 1 << 40)],
            "before": [made_up(rows[0], 0), *rows],
            "twice": [made_up(rows[0], rows[0].seq), *rows],
            "out of order": rows[::-1],
        }
        return msgspec.structs.replace(frame, rows=given[place])

    with closing(empty_copy(leader, tmp_path / "log.db")) as copy:
        with pytest.raises(LogDamaged, match="nothing of it was kept here"):
            bring_up(leader, copy, change=change)
        assert list(copy.rows()) == []
