"""Questions that nobody asks twice, over a zone that is larger than the table of answers: CPU per
query and memory beside Knot, and how soon a change is answered meanwhile. Prints figures, asserts
nothing.

    python -m tests.bench.misses [--records 1000000] [--seconds 4] [--rounds 3] [--peer nsd]

Needs dnsperf and knot, and `dnsbench.py` as tests.bench.engine does. The real program serves what
it imported, without a query log, which Knot has not. An import of a million records takes a minute
or two; `--data` names a directory that keeps it.
"""

import argparse
import os
import random
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kudurru.entrypoints.rpc import connect
from tests.bench.engine import dnsbench
from tests.bench.spine import kudurru
from tests.bench.visible import load, show, times_ms
from tests.blackbox.program import Serving, serving
from tests.ports import free_port

ZONE = "home.example"
HITS, NONE = "q-random.txt", "q-none.txt"
QUIET = {
    "KUDURRU__QUERYLOG__ENABLED": "false",
    "KUDURRU__RATELIMIT__EXEMPT": "[]",
    "KUDURRU__RATELIMIT__IPV4": '{"32": 1000000000, "24": 1000000000}',
}
"""Every query is counted by the limiter, and none limited."""

KNOT = """\
server:
  listen: 127.0.0.1@{port}
  udp-workers: 1
  tcp-workers: 1
  background-workers: 1
  rundir: {folder}/knotrun
database:
  storage: {folder}/knotdb
log:
  - target: stderr
    any: error
zone:
  - domain: home.example
    storage: {folder}
    file: home.zone
    zonefile-sync: -1
    journal-content: none
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--peer", action="append", default=[], help="nsd, named, floor")
    parser.add_argument("--data", type=Path, help="a directory that keeps what is imported")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        dnsbench("zone", scratch, "--names", str(given.records))
        write_questions(folder, given.records)
        data = given.data or folder / "data"
        if not data.exists():
            kudurru("zone", "import", str(folder / "home.zone"), "--data", str(data))
        with serving(data, env=QUIET) as server, knot(folder) as peer:
            took_s = until_known(server, given.records)
            print(f"all {given.records:,} names are answered {took_s:.1f} s after it is ready")
            for questions, title in ((HITS, "every name"), (NONE, "names that are not there")):
                print(f"\n{title}: CPU per query; first/this: ours beside that server", flush=True)
                dnsbench(
                    "run", scratch, "--queries", questions,
                    "--seconds", str(given.seconds), "--rounds", str(given.rounds),
                    "--server", f"ours:{server.port}:{server.process.pid}",
                    "--server", "knot:{}:{}".format(*peer),
                    *(part for one in given.peer for part in ("--peer", one)),
                )  # fmt: skip
            ours, theirs = resident(server.process.pid), resident(peer[1])
            print(
                f"\nresident: ours {ours >> 20} MiB, Knot {theirs >> 20} MiB, {ours / theirs:.2f}"
            )
            beside_changes(server, data, folder, given.changes)


def write_questions(folder: Path, records: int) -> None:
    rng = random.Random(7)
    hosts = list(range(records))
    rng.shuffle(hosts)
    with (folder / HITS).open("w") as file:
        file.writelines(f"host{host}.{ZONE} A\n" for host in hosts)
    with (folder / NONE).open("w") as file:
        file.writelines(f"none{host}.{ZONE} A\n" for host in hosts)


@contextmanager
def knot(folder: Path) -> Iterator[tuple[int, int]]:
    """Its port and pid, once it has read the zone."""
    port = free_port()
    for name in ("knotrun", "knotdb"):
        (folder / name).mkdir()
    configuration = folder / "knot.conf"
    configuration.write_text(KNOT.format(port=port, folder=folder))
    with subprocess.Popen(["knotd", "-c", str(configuration)], stderr=subprocess.DEVNULL) as peer:
        before = -1
        while resident(peer.pid) != before:  # it stands still
            before = resident(peer.pid)
            time.sleep(2)
        yield port, peer.pid
        peer.terminate()


def until_known(server: Serving, records: int) -> float:
    started = time.monotonic()
    url = f"http://{server.addresses['metrics']}/metrics"
    pattern = re.compile(r"^kudurru_dns_engine_zones\{state=\"answered\"\} 1", re.MULTILINE)
    while True:
        with urllib.request.urlopen(url) as page:
            if pattern.search(page.read().decode()):
                return time.monotonic() - started
        if time.monotonic() - started > 60:
            print(f"the zone of {records:,} records is not answered by the engine's threads")
            return time.monotonic() - started
        time.sleep(0.1)


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def beside_changes(server: Serving, data: Path, folder: Path, changes: int) -> None:
    service = connect(data / "kudurru.sock")
    assert service is not None, "it serves"
    print()
    with service, load(server, folder / HITS):
        show("misses beside it", times_ms(server, service, changes, folder, ZONE))


if __name__ == "__main__":
    main()
