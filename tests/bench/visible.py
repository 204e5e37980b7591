"""How soon a change is what DNS answers, on a server under load, and what an import does to it.

    python -m tests.bench.visible [--changes 200] [--records 100000]

Prints figures, asserts nothing. The load is dnsperf, which takes a processor of its own. A change
is durable before it is answered, so before each one a write of as many octets to the same disk,
without a server, shows what of the time is the disk's: beside other programs that write, now and
then one waits for a quarter of a second, and so does a change (docs/decisions/0054).
"""

import argparse
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kudurru.entrypoints.rpc import connect
from kudurru.entrypoints.service import ChangeRequest, Service, manifest_from_wire
from tests.bench.spine import flat_zone, kudurru
from tests.blackbox.program import Serving, records, serving
from tests.packets import query

ZONE = "demo.example"
LOAD_PER_S = 20_000


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--records", type=int, default=100_000)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with serving(folder / "data", "--demo") as server:
            service = connect(folder / "data" / "kudurru.sock")
            assert service is not None
            with service:
                show("idle", times_ms(server, service, given.changes, folder))
                with load(server, questions(folder)):
                    title = f"{LOAD_PER_S:,} queries/s"
                    show(title, times_ms(server, service, given.changes, folder))
            gap_beside_import(server, folder, given.records)


def times_ms(
    server: Serving, service: Service, changes: int, folder: Path, zone: str = ZONE
) -> list[tuple[float, float, float]]:
    """(to the new answer, to the acknowledgement) of each change, from the call on, and of a write
    to the disk of `folder` just before it."""
    found = []
    name = f"bench.{zone}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((server.host, server.port))
        sock.settimeout(10)
        for i in range(changes):
            address = f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}"
            wanted = socket.inet_aton(address)
            manifest = manifest_from_wire(records("bench", zone, (name, "A", address)))
            acknowledged: list[float] = []

            def change(manifest=manifest, acknowledged=acknowledged) -> None:
                service.change(ChangeRequest(apply=[manifest]))
                acknowledged.append(time.perf_counter())

            alone_ms = durable_write_ms(folder / "written")
            thread = threading.Thread(target=change)
            started = time.perf_counter()
            thread.start()
            while True:
                sock.send(query(name))
                if sock.recv(4096).endswith(wanted):
                    break
            seen = time.perf_counter()
            thread.join()
            found.append(((seen - started) * 1e3, (acknowledged[0] - started) * 1e3, alone_ms))
    return found


def durable_write_ms(file: Path) -> float:
    """As many octets as a small change writes to the log."""
    started = time.perf_counter()
    with file.open("ab") as opened:
        opened.write(b"x" * (6 * 4096))
        opened.flush()
        os.fdatasync(opened.fileno())
    return (time.perf_counter() - started) * 1e3


def show(title: str, times: list[tuple[float, float, float]]) -> None:
    titles = ("change to new answer", "change to acknowledged", "the disk alone")
    for what, column in zip(titles, zip(*times, strict=True), strict=True):
        worst = sorted(column)[len(column) * 99 // 100]
        print(
            f"{what:<23} {title:<18} median {statistics.median(column):6.2f} ms, "
            f"99 % {worst:6.2f} ms, max {max(column):6.2f} ms",
            flush=True,
        )


def questions(folder: Path) -> Path:
    file = folder / "questions"
    file.write_text(f"www.{ZONE} A\nbench.{ZONE} A\nnone.{ZONE} A\n")
    return file


@contextmanager
def load(server: Serving, questions: Path) -> Iterator[None]:
    command = [
        *("dnsperf", "-s", server.host, "-p", str(server.port), "-d", str(questions)),
        *("-l", "600", "-c", "8", "-q", "200", "-Q", str(LOAD_PER_S)),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(1)
        yield
        process.terminate()


def gap_beside_import(server: Serving, folder: Path, count: int) -> None:
    file = folder / "large.zone"
    file.write_text(flat_zone(count))
    gaps: list[float] = []
    is_over = threading.Event()

    def ask() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((server.host, server.port))
            sock.settimeout(60)
            last = time.perf_counter()
            while not is_over.wait(0.001):
                sock.send(query(f"www.{ZONE}"))
                sock.recv(4096)
                now = time.perf_counter()
                gaps.append((now - last) * 1e3)
                last = now

    client = threading.Thread(target=ask)
    client.start()
    wall_s, _ = kudurru("zone", "import", str(file), "--data", str(folder / "data"))
    is_over.set()
    client.join()
    longest = ", ".join(f"{gap:.0f}" for gap in sorted(gaps, reverse=True)[:5])
    print(
        f"import of {count:,} records through the server: {wall_s:.1f} s; longest gaps between "
        f"answers meanwhile {longest} ms, median {statistics.median(gaps):.1f} ms"
    )


if __name__ == "__main__":
    main()
