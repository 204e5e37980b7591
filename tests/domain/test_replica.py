"""What a follower keeps of a leader's log, and what it refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain import replica
from kudurru.domain.chain import genesis, head_after, leaf_of
from kudurru.domain.epochs import EpochBody
from kudurru.domain.errors import Conflict, Diverged, LogDamaged, Unreachable
from kudurru.domain.events import (
    LOG_EPOCH,
    PAYLOAD_REDACTED,
)
from kudurru.domain.objects import Key
from kudurru.domain.ports import Erasure, Upkeep, VerifiableLog
from kudurru.domain.replica import Frame, Page, Target
from kudurru.domain.verify import verify
from kudurru.domain.verify_tree import Trust
from tests.logs import (
    NOON_US,
    SeededEntropy,
    StillClock,
    adopt,
    applied,
    change,
    key,
    log_key,
    memory_log,
    recorded_history,
    sign,
    trust,
)
from tests.replicas import bring_up, check_equal, empty_copy, fact, frames, prune, receiver


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short history has many."""
    monkeypatch.setattr(replica, "PAGE_ROWS", 7)
    monkeypatch.setattr(replica, "COMMIT_ROWS", 1)


@pytest.fixture
def leader() -> MemoryEventLog:
    log = memory_log()
    log.append([adopt(log)], NOON_US)
    return log


@pytest.fixture
def copy(leader: MemoryEventLog, tmp_path: Path) -> Iterator[SQLiteEventLog]:
    log = empty_copy(leader, tmp_path / "log.db")
    yield log
    log.close()


def grow(log: VerifiableLog, count: int, name: str = "host") -> None:
    """So many events of fifteen objects, of which every tenth is signed as they come."""
    for i in range(count):
        one = f"{name}{i % 15}"
        version = log.stream_version(key(one)) + 1
        log.append([change(applied(one, version))], NOON_US)
        if i % 10 == 9:
            sign(log)
    sign(log)


