"""What every event log does when payloads are erased, rows pruned, or an epoch begins."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kudurru.domain.chain import Redaction, origin_of
from kudurru.domain.codec import canonical
from kudurru.domain.epochs import EpochBody, epoch_began, first_origin
from kudurru.domain.errors import Conflict
from kudurru.domain.events import (
    EPOCH_KEY,
    LOG_EPOCH,
    LOG_PRUNED,
    PAYLOAD_REDACTED,
    PRUNING_KEY,
    REDACTION_KEY,
    ChangeSet,
    Event,
)
from kudurru.domain.object_store import resource_version
from kudurru.domain.ports import Anchor, Erasure, Upkeep, VerifiableLog
from kudurru.domain.pruning import Keeper, PrunedBody, digest_of
from kudurru.domain.verify import Verified, verify
from kudurru.entrypoints.watches import resumable
from tests.contracts.test_event_log import ADAPTERS, new_log
from tests.logs import NOON_US, adopt, applied, change, key, sign, trust

SECOND = 1_000_000


def log_of_600(log: VerifiableLog, early: int = 600) -> None:
    """600 events of three streams in six appends, then the key and a checkpoint. `early`: after
    that many events there is a checkpoint too, and the events after it come one later."""
    for last in range(100, 601, 100):
        events = [applied("abc"[n % 3], n // 3 + 1) for n in range(last - 100, last)]
        log.append([change(event) for event in events], NOON_US + (last - 1) * SECOND)
        if last - 100 < early <= last < 600:
            sign(log, 1, adopt(log))
    sign(log, 1, *([] if early < 600 else [adopt(log)]))


@pytest.fixture(params=ADAPTERS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VerifiableLog]:
    log = new_log(request.param, tmp_path)
    log_of_600(log)
    yield log
    log.close()


def fact(log: VerifiableLog, type_: str, name: str, body: object) -> ChangeSet:
    stream = {"redaction": REDACTION_KEY, "pruning": PRUNING_KEY, "epoch": EPOCH_KEY}[name]
    version = log.stream_version(stream) + 1
    return change(Event(type_, stream, version, "/", "kudurru-controller", canonical(body)))


def erase(log: VerifiableLog, *erasures: Erasure) -> None:
    for one in erasures:
        body = Redaction(one.first, one.part, one.last)
        said = fact(log, PAYLOAD_REDACTED, "redaction", body)
        sign(log, 1, said, upkeep=Upkeep(erase=(one,)))


def anchor_at(log: VerifiableLog, upto: int) -> Anchor:
    keeper = Keeper()
    for event in log.read(0, upto):
        keeper.feed(event)
    return Anchor(next(log.checkpoints(upto)).size, keeper.kept())


def prune(log: VerifiableLog, upto: int) -> Anchor:
    anchor = anchor_at(log, upto)
    body = PrunedBody(anchor.upto, anchor.size, digest_of(anchor), upto)
    pruned = fact(log, LOG_PRUNED, "pruning", body)
    sign(log, 1, pruned, upkeep=Upkeep(prune=anchor))
    return anchor


def verified(log: VerifiableLog) -> Verified:
    return verify(log, trust=trust(log, 1))


def test_a_payload_is_erased_with_the_event_that_says_so(log: VerifiableLog) -> None:
    erase(log, Erasure(5, 5, "body"), Erasure(7, 9, "who"))
    bodies = [event.seq for event in log.read(0, 20) if event.body is None]
    authors = [event.seq for event in log.read(0, 20) if event.who is None]
    assert (bodies, authors) == ([5], [7, 8, 9])
    assert verified(log).is_whole
    row = next(iter(log.rows(4, 5)))
    assert (row.salt, row.body) == (None, None)


def test_rows_go_and_what_is_kept_and_what_came_after_verifies(log: VerifiableLog) -> None:
    before, after = list(log.read(512, 600)), log.head()
    anchor = prune(log, 512)
    assert log.anchor() == anchor
    assert log.oldest() == anchor.upto == 512
    # The newest of each stream, and the row that the next one follows.
    assert [event.seq for event in log.read(0, 512)] == [510, 511, 512]
    assert list(log.read(512, 600)) == before
    assert log.get(after.seq) is not None
    assert log.get(300) is None
    assert [event.seq for event in log.read(key=key("a"))][:2] == [511, 514]
    assert log.stream_version(key("a")) == 200
    found = verified(log)
    assert found.is_whole, found.damages
    assert found.rows == log.head().seq - 509
    assert verify(log, tail=10, trust=trust(log, 1)).is_whole


def test_what_was_decided_at_another_head_takes_nothing_away(log: VerifiableLog) -> None:
    head = log.head()
    said = fact(log, PAYLOAD_REDACTED, "redaction", Redaction(5))
    with pytest.raises(Conflict, match="the log went on"):
        log.append_signed(
            [said], NOON_US, None, Upkeep(erase=(Erasure(5, 5, "body"),)), head_seq=head.seq - 1
        )
    assert log.head() == head
    assert all(event.body is not None for event in log.read(4, 5))


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("before", [0, 100], ids=["from the first row", "after others"])
def test_a_change_set_may_lie_on_both_sides_of_where_rows_went(
    adapter: str, before: int, tmp_path: Path
) -> None:
    log = new_log(adapter, tmp_path)
    log.append([change(applied("early", n + 1)) for n in range(before)], NOON_US)
    log.append([change(*(applied(f"n{n}") for n in range(300)))], NOON_US)
    sign(log, 1, adopt(log))
    prune(log, 256)
    assert len(list(log.read(0, 256))) == 256 - max(0, before - 1)
    found = verified(log)
    assert found.is_whole, found.damages
    assert verify(log, after=256, trust=trust(log, 1)).is_whole
    log.close()


def test_what_begins_after_a_pruning_begins_at_its_end(log: VerifiableLog) -> None:
    prune(log, 512)
    assert {event.seq for event in log.births("DNSRecordSet", 600)} == {510, 511, 512}
    assert log.position_at(NOON_US + 598 * SECOND) == 0  # of the append before
    assert log.position_at(NOON_US + 599 * SECOND) == log.head().seq
    log.append([change(applied("a", 201))], NOON_US + 9_999 * SECOND)
    assert log.position_at(NOON_US + 9_999 * SECOND) == log.head().seq


def test_a_watch_does_not_go_on_from_before_a_pruning(log: VerifiableLog) -> None:
    prune(log, 512)
    newest = log.head().seq
    for position, found in ((511, None), (512, 512), (newest, newest)):
        assert resumable(log, resource_version(1, position), newest) == found


def test_a_log_is_pruned_again(log: VerifiableLog) -> None:
    prune(log, 256)
    erase(log, Erasure(510, 510, "body"), Erasure(300, 300, "body"))
    prune(log, 512)
    assert log.oldest() == 512
    # Of the redactions the one that excuses what is still there.
    assert [event.seq for event in log.read(0, 512)] == [510, 511, 512]
    assert verified(log).is_whole


def test_an_append_that_is_refused_takes_nothing_away(log: VerifiableLog) -> None:
    anchor = anchor_at(log, 256)
    stale = change(applied("a", 1))
    with pytest.raises(Exception, match="read it again"):
        log.append_signed([stale], NOON_US, None, Upkeep(prune=anchor))
    assert log.oldest() == 0
    assert log.get(1) is not None


def test_an_epoch_begins_with_an_event_and_the_rows_before_keep_their_origin(
    log: VerifiableLog,
) -> None:
    before = origin_of(log.log_id, 1)
    after = origin_of(log.log_id, 2)
    note = log.newest_checkpoint()
    assert note is not None
    began = fact(log, LOG_EPOCH, "epoch", EpochBody(before, after, note.note))
    log.append_signed([began], NOON_US, None, Upkeep(epoch=2))
    assert log.epoch == 2
    assert first_origin(log) == before
    assert epoch_began(log) == log.head().seq
    assert verify(log, trust=trust(log)).is_whole
    sign(log, 2, adopt(log, 2))
    found = verify(log, trust=trust(log, 2))
    assert found.is_whole, found.damages
    assert (found.signed.size, found.signed.is_trusted) == (log.head().seq, True)
    assert [one.kind for one in verified(log).damages] == ["signature"]
