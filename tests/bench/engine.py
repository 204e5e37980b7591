"""CPU per query of the packet engines beside other servers, and their latency beside a busy thread.
Prints figures, asserts nothing.

    python -m tests.bench.engine [--seconds 4] [--rounds 3] [--first]

`--first` (as root) gives servers and generator the first claim on the processors, so that a busy
machine measures nearly like a quiet one.

Needs dnsperf, and knot, nsd, named as peers, and `shared/tools/dnsbench.py` beside the project or
in the folder that KUDURRU_SHARED names. The real pipeline answers what the engine does not know:
"native" is given the zones, as by `kudurru serve`, and "repeats" knows only what was asked before.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_native import AnswerTable, NativeEngine
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.dns.zone_images import ZoneImages
from kudurru.adapters.sockets import Listener, bind_all
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.ports import PacketEngine
from kudurru.domain.settings import RatelimitSettings
from kudurru.projections.pipeline.ratelimit import RateLimiter
from tests.bench.answers import build_zone, pipeline_of
from tests.bench.asker import floor
from tests.bench.forward import running
from tests.ports import free_port

NOBODY_EXEMPT = RatelimitSettings(ipv4={32: 10**9, 24: 10**9}, exempt=())
"""Counts every query and limits none."""

ROOT = Path(__file__).parents[2]
NAMES = 10_000
QUERIES = ("q-plain.txt", "q-hot.txt", "q-mixed.txt")
PEERS = ("knot", "nsd", "named", "floor")
BUSY_CASES = (
    ("idle beside", ()),
    ("busy thread", ("--busy",)),
    ("busy thread, switch interval 0.5 ms", ("--busy", "--switch", "0.0005")),
)


def serve(
    *,
    native: bool,
    with_zones: bool,
    batched: bool,
    limited: bool,
    busy: bool,
    switch_s: float | None,
) -> None:
    """Serve in this process until it is ended; print the port first."""
    if switch_s is not None:
        sys.setswitchinterval(switch_s)

    zone = build_zone(NAMES)
    zone.stamp(1)

    async def main() -> None:
        (bound,) = bind_all([Listener("udp", "127.0.0.1:0")])
        buckets = engine_native.new_buckets() if native else None
        limiter = None
        if limited:
            limiter = RateLimiter(NOBODY_EXEMPT, SystemClock(), buckets=buckets)
        handler = pipeline_of(zone)
        engine: PacketEngine
        if native:
            table = AnswerTable()
            images = ZoneImages(table)
            if with_zones:
                images.follow(ZoneSet([zone]), dict, lambda: True)
                images.changed()
            engine = NativeEngine(
                handler, bound.sockets, table=table, limiter=limiter, zones=images.core
            )
        else:
            engine = PythonEngine(handler, bound.sockets, batched=batched, limiter=limiter)
        await engine.start()
        print(bound.address.rpartition(":")[2], flush=True)
        await asyncio.Event().wait()

    def spin() -> None:
        while True:
            sum(range(1000))

    if busy:
        threading.Thread(target=spin, daemon=True).start()
    asyncio.run(main())


@contextmanager
def child(*arguments: str) -> Iterator[tuple[int, int]]:
    """A serving child process: its port and pid."""
    command = [sys.executable, "-m", "tests.bench.engine", "--serve", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.terminate()


@contextmanager
def joined_floor() -> Iterator[tuple[int, int]]:
    """The floor with answers of one length to one client joined: its port and pid."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [str(floor(Path(folder))), str(port), "joined"]
        with running(command, port) as pid:
            yield port, pid


def claim_processors() -> None:
    """For this process and those that it starts."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def dnsbench(*arguments: str) -> None:
    shared = Path(os.environ.get("KUDURRU_SHARED", ROOT.parent / "shared"))
    command = [sys.executable, str(shared / "tools" / "dnsbench.py"), *arguments]
    subprocess.run(command, check=True)


def cpu_per_query(folder: str, seconds: int, rounds: int, peers: Sequence[str]) -> None:
    ways = {"batched": (), "plain calls": ("--plain",), "no limiter": ("--unlimited",)}
    if engine_native.is_available():
        ours = ("--native", "--zones")
        repeats = {"repeats": ("--native",), "no limits": (*ours, "--unlimited")}
        ways = {"native": ours, **repeats, **ways}
    with contextlib.ExitStack() as stack:
        ours = {name: stack.enter_context(child(*given)) for name, given in ways.items()}
        ours["floor, joined"] = stack.enter_context(joined_floor())
        for queries, edns in itertools.product(QUERIES, ([], ["--edns"])):
            title = " ".join([queries, *edns])
            print(f"\n{title}: CPU per query; first/this: ours beside that server", flush=True)
            dnsbench(
                "run", folder, "--queries", queries, *edns,
                "--seconds", str(seconds), "--rounds", str(rounds),
                *(x for name, (port, pid) in ours.items()
                  for x in ("--server", f"{name}:{port}:{pid}")),
                *(part for peer in peers for part in ("--peer", peer)),
            )  # fmt: skip


def beside_busy_thread(folder: str, seconds: int) -> None:
    print("\nqueries and latency beside a thread that computes in the same process")
    for title, arguments in BUSY_CASES:
        with child(*arguments) as (port, _):
            out = subprocess.run(
                ["dnsperf", "-s", "127.0.0.1", "-p", str(port), "-d", f"{folder}/q-plain.txt",
                 "-l", str(seconds), "-c", "8", "-q", "200"],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
        shown = dict(line.strip().split(":", 1) for line in out.splitlines() if ":" in line)
        rate = float(shown["Queries per second"])
        latency = float(shown["Average Latency (s)"].split()[0]) * 1e3
        lost = shown["Queries lost"].split()[0]
        print(f"{title:<40}{rate:>10.0f} queries/s{latency:>8.2f} ms{lost:>8} lost", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="append", help="knot, nsd, named, unbound, floor")
    parser.add_argument("--first", action="store_true", help="before all other work of the machine")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--native", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--zones", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--unlimited", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--busy", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--switch", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(
            native=given.native,
            with_zones=given.zones,
            batched=not given.plain,
            limited=not given.unlimited,
            busy=given.busy,
            switch_s=given.switch,
        )
        return
    if given.first:
        claim_processors()
    with tempfile.TemporaryDirectory() as folder:
        dnsbench("zone", folder, "--names", str(NAMES))
        cpu_per_query(folder, given.seconds, given.rounds, given.peer or PEERS)
        beside_busy_thread(folder, given.seconds)


if __name__ == "__main__":
    main()
