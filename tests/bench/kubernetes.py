"""A cluster of 10,000 record sets on a real API server, and one node: how long its first start and
the next take, what it holds of memory, and what it asks of the API server when nothing happens.

    python -m tests.bench.kubernetes [--sets 10000] [--seconds 60] [--changes 50]

Prints figures beside the goals, asserts nothing. Wants the server of the Kubernetes tests
(`just kube-assets`). The sets have two endpoints and two labels, as those of the version before.
"""

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.store import PREFIX
from tests.blackbox.program import Serving, zone
from tests.kube.assets import NoAssets, build
from tests.kube.connections import connected
from tests.kube.installing import install
from tests.kube.server import ApiServer, api_server
from tests.kube.serving import apply, free_lease, serving_cluster

SETS = f"{PREFIX}/namespaces/default/dnsrecordsets"
ZONE = "cluster.example"
WRITERS = 32

Object = dict[str, Any]


def record_set(number: int, address: str = "") -> Object:
    owner = f"host-{number}.{ZONE}"
    addresses = [address or f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
                 f"192.0.2.{number % 250}"]  # fmt: skip
    return {
        "apiVersion": "kudurru.io/v1alpha1",
        "kind": "DNSRecordSet",
        "metadata": {
            "name": f"host-{number}",
            "labels": {"app": f"app-{number % 100}", "team": f"team-{number % 10}"},
        },
        "spec": {
            "zoneRef": {"name": ZONE},
            "endpoints": [
                {"dnsName": owner, "recordType": "A", "targets": addresses},
                {"dnsName": owner, "recordType": "TXT", "targets": [f"host-{number}"]},
            ],
        },
    }


async def write(server: ApiServer, count: int) -> None:
    async with connected(server, "admin") as shared:
        client = replace(shared, pace=None)
        numbers = iter(range(count))

        async def writer() -> None:
            for number in numbers:
                await client.request("POST", f"{SETS}?fieldManager=kubectl", record_set(number))

        await asyncio.gather(*(writer() for _ in range(WRITERS)))


async def list_all(client: Client, page: int) -> float:
    """Seconds per 1,000 objects, read in pages of a size."""
    begun, token, count = time.perf_counter(), "", 0
    while True:
        path = f"{SETS}?limit={page}" + (f"&continue={token}" if token else "")
        found = await client.get(path, dict)
        count += len(found["items"])
        token = found["metadata"].get("continue", "")
        if not token:
            return (time.perf_counter() - begun) * 1000 / count


async def listed(server: ApiServer) -> None:
    async with connected(server) as shared:
        for page in (100, 250, 500):
            seconds = await list_all(replace(shared, pace=None), page)
            say(f"list, pages of {page}", f"{seconds * 1e3:.0f} ms per 1,000 sets")


def say(what: str, figure: str, goal: str = "") -> None:
    print(f"{what:<42} {figure:>26}   {goal}", flush=True)


def memory(running: Serving) -> str:
    text = Path(f"/proc/{running.process.pid}/status").read_text()
    now, peak = (
        int(match[1]) >> 10
        for name in ("VmRSS", "VmHWM")
        if (match := re.search(rf"{name}:\s+(\d+)", text))
    )
    return f"{now} MiB, at most {peak} MiB"


def cpu_s(running: Serving) -> float:
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def metric(running: Serving, name: str) -> float:
    url = f"http://{running.addresses['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    found = re.search(rf"^kudurru_{name}(?:_total)? (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


def requests_by_verb(server: ApiServer) -> dict[str, int]:
    """What the API server was asked about our kinds, Events and Leases; it renews one of its own,
    every ten seconds."""
    text = server.call("GET", "/metrics", accept="text/plain")[1]
    counts: dict[str, int] = {}
    pattern = r"^apiserver_request_total\{([^}]*)\} (\d+)"
    for labels, count in re.findall(pattern, text, re.M):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if found["group"] == "kudurru.io" or found["resource"] in ("leases", "events"):
            key = f"{found['verb']} {found['resource']}"
            counts[key] = counts.get(key, 0) + int(count)
    return counts


@contextmanager
def node(server: ApiServer, folder: Path, what: str, name: str) -> Iterator[Serving]:
    begun = time.perf_counter()
    with serving_cluster(server, folder) as running:
        while "192.0.2.9" not in running.texts(name):
            time.sleep(0.01)
        say(f"{what}: to the first answer", f"{time.perf_counter() - begun:.2f} s")
        while metric(running, "cluster_synced") != 1:
            time.sleep(0.05)
        say(f"{what}: to in step", f"{time.perf_counter() - begun:.2f} s")
        say(f"{what}: processor, memory", f"{cpu_s(running):.1f} s, {memory(running)}")
        yield running


def changes(server: ApiServer, running: Serving, count: int) -> None:
    seen = []
    for number in range(count):
        address = f"198.51.100.{number % 250}"
        body = record_set(number, address)
        begun = time.perf_counter()
        apply(server, body)
        while address not in running.texts(f"host-{number}.{ZONE}"):
            time.sleep(0.001)
        seen.append(time.perf_counter() - begun)
    say("apply to changed answer, median", f"{statistics.median(seen) * 1e3:.1f} ms", "< 50 ms")
    say("apply to changed answer, longest", f"{max(seen) * 1e3:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--changes", type=int, default=50)
    chosen = parser.parse_args()
    try:
        binary = build()
    except NoAssets as error:
        sys.exit(str(error))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "node").mkdir()
        (folder / "api").mkdir()
        begun = time.perf_counter()
        with api_server(binary, folder / "api", ("account",)) as server:
            say("API server ready after", f"{time.perf_counter() - begun:.2f} s")
            measure(server, folder / "node", chosen)


def measure(server: ApiServer, folder: Path, chosen: argparse.Namespace) -> None:
    begun = time.perf_counter()
    install(server)
    say("definitions served after", f"{time.perf_counter() - begun:.2f} s")
    free_lease(server)
    apply(server, zone(ZONE))
    begun = time.perf_counter()
    asyncio.run(write(server, chosen.sets))
    say(f"{chosen.sets} record sets written in", f"{time.perf_counter() - begun:.1f} s")
    say("of one, as JSON", f"{len(msgspec.json.encode(record_set(4711)))} octets")
    asyncio.run(listed(server))
    name = f"host-9.{ZONE}"
    with node(server, folder, "first start", name) as running:
        time.sleep(15)  # until it leads, and the serial is given
        before, sent = requests_by_verb(server), metric(running, "cluster_requests")
        used = cpu_s(running)
        time.sleep(chosen.seconds)
        now = requests_by_verb(server)
        minutes = chosen.seconds / 60
        rate = (metric(running, "cluster_requests") - sent) / minutes
        say("requests of the node when it is quiet", f"{rate:.1f} a minute", "Leases and watches")
        for key in sorted(now):
            if now[key] != before.get(key, 0):
                say(f"   {key}", f"{(now[key] - before.get(key, 0)) / minutes:.1f} a minute")
        say("processor when it is quiet", f"{(cpu_s(running) - used) / chosen.seconds:.2%}")
        changes(server, running, chosen.changes)
    say("log", f"{sum(f.stat().st_size for f in (folder / 'data').glob('log.db*')) >> 20} MiB")
    with node(server, folder, "next start", f"host-{chosen.sets - 250 + 9}.{ZONE}"):
        pass


if __name__ == "__main__":
    main()
