"""Which log a node has, and which of two that have a common beginning goes on.

Every promotion and every restore from a backup begins an epoch. Two nodes that both write were
promoted from one log, or one of them from the other: their rows are the same up to a `log.epoch.v1`
that only one of them has, or that each has its own. That event decides, on both alike: the one who
was left behind may not write, nor may who was promoted later.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from kudurru.domain.chain import origin_of
from kudurru.domain.epochs import epochs, first_origin
from kudurru.domain.notation import time_text
from kudurru.domain.ports import VerifiableLog


class Began(msgspec.Struct, frozen=True, kw_only=True):
    """Where an epoch began."""

    position: int
    origin: str  # of the chain from there on
    at: int  # microseconds UTC
    head: str  # of the chain at that row, hex: no two promotions have the same


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A position of a log, and the head of the chain there in hex: equal heads, equal rows."""

    position: int
    head: str


class LogAbout(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a node says of its log."""

    node: str  # name of the node
    instances: list[str]
    """Names of the process, then of the one that it follows, and so on: nobody follows itself."""
    state: Literal["leads", "follows", "refuses"]
    why: str = ""  # it does not write, a sentence
    log_id: str
    first_origin: str
    origin: str
    newest: Place
    signed: int  # events under the newest checkpoint
    epochs: list[Began]
    at: Place | None = None  # that was asked for; None where there is no such row


def place_at(log: VerifiableLog, seq: int) -> Place | None:
    row = next(log.rows(seq - 1, seq), None) if seq > 0 else None
    return Place(position=row.seq, head=row.head.hex()) if row is not None else None


def began(log: VerifiableLog) -> list[Began]:
    found = []
    for seq, body in epochs(log):
        row = next(log.rows(seq - 1, seq))
        found.append(Began(position=seq, origin=body.to, at=row.ts, head=row.head.hex()))
    return found


def names_of(log: VerifiableLog) -> tuple[str, str]:
    """Origin of a log, first and now."""
    return first_origin(log), origin_of(log.log_id, log.epoch)


def why_not_ours(ours: Sequence[Began], theirs: Sequence[Began], where: str) -> str:
    """Why the node with the epochs `ours` may not write, a sentence that names the other one; ""
    where it may as far as this other one goes."""
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common].head == theirs[common].head:
        common += 1
    if common == len(theirs):
        return ""  # what we are was promoted from what they are, or from the same
    other = theirs[common]
    said = f"{where} was promoted at position {other.position}, {time_text(other.at)}"
    if common == len(ours):
        return f"{said}, and goes on from this log as {other.origin}"
    mine = ours[common]
    if (mine.at, mine.head) < (other.at, other.head):
        return ""
    return (
        f"{said}, before this node was, at position {mine.position}, {time_text(mine.at)}: "
        "two nodes cannot go on from one log"
    )
