"""A log held against a checkpoint of it that lies outside of it.

What the file of a log cannot show is that it was set back, or that another log is in its place:
each is whole in itself. A checkpoint that was written down elsewhere shows it. Such a log is read
and served to its end, as there is nothing better, and not written: positions that were given
already would be given a second time.
"""

from collections.abc import Iterable

import msgspec

from kudurru.domain.chain import origin_of
from kudurru.domain.checkpoint import Checkpoint, parse_checkpoint
from kudurru.domain.errors import Invalid, LogDamaged
from kudurru.domain.ports import VerifiableLog
from kudurru.domain.signed_note import CheckSignature, VerifierKey
from kudurru.domain.tree import Edge


class Published(msgspec.Struct, frozen=True):
    """A checkpoint, and where it was found."""

    checkpoint: Checkpoint
    place: str


def read_published(text: str, place: str) -> Published | None:
    """None for what is no checkpoint."""
    try:
        return Published(parse_checkpoint(text), place)
    except Invalid:
        return None


def difference(
    log: VerifiableLog,
    found: Published,
    keys: Iterable[VerifierKey],
    check: CheckSignature,
) -> LogDamaged | None:
    """What a checkpoint shows of a log, None where it is one of this log or says nothing about it:
    it is of an epoch before, or signed by none of the log's `keys`. Of another log or a later epoch
    it is believed as it is: nobody here has the keys of that. Raises: LogDamaged when the tree of
    the log has holes."""
    checkpoint, place = found.checkpoint, found.place
    newest = int(log.head().seq)
    epoch = _epoch_in(checkpoint.origin, log.log_id)
    if epoch is None:
        return _damage(
            "signature",
            newest,
            f"another log is here than before: this one is {origin_of(log.log_id, log.epoch)}, and "
            f"{place} is a checkpoint of {checkpoint.origin}",
            place,
        )
    if epoch < log.epoch:
        return None
    if epoch == log.epoch and not any(checkpoint.note.signed_by(key, check) for key in keys):
        return None
    if epoch > log.epoch or checkpoint.size > newest:
        return _damage(
            "truncation",
            newest,
            f"the log was set back: it ends at {newest} of {origin_of(log.log_id, log.epoch)}, and "
            f"{place} is a checkpoint of {checkpoint.size} events of {checkpoint.origin}",
            place,
        )
    if Edge.read(checkpoint.size, log.hashes).root() != checkpoint.root:
        return _damage(
            "tree",
            newest,
            f"the log has another history: {place} is a checkpoint of its first {checkpoint.size} "
            "events, and not of those that are here",
            place,
        )
    return None


def _epoch_in(origin: str, log_id: str) -> int | None:
    """The epoch of an origin of this log; None when it is another log's."""
    base = origin_of(log_id, 0).removesuffix("0")
    number = origin.removeprefix(base)
    is_ours = origin.startswith(base) and number.isascii() and number.isdigit()
    return int(number) if is_ours and len(number) < 10 else None


def _damage(kind: str, newest: int, what: str, place: str) -> LogDamaged:
    """Nothing that is here is wrong by itself, so the first bad position is the next one."""
    advice = (
        "put the log back that belongs here; without it go on from this one with `kudurru log "
        f"export` and `kudurru log import` into a new directory. Remove {place} only if what is "
        "missing was never seen by anybody"
    )
    return LogDamaged(kind, newest + 1, f"{what} - {advice}")
