"""What the controllers cost: a change in a zone of many record sets, and an import.

    python -m tests.bench.statuses [--sets 10000] [--changes 400]

Prints figures, asserts nothing. Everything is on SQLite, in one process, with fsync.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.memory.sink import MemorySink
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.adapters.timers import LoopTimers
from kudurru.domain.commands import Apply
from kudurru.domain.events import Who
from kudurru.entrypoints.controllers import Controllers
from kudurru.entrypoints.store import LogStore
from kudurru.entrypoints.watches import Hub
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer, keep_stamped
from tests.objects import endpoint, put, record_set, zone

WHO = Who(actor="system", source="bench")


def host(i: int, address: str = "192.0.2.1", name: str = "h") -> Apply:
    return put(record_set(f"{name}{i}", endpoint(f"h{i}.example.org", "A", address)))


@asynccontextmanager
async def running(
    log: SQLiteEventLog, *, with_controllers: bool
) -> AsyncIterator[tuple[Writer, Controllers]]:
    node = Node(log, SystemClock(), SystemEntropy())
    node.catch_up()
    writer = Writer(node)
    controllers = Controllers(
        node,
        writer,
        LogStore("sqlite", node, writer, Hub(node), WHO),
        clock=SystemClock(),
        timers=LoopTimers(),
        sink=MemorySink(),
        coalesce_us=250_000,
    )
    loops = [
        asyncio.create_task(writer.run()),
        asyncio.create_task(keep_stamped(writer, node, 0.25)),
    ]
    if with_controllers:
        loops.append(asyncio.create_task(controllers.run()))
    try:
        yield writer, controllers
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def submit(writer: Writer, *commands: Apply) -> None:
    await writer.submit(Change(commands=commands, who=WHO))


async def settled(controllers: Controllers, *, with_controllers: bool) -> None:
    await asyncio.sleep(0.5)
    while with_controllers and sum(controllers.statistics().waiting.values()):
        await asyncio.sleep(0.05)


async def measure(folder: Path, sets: int, changes: int, *, with_controllers: bool) -> None:
    path = folder / f"{with_controllers}.db"
    log = SQLiteEventLog.open(path, entropy=SystemEntropy(), clock=SystemClock(), create=True)
    title = "with controllers" if with_controllers else "without"
    async with running(log, with_controllers=with_controllers) as (writer, controllers):
        begun = time.process_time()
        await submit(writer, put(zone()), *(host(i) for i in range(sets)))
        await settled(controllers, with_controllers=with_controllers)
        imported_s = time.process_time() - begun
        events = log.head().seq
        # Every tenth name is claimed a second time, so that there is something to be said.
        await submit(writer, *(host(i, "192.0.2.9", "x") for i in range(0, sets, 10)))
        await settled(controllers, with_controllers=with_controllers)
        begun, started = time.process_time(), time.perf_counter()
        for i in range(changes):
            await submit(writer, host(1, f"10.0.{i >> 8}.{i & 255}"))
        change_ms = (time.perf_counter() - started) / changes * 1e3
        await settled(controllers, with_controllers=with_controllers)
        cpu_ms = (time.process_time() - begun) / changes * 1e3
    print(
        f"{title:>16}: import of {sets:,} sets {imported_s:.2f} s of CPU and {events:,} events; "
        f"a change of one {cpu_ms:.3f} ms of CPU, acknowledged after {change_ms:.3f} ms"
    )
    log.close()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=400)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        for with_controllers in (False, True):
            asyncio.run(
                measure(Path(scratch), given.sets, given.changes, with_controllers=with_controllers)
            )


if __name__ == "__main__":
    main()
