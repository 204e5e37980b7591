"""Epochs: a log that goes on from a backup is another one to whoever follows it.

What was acknowledged after the backup is lost, and positions are given a second time. So `log
import` begins an epoch: versions of objects are of the new one, the origin of checkpoints too, and
no version or checkpoint ever means two things. Rows before the `log.epoch.v1` keep the origin that
they were sealed and signed under.
"""

import msgspec

from kudurru.domain.chain import origin_of
from kudurru.domain.events import EPOCH_KEY, LOG_EPOCH, Position
from kudurru.domain.ports import EventLog


class EpochBody(msgspec.Struct, frozen=True):
    """Body of log.epoch.v1."""

    origin: str  # of the log until here
    to: str  # from here on
    checkpoint: str  # newest signed note of the old origin, empty when there was none


def epochs(log: EventLog, upto: int | None = None) -> list[tuple[Position, EpochBody]]:
    """Where epochs began, but for the first, in order. One that cannot be read is left out: the
    verifier names it."""
    found = []
    for event in log.read(0, upto, key=EPOCH_KEY):
        body = decode_epoch(event.body) if event.type == LOG_EPOCH else None
        if body is not None:
            found.append((event.seq, body))
    return found


def origins(log: EventLog) -> list[tuple[Position, str]]:
    """The names that a chain had, each with the position of the event that began it, in order."""
    began = epochs(log)
    first = began[0][1].origin if began else origin_of(log.log_id, log.epoch)
    return [(Position(0), first), *((seq, body.to) for seq, body in began)]


def epoch_began(log: EventLog) -> Position:
    """Position of the event that began the epoch that the log is in, 0 for its first."""
    found = epochs(log)
    return found[-1][0] if found else Position(0)


def decode_epoch(body: bytes | None) -> EpochBody | None:
    try:
        return msgspec.json.decode(body, type=EpochBody) if body is not None else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def epoch_in(origin: str) -> int:
    """The number of an epoch, by the name of the chain; 0 for what is no such name."""
    number = origin.rpartition("/")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 0


def first_origin(log: EventLog) -> str:
    """The name that the chain began with."""
    return origins(log)[0][1]
