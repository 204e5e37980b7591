"""How long answers take at half of peak rate, while 100 applies a second change the zone that is
asked for, and while nothing changes.

    python -m tests.bench.latency [--seconds 5] [--rounds 3] [--names 10000] [--applies 100]

Prints figures, asserts nothing. The peak is what a generator in C gets that shares the processors
of this machine (`asker.c`). Times are from the call that sends to when the kernel has the answer,
so what the generator waits for a processor to read it does not count. Rounds alternate.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kudurru.entrypoints.rpc import connect
from kudurru.entrypoints.service import ChangeRequest, manifest_from_wire
from tests.bench.asker import Asker, Figures
from tests.bench.misses import QUIET
from tests.bench.spine import flat_zone, kudurru
from tests.blackbox.program import records, serving

ZONE = "home.example"
CHANGED = 50
"""Names that are changed in turn; one in so many questions is for one of them."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--names", type=int, default=10_000)
    parser.add_argument("--applies", type=int, default=100, help="a second")
    parser.add_argument("--folder", type=Path, help="where data and so the log are")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder = Path(scratch)
        data, asker = folder / "data", Asker(folder)
        import_zone(folder, data, given.names)
        names = write_names(folder, given.names)
        with serving(data, env=QUIET) as server:
            where = server.host, server.port
            asker.full(where, 2, names)  # it is warm
            peak = asker.full(where, given.seconds, names).per_s
            print(f"peak {peak:,.0f} queries/s; asked {peak / 2:,.0f} a second", flush=True)
            idle, changing = [], []
            for _ in range(given.rounds):
                idle.append(asker.paced(where, given.seconds, peak / 2, names))
                with applying(data, given.applies) as counted:
                    changing.append(asker.paced(where, given.seconds, peak / 2, names))
                print(f"  {counted[0]:.0f} applies a second", flush=True)
            show(idle, changing)


def import_zone(folder: Path, data: Path, names: int) -> None:
    file = folder / "home.zone"
    file.write_text(flat_zone(names))
    kudurru("zone", "import", str(file), "--data", str(data))


def write_names(folder: Path, names: int) -> Path:
    """In an order in which neighbours are no neighbours, and each changed one among them."""
    file = folder / "names"
    step = 7919  # a prime
    lines = [f"h{i * step % names}.{ZONE}\n" for i in range(names)]
    for i in range(CHANGED):
        lines.insert(i * (len(lines) // CHANGED), f"c{i}.{ZONE}\n")
    file.write_text("".join(lines))
    return file


@contextmanager
def applying(data: Path, per_s: int) -> Iterator[list[float]]:
    """Changes at their times during the block; one that is late is not caught up with. The list
    gets how many there were in a second."""
    is_over = threading.Event()
    counted: list[float] = []
    service = connect(data / "kudurru.sock")
    assert service is not None, "it serves"

    def apply() -> None:
        count, began = 0, time.monotonic()
        due = began
        with service:
            while not is_over.is_set():
                name = f"c{count % CHANGED}"
                address = f"10.{count >> 16 & 255}.{count >> 8 & 255}.{count & 255}"
                manifest = records(name, ZONE, (f"{name}.{ZONE}", "A", address))
                service.change(ChangeRequest(apply=[manifest_from_wire(manifest)]))
                count += 1
                due = max(due + 1 / per_s, time.monotonic() - 1 / per_s)
                is_over.wait(max(0, due - time.monotonic()))
        counted.append(count / (time.monotonic() - began))

    thread = threading.Thread(target=apply)
    thread.start()
    try:
        yield counted
    finally:
        is_over.set()
        thread.join()


def show(idle: list[Figures], changing: list[Figures]) -> None:
    print(f"{'':<10}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}{'answered':>12}")
    for title, rounds in (("idle", idle), ("changing", changing)):
        p50, p99, most = (
            statistics.median(getattr(one, f"{part}_ms") for one in rounds)
            for part in ("p50", "p99", "max")
        )
        answered = sum(one.answered for one in rounds) / sum(one.sent for one in rounds)
        print(f"{title:<10}{p50:>10.3f}{p99:>10.3f}{most:>10.3f}{answered:>12.4%}")
    ratio = statistics.median(c.p99_ms / i.p99_ms for i, c in zip(idle, changing, strict=True))
    print(f"p99 beside changes / idle: {ratio:.2f} (goal 2)")


if __name__ == "__main__":
    main()
