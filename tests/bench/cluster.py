"""How soon what is applied in a cluster is what DNS answers, and how soon a node of it starts.

    python -m tests.bench.cluster [--changes 50]

Prints figures, asserts nothing. Wants the server of tests/kube (`just kube-assets`).
"""

import argparse
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.blackbox.program import Serving, records, wait_until, zone
from tests.kube.assets import build
from tests.kube.conftest import install
from tests.kube.server import ApiServer, machines
from tests.kube.serving import apply, free_lease, metric, serving_cluster
from tests.packets import query

ZONE = "lab.example"
NAME = f"bench.{ZONE}"
IDLE_S = 10


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=50)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "kube").mkdir()
        with machines(build(), folder / "kube", ("account",)) as found:
            server = found.server
            install(server)
            free_lease(server)
            apply(server, zone(ZONE))
            apply(server, a_set("192.0.2.1"))
            with serving_cluster(server, folder) as node:
                wait_until(lambda: node.texts(NAME) == ["192.0.2.1"])
                wait_until(lambda: node.texts(ZONE, "SOA"))
                show("to the new answer", [to_answer_ms(server, node, i) for i in
                                           range(given.changes)])  # fmt: skip
                show("to the new serial", [to_serial_ms(server, node, i) for i in range(20)])
                before = metric(node, "kudurru_cluster_requests_total")
                time.sleep(IDLE_S)
                idle = metric(node, "kudurru_cluster_requests_total") - before
                print(f"{'idle':>20}: {idle * 60 / IDLE_S:.0f} requests a minute")
            for _ in range(3):
                show_start("with the API server", server, folder)
            found.stop_api()
            for _ in range(3):
                show_start("without it", server, folder)


def a_set(address: str) -> dict[str, Any]:
    document = records("bench", ZONE, (NAME, "A", address))
    document["metadata"]["namespace"] = "default"
    return document


def to_answer_ms(server: ApiServer, node: Serving, i: int) -> float:
    """From the call that applies it to the first answer that has it. The API server's own part
    is in it."""
    address = f"10.1.{i >> 8}.{i & 255}"
    begun = time.perf_counter()
    apply(server, a_set(address))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((node.host, node.port))
        sock.settimeout(5)
        while True:
            sock.send(query(NAME))
            if socket.inet_aton(address) in sock.recv(4096):
                return (time.perf_counter() - begun) * 1e3


def to_serial_ms(server: ApiServer, node: Serving, i: int) -> float:
    before = node.texts(ZONE, "SOA")
    begun = time.perf_counter()
    apply(server, a_set(f"10.2.0.{i}"))
    while node.texts(ZONE, "SOA") == before:
        pass
    return (time.perf_counter() - begun) * 1e3


def show(what: str, times_ms: list[float]) -> None:
    times_ms.sort()
    middle, late = statistics.median(times_ms), times_ms[int(len(times_ms) * 0.99)]
    print(f"{what:>20}: median {middle:.0f} ms, 99 % {late:.0f} ms, of {len(times_ms)}")


def show_start(what: str, server: ApiServer, folder: Path) -> None:
    begun = time.perf_counter()
    with serving_cluster(server, folder) as node:
        assert node.texts(NAME)[0].startswith("10.")
        print(f"{f'start {what}':>20}: {time.perf_counter() - begun:.2f} s to the first answer")


if __name__ == "__main__":
    main()
