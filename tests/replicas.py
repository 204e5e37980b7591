"""Copies of logs: what a leader would send, read by what a follower would keep it with."""

from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from pathlib import Path

from kudurru.adapters.signing import check_signature
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.checkpoint import KeyChain
from kudurru.domain.epochs import epoch_in, first_origin
from kudurru.domain.events import EPOCH_KEY, KEY_ADOPTED, SIGNING_KEY
from kudurru.domain.ports import Copied, VerifiableLog
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
from tests.logs import SeededEntropy, StillClock

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
