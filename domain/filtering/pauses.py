"""Pauses: for a while, or until somebody ends it, nothing is denied to a group, or to anybody.

A pause is a fact of the log with its expiry in it, so that who paused what and why is known, and
every node ends it at the same moment. The stream of a group holds the newest word on it.
"""

import msgspec

from kudurru.domain.codec import canonical
from kudurru.domain.commands import RecordFact
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.events import BLOCKING_SET
from kudurru.domain.filtering.decision import EVERYONE
from kudurru.domain.object_store import DEFAULT_MANAGER
from kudurru.domain.objects import Key

PREFIX = "Blocking/"
PAUSE_MAX_S = 366 * 86_400
"""Longest pause with an end: a longer one is a mistake in the unit."""


class BlockingSet(msgspec.Struct, frozen=True, kw_only=True):
    """Payload of blocking.set.v1."""

    group: str = EVERYONE  # namespace/name
    blocks: bool  # False: paused
    until: int | None = None  # unix time of the end of a pause; None: until the next word


def stream_of(group: str) -> Key:
    """Stream of a group, by its full name."""
    return Key(f"{PREFIX}{group}" if group else f"{PREFIX}/everyone")


def pause_command(group: str, version: int, now_s: int, for_s: int | None) -> RecordFact:
    """Order to deny nothing to a group for some seconds. `version` is that of its stream now.
    Raises Invalid for a time that is none."""
    if for_s is not None and not 0 < for_s <= PAUSE_MAX_S:
        raise Invalid("pause", [Cause("for", "more than 0 seconds, and at most a year")])
    until = None if for_s is None else now_s + for_s
    return _command(BlockingSet(group=group, blocks=False, until=until), version)


def resume_command(group: str, version: int) -> RecordFact:
    """Order to deny again."""
    return _command(BlockingSet(group=group, blocks=True), version)


def _command(fact: BlockingSet, version: int) -> RecordFact:
    namespace = fact.group.partition("/")[0]
    return RecordFact(
        type=BLOCKING_SET,
        key=stream_of(fact.group),
        ver=version + 1,
        scope=f"{namespace}/",
        manager=DEFAULT_MANAGER,
        body=canonical(msgspec.to_builtins(fact)),
    )


def decode(body: bytes) -> BlockingSet:
    return msgspec.json.decode(body, type=BlockingSet)


def verb(body: bytes) -> str:
    """What the event says, in a word."""
    return "resumed" if decode(body).blocks else "paused"
