"""Figures of the log, printed beside the bare SQLite recorder of the eventsourcing library.

`python -m tests.bench.log [FOLDER]`: the folder decides the disk, default the current one. Ours
and theirs run in turn in one process, several rounds, medians are printed: read the ratios. What
theirs does not do: chain, commitments, scopes, author, append-only triggers.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median

from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.events import OBJECT_APPLIED, ChangeSet, Event, Recorded, Who
from kudurru.domain.objects import Key
from kudurru.domain.verify import TAIL_ROWS, verify

ROUNDS = 5
CALLERS = 32
BODY = (
    b'{"creationTimestamp":"2026-01-01T00:00:00Z","generation":1,"spec":{"endpoints":[{"dnsName":'
    b'"www.example.org.","recordTTL":300,"recordType":"A","targets":["192.0.2.1"]}],"zoneRef":'
    b'{"name":"example.org"}},"uid":"0d6a7f3c-2f0f-4a3e-9d57-1c2d3e4f5a6b"}'
)
WHO = Who(actor="user:1000", source="socket", reason="bench")
_numbers = count()


class RealClock:
    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1_000


class RealEntropy:
    def token(self, size: int) -> bytes:
        return os.urandom(size)


def new_key() -> Key:
    return Key(f"DNSRecordSet/default/host{next(_numbers)}.example.org")


def new_change() -> ChangeSet:
    event = Event(OBJECT_APPLIED, new_key(), 1, "default/example.org", "kudurru", BODY)
    return ChangeSet((event,), WHO)


def new_stored() -> StoredEvent:
    return StoredEvent(new_key(), 1, OBJECT_APPLIED, BODY)


class GroupCommit:
    """The shape of the server's writer: one thread drains what has queued up into one append."""

    def __init__(self, log: SQLiteEventLog) -> None:
        self._log = log
        self._queue: SimpleQueue[tuple[ChangeSet, Future[Recorded]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def append(self, change_set: ChangeSet) -> Recorded:
        done: Future[Recorded] = Future()
        self._queue.put((change_set, done))
        return done.result()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while first := self._queue.get():
            batch = [first]
            try:
                while more := self._queue.get_nowait():
                    batch.append(more)
            except Empty:
                pass
            recorded = self._log.append([change for change, _ in batch], time.time_ns() // 1_000)
            for (_, done), event in zip(batch, recorded, strict=True):
                done.set_result(event)


def rate(events: int, run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return events / (time.perf_counter() - begun)


def by_callers(callers: int, each: int, call: Callable[[], object]) -> float:
    def caller(_: int) -> None:
        for _ in range(each):
            call()

    with ThreadPoolExecutor(callers) as pool:
        return rate(callers * each, lambda: list(pool.map(caller, range(callers))))


def line(what: str, ours: list[float], theirs: list[float]) -> None:
    ratio = median(mine / other for mine, other in zip(ours, theirs, strict=True))
    print(f"{what:34} {median(ours):>9,.0f}/s   library {median(theirs):>9,.0f}/s   x{ratio:.2f}")


def bench_appends(log: SQLiteEventLog, bare: SQLiteApplicationRecorder) -> None:
    def append_one() -> None:
        log.append([new_change()], time.time_ns() // 1_000)

    def insert_one() -> None:
        bare.insert_events([new_stored()])

    rounds = range(ROUNDS)
    pairs = [(by_callers(1, 400, append_one), by_callers(1, 400, insert_one)) for _ in rounds]
    line("durable appends, 1 caller", *map(list, zip(*pairs, strict=True)))
    group = GroupCommit(log)
    pairs = [
        (
            by_callers(CALLERS, 60, lambda: group.append(new_change())),
            by_callers(CALLERS, 60, insert_one),
        )
        for _ in rounds
    ]
    group.close()
    line(f"durable appends, {CALLERS} callers", *map(list, zip(*pairs, strict=True)))
    for size in (100, 1_000):
        pairs = []
        for _ in rounds:
            changes = [[new_change() for _ in range(size)] for _ in range(10_000 // size)]
            stored = [[new_stored() for _ in range(size)] for _ in range(10_000 // size)]
            ours = rate(10_000, lambda: [log.append(some, 0) for some in changes])  # noqa: B023
            theirs = rate(10_000, lambda: [bare.insert_events(some) for some in stored])  # noqa: B023
            pairs.append((ours, theirs))
        line(f"events in appends of {size}", *map(list, zip(*pairs, strict=True)))


def bench_reads(log: SQLiteEventLog, bare: SQLiteApplicationRecorder) -> None:
    total, other = log.head().seq, bare.max_notification_id()

    def select_all() -> None:
        at = 0
        while some := bare.select_notifications(at, 1_000, inclusive_of_start=False):
            at = some[-1].id

    pairs = [
        (rate(total, lambda: sum(1 for _ in log.read())), rate(other, select_all))
        for _ in range(ROUNDS)
    ]
    line("replayed events", *map(list, zip(*pairs, strict=True)))
    rates = [rate(total, lambda: verify(log)) for _ in range(ROUNDS)]
    print(f"{'verified events, all columns':34} {median(rates):>9,.0f}/s   of {total:,}")
    times = [TAIL_ROWS / rate(TAIL_ROWS, lambda: verify(log, tail=TAIL_ROWS)) for _ in range(3)]
    print(f"{'verification of the tail':34} {median(times) * 1e3:>9,.0f} ms")


def main() -> None:
    base = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    with tempfile.TemporaryDirectory(dir=base) as name:
        folder = Path(name)
        log = SQLiteEventLog.open(
            folder / "log.db", entropy=RealEntropy(), clock=RealClock(), create=True
        )
        store = SQLiteDatastore(str(folder / "library.db"), originator_id_type="text")
        bare = SQLiteApplicationRecorder(store)
        bare.create_table()
        bench_appends(log, bare)
        changes = [new_change() for _ in range(100_000)]
        speed = rate(len(changes), lambda: log.append(changes, 0))
        print(f"{'one append of 100,000 change sets':34} {speed:>9,.0f}/s")
        bench_reads(log, bare)
        octets = sum(file.stat().st_size for file in folder.glob("log.db"))
        print(f"{'octets on disk for an event':34} {octets / log.head().seq:>9,.0f}")
        log.close()
        store.close()


if __name__ == "__main__":
    main()
