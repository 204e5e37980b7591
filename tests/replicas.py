"""Copies of logs: what a leader would send, read by what a follower would keep it with."""

from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from pathlib import Path

from kudurru.adapters.signing import check_signature
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.checkpoint import KeyChain
from kudurru.domain.codec import canonical
from kudurru.domain.epochs import epoch_in, first_origin
from kudurru.domain.events import (
    EPOCH_KEY,
    KEY_ADOPTED,
    LOG_EPOCH,
    LOG_PRUNED,
    PAYLOAD_REDACTED,
    PRUNING_KEY,
    REDACTION_KEY,
    SIGNING_KEY,
    ChangeSet,
    Event,
)
from kudurru.domain.ports import Anchor, Copied, Upkeep, VerifiableLog
from kudurru.domain.pruning import Keeper, PrunedBody, digest_of
from kudurru.domain.replica import (
    Frame,
    Page,
    Receiver,
    Target,
    decode_frame,
    encode_frame,
    pages,
    target_of,
)
from kudurru.domain.signed_note import VerifierKey
from kudurru.domain.tree import Edge
from kudurru.domain.verify import verify
from tests.logs import SeededEntropy, StillClock, change, sign, trust

Change = Callable[[Frame], Frame]


def as_sent(frame: Frame) -> Frame:
    return decode_frame(encode_frame(frame))


def frames(leader: VerifiableLog, after: int) -> Iterator[Frame]:
    """What brings a follower from a position to the newest checkpoint."""
    newest = leader.newest_checkpoint()
    assert newest is not None
    yield target_of(leader, after, newest)
    yield from pages(leader, after, newest.size)


def empty_copy(leader: VerifiableLog, path: Path) -> SQLiteEventLog:
    origin = first_origin(leader)
    return SQLiteEventLog.open(
        path, entropy=SeededEntropy(), clock=StillClock(), create=True,
        copy_of=(leader.log_id, epoch_in(origin)),
    )  # fmt: skip


def receiver(copy: SQLiteEventLog, *trusted: VerifierKey) -> Receiver:
    head, origin = copy.head(), first_origin(copy)
    keys = KeyChain(origin, check_signature, trusted)
    read = partial(copy.read, 0)
    for event in merge(read(key=SIGNING_KEY), read(key=EPOCH_KEY), key=lambda e: e.seq):
        if event.type == KEY_ADOPTED:
            assert keys.adopt(event.seq, event.body) is None
        else:
            keys.begin_epoch(event.seq, "")
    return Receiver(origin, head, Edge.read(int(head.seq), copy.hashes), keys)


def bring_up(
    leader: VerifiableLog,
    copy: SQLiteEventLog,
    *trusted: VerifierKey,
    change: Change = lambda frame: frame,
    until: int | None = None,
) -> None:
    """Copy what is new, each frame changed on its way, at most up to the first page that ends at
    or after `until`."""
    ours = receiver(copy, *trusted)
    coming = map(as_sent, map(change, frames(leader, int(copy.head().seq))))
    target = next(coming)
    assert isinstance(target, Target)
    ours.aim(target)

    def taken() -> Iterator[Copied]:
        for page in coming:
            assert isinstance(page, Page)
            yield ours.take(page)

    parts = taken()
    while copy.take_over(parts) is not None:
        if until is not None and copy.head().seq >= until:
            return


def check_equal(copy: SQLiteEventLog, leader: VerifiableLog) -> None:
    assert list(copy.rows()) == list(leader.rows())
    assert [one.note for one in copy.checkpoints()] == [one.note for one in leader.checkpoints()]
    assert (copy.log_id, copy.epoch) == (leader.log_id, leader.epoch)
    verified = verify(copy, trust=trust(copy, 1))
    assert verified.is_whole, verified.damages
    assert verified.signed.size == copy.head().seq
    copy.check_storage()


def fact(log: VerifiableLog, type_: str, body: object) -> ChangeSet:
    stream = {
        PAYLOAD_REDACTED: REDACTION_KEY, LOG_PRUNED: PRUNING_KEY, LOG_EPOCH: EPOCH_KEY,
    }[type_]  # fmt: skip
    version = log.stream_version(stream) + 1
    return change(Event(type_, stream, version, "/", "kudurru-controller", canonical(body)))


def prune(log: VerifiableLog, upto: int) -> None:
    keeper = Keeper()
    for event in log.read(0, upto):
        keeper.feed(event)
    kept = keeper.kept()
    anchor = Anchor(next(log.checkpoints(upto)).size, kept)
    gone = upto - int.from_bytes(kept).bit_count()
    body = PrunedBody(upto, anchor.size, digest_of(anchor), gone)
    sign(log, 1, fact(log, LOG_PRUNED, body), upkeep=Upkeep(prune=anchor))
