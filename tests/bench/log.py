"""Figures of the log, printed beside the bare SQLite recorder of the eventsourcing library.

`python -m tests.bench.log [FOLDER]`: the folder decides the disk, default the current one. Ours
and theirs run in turn in one process, several rounds, medians are printed: read the ratios. What
theirs does not do: chain, commitments, scopes, author, append-only triggers.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.chain import Sealed, commitment, head_after, leaf_of, salts_size, seal
from kudurru.domain.commands import Apply
from kudurru.domain.events import OBJECT_APPLIED, ChangeSet, Event, Who
from kudurru.domain.kinds.meta import API_VERSION
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import Key
from kudurru.domain.tree import Edge
from kudurru.domain.verify import TAIL_ROWS, verify
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer, keep_stamped

ROUNDS = 5
CALLERS = (1, 8, 32, 64)
BODY = (
    b'{"creationTimestamp":"2026-01-01T00:00:00Z","generation":1,"spec":{"endpoints":[{"dnsName":'
    b'"www.example.org.","recordTTL":300,"recordType":"A","targets":["192.0.2.1"]}],"zoneRef":'
    b'{"name":"example.org"}},"uid":"0d6a7f3c-2f0f-4a3e-9d57-1c2d3e4f5a6b"}'
)
WHO = Who(actor="user:1000", source="socket", reason="bench")
_numbers = count()


def new_key() -> Key:
    return Key(f"DNSRecordSet/default/host{next(_numbers)}.example.org")


def new_change() -> ChangeSet:
    event = Event(OBJECT_APPLIED, new_key(), 1, "default/example.org", "kudurru", BODY)
    return ChangeSet((event,), WHO)


def new_stored() -> StoredEvent:
    return StoredEvent(new_key(), 1, OBJECT_APPLIED, BODY)


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


def writer_rate(log: SQLiteEventLog, callers: int, each: int) -> float:
    """Changes a second through the writer of a server, views and stamps with it. A caller makes
    one record set after the other."""
    node = Node(log, SystemClock(), SystemEntropy())
    node.catch_up()
    changes = [[an_apply() for _ in range(each)] for _ in range(callers)]

    async def caller(writer: Writer, mine: list[Change]) -> None:
        for change in mine:
            await writer.submit(change)

    async def run() -> float:
        writer = Writer(node)
        async with asyncio.TaskGroup() as tasks:
            loops = [
                tasks.create_task(writer.run()),
                tasks.create_task(keep_stamped(writer, node, 0.25)),
            ]
            await writer.submit(Change(commands=(ZONE,), who=WHO))
            begun = time.perf_counter()
            await asyncio.gather(*(caller(writer, mine) for mine in changes))
            spent = time.perf_counter() - begun
            for loop in loops:
                loop.cancel()
        return callers * each / spent

    return asyncio.run(run())


def an_apply() -> Change:
    name = f"host{next(_numbers)}"
    spec = {
        "zoneRef": {"name": "example.org"},
        "endpoints": [
            {"dnsName": f"{name}.example.org", "recordType": "A", "targets": ["192.0.2.1"]}
        ],
    }
    return Change(commands=(_put("DNSRecordSet", name, spec),), who=WHO)


def _put(kind: str, name: str, spec: dict[str, Any]) -> Apply:
    document = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    manifest = parse_manifest(document, what="bench", default_namespace="default")
    return Apply(manifest=manifest, manager="kudurru")


ZONE = _put("DNSZone", "example.org", {"zoneName": "example.org."})


def bench_callers(log: SQLiteEventLog, bare: SQLiteApplicationRecorder) -> None:
    """A durable change of each caller at a time: through all of the writer (decide, record, views)
    beside the library's bare recorder."""

    def insert_one() -> None:
        bare.insert_events([new_stored()])

    for callers in CALLERS:
        each = max(30, 400 // callers)
        pairs = [
            (writer_rate(log, callers, each), by_callers(callers, each, insert_one))
            for _ in range(ROUNDS)
        ]
        name = f"durable changes, {callers} caller{'s' if callers > 1 else ''}"
        line(name, *map(list, zip(*pairs, strict=True)))


def bench_appends(log: SQLiteEventLog, bare: SQLiteApplicationRecorder) -> None:
    for size in (1, 32, 100, 1_000):
        pairs = []
        count = 400 if size == 1 else 10_000
        for _ in range(ROUNDS):
            changes = [[new_change() for _ in range(size)] for _ in range(count // size)]
            stored = [[new_stored() for _ in range(size)] for _ in range(count // size)]
            ours = rate(count, lambda: [log.append(some, 0) for some in changes])  # noqa: B023
            theirs = rate(count, lambda: [bare.insert_events(some) for some in stored])  # noqa: B023
            pairs.append((ours, theirs))
        line(f"events in appends of {size}", *map(list, zip(*pairs, strict=True)))


def bench_split(folder: Path) -> None:
    """Where the time of an append goes, in microseconds an event: each step alone, on the same
    events. Inserting is what an append without a sync takes more than the steps before; the sync
    is what one with a sync takes more than that."""
    steps = ("encode", "hash", "tree", "insert", "fsync")
    print(f"{'µs an event, append of':>24}" + "".join(f"{step:>9}" for step in steps))
    for size in (1, 32, 1_000):
        times = [_split(folder, size, round_) for round_ in range(3)]
        spent = [median(step) for step in zip(*times, strict=True)]
        print(f"{size:>24,}" + "".join(f"{step:>9.1f}" for step in spent))


def _split(folder: Path, size: int, round_: int) -> tuple[float, ...]:
    appends = max(5, min(400, 4_000 // size))
    events = size * appends
    changes = [[new_change() for _ in range(size)] for _ in range(2 * appends)]
    log = open_log(folder / f"split-{size}-{round_}.db")
    log.append([new_change()], 0)

    def micros(run: Callable[[], object]) -> float:
        return 1e6 / rate(events, run)

    head = log.head()
    salts = [os.urandom(salts_size(some)) for some in changes[:appends]]
    sealed: list[list[Sealed]] = []
    to_seal = zip(changes, salts, strict=False)
    sealing = micros(lambda: sealed.extend(seal(c, head, 0, s) for c, s in to_seal))
    hashing = micros(lambda: [_hash(row) for rows in sealed for row in rows])
    edge = Edge()

    def grow() -> None:
        nonlocal edge
        for rows in sealed:
            edge, _ = edge.extended([row.leaf for row in rows])

    growing = micros(grow)
    synced = micros(lambda: [log.append(some, 0) for some in changes[:appends]])
    log._writer.execute("PRAGMA synchronous = OFF")
    unsynced = micros(lambda: [log.append(some, 0) for some in changes[appends:]])
    log.close()
    inserting = unsynced - sealing - growing
    return sealing - hashing, hashing, growing, inserting, synced - unsynced


def _hash(row: Sealed) -> None:
    """What `seal` hashes for an event; the `who` of a set of one is one more."""
    event = row.event
    commitment(row.salt, event.body or b"")
    commitment(row.who_salt, event.who or b"")
    head_after(row.head, leaf_of(row.entry))


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


def open_log(path: Path) -> SQLiteEventLog:
    return SQLiteEventLog.open(path, entropy=SystemEntropy(), clock=SystemClock(), create=True)


def main() -> None:
    base = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    with tempfile.TemporaryDirectory(dir=base) as name:
        folder = Path(name)
        log = open_log(folder / "log.db")
        store = SQLiteDatastore(str(folder / "library.db"), originator_id_type="text")
        bare = SQLiteApplicationRecorder(store)
        bare.create_table()
        bench_split(folder)
        bench_callers(log, bare)
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