def test_a_copy_has_the_rows_checkpoints_and_tree_of_its_leader(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    recorded_history(leader)
    grow(leader, 600)
    bring_up(leader, copy)
    check_equal(copy, leader)


def test_a_copy_goes_on_from_wherever_it_was_cut_off(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    for i in range(12):
        grow(leader, 30)
        bring_up(leader, copy, until=int(copy.head().seq) + 3 * i)
    bring_up(leader, copy)
    check_equal(copy, leader)


def test_a_page_of_many_more_rows_than_a_leader_sends_is_refused_before_any_is_looked_at(
    leader: MemoryEventLog, copy: SQLiteEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(leader, 9)

    class Unread(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("a row was looked at")

        __getitem__: Any = __iter__

    ours = receiver(copy)
    target, page, *_ = frames(leader, 0)
    assert isinstance(target, Target)
    assert isinstance(page, Page)
    ours.aim(target)
    monkeypatch.setattr(replica, "PAGE_ROWS_MAX", len(page.rows) - 1)
    with pytest.raises(LogDamaged, match="rows at once"):
        ours.take(msgspec.structs.replace(page, rows=Unread(page.rows)))
    monkeypatch.setattr(replica, "PAGE_ROWS_MAX", len(page.rows))
    assert ours.take(page).rows == page.rows


def test_a_change_set_is_stored_whole_however_many_pages_it_takes(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 3)
    large = change(*(applied(f"large{i}") for i in range(50)))
    leader.append([large], NOON_US)
    sign(leader)
    ends = int(leader.head().seq) - 1
    bring_up(leader, copy, until=ends - 49)
    assert copy.head().seq >= ends
    bring_up(leader, copy)
    check_equal(copy, leader)


def test_a_change_set_that_is_cut_off_leaves_nothing_behind(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    leader.append([change(*(applied(f"large{i}") for i in range(50)))], NOON_US)
    sign(leader)
    sent = 0

    def cut(frame: Frame) -> Frame:
        nonlocal sent
        sent += 1
        if sent == 4:
            raise Unreachable("the leader is gone")
        return frame

    with pytest.raises(Unreachable):
        bring_up(leader, copy, change=cut)
    assert copy.head().seq <= 1
    bring_up(leader, copy)
    check_equal(copy, leader)


def test_rows_that_no_checkpoint_covers_are_not_sent(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 5)
    signed = leader.head().seq
    leader.append([change(applied("unsigned"))], NOON_US)
    bring_up(leader, copy)
    assert copy.head().seq == signed


# --- damage -------------------------------------------------------------------------------------

BAD = 25


def with_row(**changed: Any) -> Any:
    """Changes row BAD on its way."""

    def changing(frame: Frame) -> Frame:
        if not isinstance(frame, Page):
            return frame
        rows = [msgspec.structs.replace(r, **changed) if r.seq == BAD else r for r in frame.rows]
        return msgspec.structs.replace(frame, rows=rows)

    return changing


@pytest.mark.parametrize(
    "changed",
    [
        {"body": b'{"name":"evil"}'},
        {"who": b"{}"},
        {"salt": bytes(16)},
        {"entry": b"{}"},
        {"leaf": bytes(32)},
        {"head": bytes(32)},
        {"ts": 1},
        {"ver": 7},
        {"obj": "DNSRecordSet/default/other"},
        {"obj": None},
        {"scope": "other/"},
        {"type": "obj.status.v1"},
        {"txn": 1},
    ],
    ids=str,
)
def test_a_row_with_one_thing_changed_is_refused_with_its_position(
    leader: MemoryEventLog, copy: SQLiteEventLog, changed: dict[str, Any]
) -> None:
    grow(leader, 40)
    with pytest.raises(LogDamaged) as refused:
        bring_up(leader, copy, change=with_row(**changed))
    assert refused.value.position == BAD
    assert copy.head().seq < BAD
    bring_up(leader, copy)
    check_equal(copy, leader)


@pytest.mark.parametrize("of", ["APIToken//admin", "DNSRecordSet/default/host1"])
def test_a_secret_of_what_no_row_of_the_page_is_of_is_not_taken(
    leader: MemoryEventLog, copy: SQLiteEventLog, of: str
) -> None:
    """Secrets are under no signature: they could be those of any key, and take away the ones that
    count."""
    grow(leader, 10)

    def with_secret(frame: Frame) -> Frame:
        if not isinstance(frame, Page):
            return frame
        return msgspec.structs.replace(frame, secrets=[(Key(of), b"forged")])

    with pytest.raises(LogDamaged, match="a secret comes"):
        bring_up(leader, copy, change=with_secret)
    assert copy.secret(Key(of)) is None
    bring_up(leader, copy)
    check_equal(copy, leader)


def test_a_missing_row_is_refused_with_its_position(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 40)

    def without(frame: Frame) -> Frame:
        if not isinstance(frame, Page):
            return frame
        rows = [row for row in frame.rows if row.seq != BAD]
        return msgspec.structs.replace(frame, rows=rows)

    with pytest.raises(LogDamaged, match=f"position {BAD}"):
        bring_up(leader, copy, change=without)
    assert copy.head().seq < BAD


def test_a_history_that_was_computed_anew_is_refused_since_nobody_signed_it(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    """Whoever has the leader's file can make chain and commitments fit, and has no key."""
    grow(leader, 40)
    forged = MemoryEventLog(entropy=SeededEntropy(), clock=StillClock())
    heads = [genesis(f"kudurru/{leader.log_id}/1")]

    def rewritten(frame: Frame) -> Frame:
        if not isinstance(frame, Page):
            return frame
        rows = []
        for row in frame.rows:
            entry = row.entry
            if row.seq == BAD:
                entry = entry.replace(b'"manager":"kudurru"', b'"manager":"mallory"')
                assert entry != row.entry
            leaf = leaf_of(entry)
            heads.append(head_after(heads[-1], leaf))
            changed = {"entry": entry, "leaf": leaf, "head": heads[-1]}
            rows.append(msgspec.structs.replace(row, **changed))
        return msgspec.structs.replace(frame, rows=rows)

    with pytest.raises(LogDamaged) as refused:
        bring_up(leader, copy, change=rewritten)
    assert forged.head().seq == 0
    assert refused.value.kind == "tree"
    assert copy.head().seq < BAD
    assert copy.head().seq < refused.value.position <= BAD


def test_a_checkpoint_that_is_left_out_or_changed_is_refused(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 40)

    def left_out(frame: Frame) -> Frame:
        if isinstance(frame, Page):
            return msgspec.structs.replace(frame, checkpoints=[])
        return frame

    def of_another(frame: Frame) -> Frame:
        if isinstance(frame, Page) and frame.checkpoints:
            newest = leader.newest_checkpoint()
            assert newest is not None
            first = msgspec.structs.replace(frame.checkpoints[0], note=newest.note)
            return msgspec.structs.replace(frame, checkpoints=[first, *frame.checkpoints[1:]])
        return frame

    for wrong in (left_out, of_another):
        with pytest.raises(LogDamaged, match="checkpoint of 12 events"):
            bring_up(leader, copy, change=wrong)
    bring_up(leader, copy)
    check_equal(copy, leader)


def test_a_checkpoint_that_the_key_did_not_sign_is_refused(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 40)

    def unsigned(frame: Frame) -> Frame:
        if isinstance(frame, Target):
            return msgspec.structs.replace(frame, note=sign(leader, 2).note)
        return frame

    with pytest.raises(LogDamaged, match="is not signed by"):
        bring_up(leader, copy, change=unsigned)
    assert copy.head().seq == 0


# --- other logs ---------------------------------------------------------------------------------


def another(leader: MemoryEventLog, copied: int) -> MemoryEventLog:
    """A log of the same name and key that has the first rows only, as an old backup has."""
    log = memory_log()
    assert log.log_id == leader.log_id
    log._rows = leader._rows[:copied]
    log._newest = log._rows[-1]
    log._edge = log._edge.extended([row.leaf for row in log._rows if row])[0]
    log._checkpoints = [one for one in leader._checkpoints if one.size <= copied]
    for row in log._rows:
        assert row is not None
        log._streams.setdefault(row.event.key, []).append(row.event.seq)
        log._scopes.setdefault(row.event.scope, []).append(row.event.seq)
    return log


def test_a_leader_that_was_set_back_is_refused(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 40)
    bring_up(leader, copy)
    had = int(copy.head().seq)
    old = another(leader, 23)
    with pytest.raises(Diverged, match="set back to an older state"):
        bring_up(old, copy)
    assert copy.head().seq == had


def test_a_leader_that_was_set_back_and_went_on_is_a_fork(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 40)
    bring_up(leader, copy)
    had = int(copy.head().seq)
    fork = another(leader, 23)
    grow(fork, 60, "fork")
    with pytest.raises(Diverged, match="is a fork"):
        bring_up(fork, copy)
    assert copy.head().seq == had


def test_the_log_of_a_stranger_is_refused(leader: MemoryEventLog, copy: SQLiteEventLog) -> None:
    stranger = MemoryEventLog(entropy=SeededEntropy(9), clock=StillClock())
    stranger.append([adopt(stranger)], NOON_US)
    grow(stranger, 40)
    with pytest.raises((Diverged, LogDamaged), match="kudurru/"):
        bring_up(stranger, copy)
    grow(leader, 10)
    bring_up(leader, copy)
    with pytest.raises((Diverged, LogDamaged), match="kudurru/"):
        bring_up(stranger, copy)
    check_equal(copy, leader)


def test_a_key_that_is_not_the_known_one_is_refused(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 10)
    with pytest.raises(Diverged, match="not the key that is known here"):
        bring_up(leader, copy, log_key(leader, 2).verifier)
    assert copy.head().seq == 0
    bring_up(leader, copy, log_key(leader, 1).verifier)
    check_equal(copy, leader)


def test_a_key_that_was_adopted_under_the_known_one_is_followed(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 10)
    known = log_key(leader, 1).verifier
    bring_up(leader, copy, known)
    sign(leader, 2, adopt(leader, 2, before=1))
    bring_up(leader, copy, known)
    check_equal(copy, leader)


# --- what was taken away ------------------------------------------------------------------------


def redact(log: VerifiableLog, seq: int) -> None:
    said = fact(log, PAYLOAD_REDACTED, {"seq": seq})
    sign(log, 1, said, upkeep=Upkeep(erase=(Erasure(seq, seq, "body"),)))


def test_what_is_redacted_later_is_erased_in_the_copy(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 40)
    bring_up(leader, copy)
    redact(leader, BAD)
    bring_up(leader, copy)
    row = copy.get(BAD)
    assert row is not None
    assert row.body is None
    check_equal(copy, leader)


def test_what_was_redacted_before_is_copied_without_its_payload(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 40)
    redact(leader, BAD)
    bring_up(leader, copy)
    check_equal(copy, leader)


def test_a_payload_that_is_missing_without_a_word_is_refused(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 40)
    ours, erased = receiver(copy), with_row(body=None, salt=None)

    def follow() -> None:
        for frame in map(erased, frames(leader, int(copy.head().seq))):
            if isinstance(frame, Target):
                ours.aim(frame)
            else:
                copy.take_over(iter([ours.take(frame)]))

    follow()  # the first time it may have been redacted while it was read
    grow(leader, 10)
    with pytest.raises(LogDamaged, match="no event says who did") as refused:
        follow()
    assert refused.value.position == BAD


def test_rows_that_are_pruned_later_go_from_the_copy_too(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 600)
    bring_up(leader, copy)
    prune(leader, 256)
    grow(leader, 10)
    bring_up(leader, copy)
    assert copy.oldest() == 256
    check_equal(copy, leader)


@pytest.mark.parametrize("had", [0, 100])
def test_a_pruned_log_is_copied_as_it_is(
    leader: MemoryEventLog, copy: SQLiteEventLog, had: int
) -> None:
    grow(leader, 600)
    if had:
        bring_up(leader, copy, until=had)
    prune(leader, 512)
    grow(leader, 10)
    if had:
        # Rows of the copy that would go are those that the leader has no more.
        bring_up(leader, copy)
        check_equal(copy, leader)
        return
    bring_up(leader, copy)
    check_equal(copy, leader)


def test_what_a_leader_says_of_the_state_at_a_row_that_is_gone_is_not_kept(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    """No signature is over it."""
    grow(leader, 600)
    prune(leader, 512)
    grow(leader, 10)
    forged = b"forged".ljust(32)

    def with_state(frame: Frame) -> Frame:
        if not isinstance(frame, Page):
            return frame
        said = [msgspec.structs.replace(one, state=forged) for one in frame.checkpoints]
        return msgspec.structs.replace(frame, checkpoints=said)

    bring_up(leader, copy, change=with_state)
    states = {one.size: one.state for one in copy.checkpoints()}
    assert forged not in states.values()
    assert {size for size, state in states.items() if state is None} == {
        size for size in states if size <= 512 and not list(copy.rows(size - 1, size))
    }
    check_equal(copy, leader)


class Counted(bytes):
    """Knows how many octets were copied out of it."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        Counted.copied += len(found)
        return Counted(found)


def test_leaves_of_pruned_rows_take_time_by_their_number_only(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    """Each copied all that come after it."""
    grow(leader, 600)
    prune(leader, 512)
    ours, given = receiver(copy), 0
    for frame in frames(leader, 0):
        if isinstance(frame, Target):
            ours.aim(frame)
        elif isinstance(frame, Page):
            given += len(frame.leaves)
            ours.take(msgspec.structs.replace(frame, leaves=Counted(frame.leaves)))
    assert given > 450 * 32
    assert Counted.copied == given


def test_rows_that_were_not_pruned_are_missed(leader: MemoryEventLog, copy: SQLiteEventLog) -> None:
    grow(leader, 600)
    prune(leader, 512)
    kept = next(row.seq for row in leader.rows(200))

    def one_more(frame: Frame) -> Frame:
        if not isinstance(frame, Page):
            return frame
        gone = next((row for row in frame.rows if row.seq == kept), None)
        rows = [row for row in frame.rows if row is not gone]
        leaves = frame.leaves + (gone.leaf if gone else b"")
        return msgspec.structs.replace(frame, rows=rows, leaves=leaves)

    with pytest.raises(LogDamaged, match=f"position {kept}: the row is missing"):
        bring_up(leader, copy, change=one_more)
    assert copy.head().seq == 0


def test_an_epoch_is_followed_when_its_key_is_known(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 20)
    known = log_key(leader, 1).verifier
    bring_up(leader, copy, known)
    newest = leader.newest_checkpoint()
    assert newest is not None
    origin = f"kudurru/{leader.log_id}"
    body = EpochBody(f"{origin}/1", f"{origin}/2", newest.note)
    leader.append_signed([fact(leader, LOG_EPOCH, body)], NOON_US, None, Upkeep(epoch=2))
    sign(leader, 3, adopt(leader, 3))
    with pytest.raises(Diverged, match="not the key that is known here"):
        bring_up(leader, copy, known)
    bring_up(leader, copy, known, log_key(leader, 3).verifier)
    assert copy.epoch == 2
    assert list(copy.rows()) == list(leader.rows())
    found = verify(copy, trust=Trust(trust(copy).check, (log_key(leader, 3).verifier,)))
    assert found.is_whole, found.damages


def test_pages_that_do_not_go_on_where_the_log_is_are_refused(
    leader: MemoryEventLog, copy: SQLiteEventLog
) -> None:
    grow(leader, 20)
    ours, both = receiver(copy), list(frames(leader, 0))
    assert isinstance(both[0], Target)
    assert isinstance(both[1], Page)
    ours.aim(both[0])
    part = ours.take(both[1])
    copy.take_over(iter([part]))
    with pytest.raises(Conflict, match="begin again"):
        copy.take_over(iter([part]))
