"""The process that writes the query log, so that the one that answers DNS does not.

Orders come on standard input and answers go to standard output, as frames: a length (4 octets, most
significant first) and MessagePack. The process ends with its input, whatever became of the parent.
"""

import gc
import os
import secrets
import signal
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from kudurru.adapters.query_log.store import QueryLogStore, StoreStatistics
from kudurru.domain.errors import StorageFailed
from kudurru.domain.query_log import Privacy, Retention, Seen

LENGTH = struct.Struct("!I")
TIDY_S = 60.0
NICENESS = 10
OBJECTS = 200_000
"""New objects before cycles are looked for. There are none to speak of, and each batch makes
thousands of objects that are gone after it."""


class Configure(msgspec.Struct, frozen=True, tag="configure"):
    privacy: Privacy
    retention: Retention


class Write(msgspec.Struct, frozen=True, tag="write"):
    seen: Seen


class Purge(msgspec.Struct, frozen=True, tag="purge"):
    before_us: int | None


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Ask for the statistics; everything ordered before is done by then."""


Order = Configure | Write | Purge | Report


class Answer(msgspec.Struct, frozen=True):
    """To a Purge or Report."""

    statistics: StoreStatistics
    deleted: int = 0
    error: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Order).decode


def frame(value: Order | Answer) -> bytes:
    body = _encode(value)
    return LENGTH.pack(len(body)) + body


def carry_out(store: QueryLogStore, order: Order) -> Answer | None:
    match order:
        case Configure():
            store.configure(order.privacy, order.retention)
        case Write():
            store.write(order.seen)
        case Purge():
            try:
                deleted = store.purge(order.before_us)
            except StorageFailed as error:
                return Answer(store.statistics(), error=str(error))
            return Answer(store.statistics(), deleted)
        case Report():
            return Answer(store.statistics())
    return None


def serve(store: QueryLogStore, orders: BinaryIO, answers: BinaryIO) -> None:
    """Carry out orders until there are no more."""
    tidied_at = time.monotonic()
    while len(head := orders.read(LENGTH.size)) == LENGTH.size:
        body = orders.read(LENGTH.unpack(head)[0])
        answer = carry_out(store, _decode(body))
        if answer is not None:
            answers.write(frame(answer))
            answers.flush()
        if time.monotonic() - tidied_at > TIDY_S:
            store.tidy(time.time_ns() // 1000)
            tidied_at = time.monotonic()


def main(path: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Control-C is for the parent, which tells us
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.set_threshold(OBJECTS)
    store = QueryLogStore(Path(path), secrets.token_bytes)
    # Only now: a server that is stopped soon waits until this is open, and on a busy machine that
    # would take seconds.
    os.nice(NICENESS)
    with suppress(BrokenPipeError):
        serve(store, sys.stdin.buffer, sys.stdout.buffer)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1])
