"""Figures of the log in PostgreSQL: group commit beside single commits, one node and three.

`python -m tests.bench.postgres`. The server is Debian's, with fsync, on the disk of the temporary
folder; rounds are run in turn and medians printed: read the ratios. The library's own recorder is
printed beside: it has no chain, no gap-free positions, and locks the table.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from statistics import median

from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.postgres.log import PostgresEventLog
from kudurru.domain.events import Who
from kudurru.domain.verify import verify
from kudurru.entrypoints.store import LogStore, opened
from tests.bench.log import BODY, new_change, new_key, rate
from tests.objects import document
from tests.postgres import Server, server

ROUNDS = 3
EACH = 150
"""Commits of one caller in a round, fewer where there are many callers."""

Commit = Callable[[], Awaitable[object]]


def open_log(on: Server, schema: str) -> PostgresEventLog:
    return PostgresEventLog.open(
        on.url(), entropy=SystemEntropy(), clock=SystemClock(), create=True, schema=schema
    )


async def commits_per_second(stores: Sequence[LogStore], callers: int, round_: int) -> float:
    """`callers` on each store, each of them one commit after the other."""
    each = max(EACH // callers, 15)

    async def caller(store: LogStore, name: str) -> None:
        for number in range(each):
            spec = {"clients": [{"ip": f"192.0.2.{number % 250}"}]}
            await store.apply(document("ClientGroup", f"{name}-{number}", spec), "bench")

    begun = time.perf_counter()
    await asyncio.gather(
        *(
            caller(store, f"r{round_}-s{at}-c{callers}-{i}")
            for at, store in enumerate(stores)
            for i in range(callers)
        )
    )
    return len(stores) * callers * each / (time.perf_counter() - begun)


async def bench_stores(on: Server) -> None:
    async with AsyncExitStack() as stack:
        stores, logs = [], []
        for _ in range(3):
            log = open_log(on, "bench")
            stack.callback(log.close)
            logs.append(log)
            who = Who(actor="user:1000", source="bench")
            store = opened("postgres", log, clock=SystemClock(), entropy=SystemEntropy(), who=who)
            stores.append(await stack.enter_async_context(store))
        single = 0.0
        for nodes in (1, 3):
            for callers in (1, 8, 32, 64):
                rates = [
                    await commits_per_second(stores[:nodes], callers, nodes * 10 + i)
                    for i in range(ROUNDS)
                ]
                found = median(rates)
                single = single or found
                what = f"commits, {nodes} node{'s' * (nodes > 1)} of {callers} callers"
                print(f"{what:34} {found:>9,.0f}/s   x{found / single:.1f} of single commits")
        total = logs[0].head().seq
        speed = rate(total, lambda: verify(logs[0]))
        print(f"{'verified events, all columns':34} {speed:>9,.0f}/s   of {total:,}")


def bench_appends(on: Server) -> None:
    log = open_log(on, "appends")
    for size in (100, 1_000, 20_000):
        changes = [[new_change() for _ in range(size)] for _ in range(20_000 // size)]
        speed = rate(20_000, lambda: [log.append(some, 0) for some in changes])  # noqa: B023
        print(f"{f'events in appends of {size}':34} {speed:>9,.0f}/s")
    total = log.head().seq
    speed = rate(total, lambda: sum(1 for _ in log.read()))
    print(f"{'replayed events':34} {speed:>9,.0f}/s   of {total:,}")
    log.close()


def bench_library(on: Server) -> None:
    store = PostgresDatastore(
        dbname="postgres",
        host=str(on.folder),
        port="5432",
        user="kudurru",
        password="-",
        originator_id_type="text",
        max_overflow=64,
    )
    bare = PostgresApplicationRecorder(store, events_table_name="bare_events")
    bare.create_table()

    def insert(_: int) -> None:
        bare.insert_events([StoredEvent(new_key(), 1, "obj.applied.v1", BODY)])

    for callers in (1, 32):
        with ThreadPoolExecutor(callers) as pool:
            count = max(EACH, callers * 15)
            speed = rate(count, lambda: list(pool.map(insert, range(count))))  # noqa: B023
        print(f"{f'the library, {callers} callers':34} {speed:>9,.0f}/s")
    store.close()


def main() -> None:
    on = server(fsync=True)
    asyncio.run(bench_stores(on))
    bench_appends(on)
    bench_library(on)


if __name__ == "__main__":
    main()
