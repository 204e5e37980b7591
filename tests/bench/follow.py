"""Events a second that a follower copies and verifies, printed.

`python -m tests.bench.follow [--events N]`: a leader's log of N events with a checkpoint every
thousand, behind a real API in a process of its own; a follower with an empty directory copies it to
its disk. Before that the steps one by one, in one thread: what the leader spends, and the follower,
and what SQLite takes for the same rows when nothing else is done (the floor). CPU says what it
costs on a machine that others use too.
"""

import argparse
import asyncio
import gc
import multiprocessing
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.signing import KeyFolder
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain import replica
from kudurru.domain.ports import Copied
from kudurru.domain.replica import COMMIT_ROWS, Page, Target
from kudurru.domain.settings import FollowSettings, SecretFile
from kudurru.entrypoints.follow_place import Copy, FollowPlace, receiver_of
from kudurru.entrypoints.following import Following
from kudurru.entrypoints.server import COLLECT_AFTER, SWITCH_INTERVAL_S
from kudurru.entrypoints.standing import Standing
from kudurru.entrypoints.wiring import Node
from tests.bench.log import new_change
from tests.followers import leading
from tests.logs import adopt, sign

EVENTS = 1_000_000
STEPS_EVENTS = 50_000
SIGNED = 1_000


class _Ones:
    """The chance that the key of `sign` was made by."""

    def token(self, size: int) -> bytes:
        return bytes([1]) * size


def open_log(path: Path, copy_of: tuple[str, int] | None = None) -> SQLiteEventLog:
    return SQLiteEventLog.open(
        path, entropy=SystemEntropy(), clock=SystemClock(), create=True, copy_of=copy_of
    )


def write(path: Path, events: int) -> None:
    log = open_log(path)
    log._writer.execute("PRAGMA synchronous = OFF")  # it is not what is measured
    log.append([adopt(log)], 0)
    for _ in range(events // SIGNED):
        log.append([new_change() for _ in range(SIGNED - 1)], 0)
        sign(log)
    log.close()


def serve(folder: Path, ends: Connection) -> None:
    """A process with the leader, until it is told to end; then it tells its CPU time."""

    async def run() -> None:
        log = open_log(folder / "log.db")
        async with leading(log, folder) as leader:
            token = leader.api.token["follower"]
            ends.send((leader.url, token, log.log_id))
            begun = time.process_time()
            with suppress(EOFError):
                await asyncio.to_thread(ends.recv)
                ends.send(time.process_time() - begun)
        log.close()

    as_served()
    asyncio.run(run())


def as_served() -> None:
    """What `kudurru serve` sets for its process."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(COLLECT_AFTER)


def follow(folder: Path, url: str, token: str, log_id: str) -> tuple[float, int]:
    """Seconds until nothing is missing, and how many events there are then."""
    file = folder / "token"
    file.write_text(token)
    log = open_log(folder / "log.db", (log_id, 1))
    node = Node(log, SystemClock(), SystemEntropy())
    settings = FollowSettings(url=url, token=SecretFile(str(file)))
    copy = Copy(log=log, place=FollowPlace(url, log_id), path=folder / "follow")
    standing = Standing("ns2", "bench", node)
    following = Following(copy, settings, (), standing, SystemClock())
    begun = time.perf_counter()
    asyncio.run(following.first_copy())
    spent = time.perf_counter() - begun
    size = int(log.head().seq)
    log.close()
    return spent, size


def bench_catching_up(base: Path, events: int) -> None:
    one, two = base / "one", base / "two"
    one.mkdir()
    two.mkdir()
    write(one / "log.db", events)
    KeyFolder(one, "", _Ones()).create()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(one, theirs))
    process.start()
    theirs.close()  # so that its end shows here
    try:
        url, token, log_id = ours.recv()
        begun = time.process_time()
        spent, size = follow(two, url, token, log_id)
        cpu = time.process_time() - begun
        ours.send(None)
        their_cpu = ours.recv()
    finally:
        ours.close()
        process.join()
    print(f"{'events caught up, verified, on disk':40} {size / spent:>9,.0f}/s   of {size:,}")
    for who, spent in (("follower", cpu), ("leader", their_cpu)):
        print(f"{f'  {who}, all of it':40} {spent / size * 1e6:>9.2f} µs of CPU an event")


def bench_steps(base: Path) -> None:
    write(base / "leader.db", STEPS_EVENTS)
    leader = open_log(base / "leader.db")
    newest = leader.newest_checkpoint()
    assert newest is not None
    size = newest.size

    def timed(what: str, run: Callable[[], object]) -> None:
        begun = time.process_time()
        run()
        micros = (time.process_time() - begun) / size * 1e6
        print(f"{'  ' + what:40} {micros:>9.2f} µs of CPU an event")

    pages: list[Page] = []
    timed("leader: rows and proofs", lambda: pages.extend(replica.pages(leader, 0, size)))
    octets: list[bytes] = []
    timed("leader: encode", lambda: octets.extend(map(replica.encode_frame, pages)))
    print(f"{'  octets sent':40} {sum(map(len, octets)) / size:>9.0f} an event")
    frames: list[replica.Frame] = []
    timed("follower: decode", lambda: frames.extend(map(replica.decode_frame, octets)))
    copy = open_log(base / "copy.db", (leader.log_id, 1))
    receiver, parts = receiver_of(copy, ()), list[Copied]()
    target = replica.target_of(leader, 0, newest)
    assert isinstance(target, Target)
    receiver.aim(target)
    timed("follower: verify", lambda: parts.extend(receiver.take(page) for page in pages))
    coming: Iterator[Copied] = iter(parts)

    def store() -> None:
        while copy.take_over(coming) is not None:
            pass

    timed("follower: store, durable", store)
    floor = bare_table(base / "floor.db")
    rows = [msgspec.structs.astuple(row) for page in pages for row in page.rows]
    timed("  floor: SQLite with the same rows", lambda: insert(floor, rows))
    floor.close()
    copy.close()
    leader.close()


def bare_table(path: Path) -> sqlite3.Connection:
    """As the log, but for the triggers, the streams and the tree."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA cache_size = -16384")
    db.execute("PRAGMA wal_autocheckpoint = 4096")
    names = "txn, ts, stream, ver, scope, type, entry, salt, body, who_salt, who, leaf, head"
    db.execute(f"CREATE TABLE log (seq INTEGER PRIMARY KEY, {names}, UNIQUE (stream, ver))")
    db.execute("CREATE INDEX log_scope ON log (scope, seq)")
    return db


def insert(db: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
    for first in range(0, len(rows), COMMIT_ROWS):
        db.execute("BEGIN")
        sql = f"INSERT INTO log VALUES ({', '.join('?' * 14)})"  # of constants
        db.executemany(sql, rows[first : first + COMMIT_ROWS])
        db.execute("COMMIT")


def main() -> None:
    as_served()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    events = parser.parse_args().events
    with tempfile.TemporaryDirectory(dir=Path()) as name:
        base = Path(name)
        (base / "steps").mkdir()
        bench_steps(base / "steps")
        bench_catching_up(base, events)


if __name__ == "__main__":
    main()
