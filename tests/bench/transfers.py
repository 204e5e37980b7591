"""AXFR of a large zone beside NSD: records a second, and what it costs in memory. Prints figures,
asserts nothing.

    python -m tests.bench.transfers [--records 1000000] [--signed]

Needs nsd for the one beside.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kudurru.adapters.clock import SystemClock
from kudurru.domain.dns import names, tsig
from kudurru.domain.dns.tsig import ALGORITHMS, TsigKey
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.kinds.zone import DNSZoneSpec, Transfer
from kudurru.domain.objects import Key
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.pipeline import Pipeline
from kudurru.projections.pipeline.signatures import Signatures
from kudurru.projections.pipeline.transfers import Transfers
from kudurru.projections.zone_history import ZoneHistory
from kudurru.projections.zone_state import ZoneState
from tests.bench.answers import build_zone
from tests.engines import make_engine
from tests.ports import free_port
from tests.transfers import transfer_query

ROOT = Path(__file__).parents[2]
ZONE = "home.example."
SOA = b"\x00\x06\x00\x01\x00\x00\x01\x2c"
"""Type, class and TTL of the zone's SOA. Without the TTL an address would look like it, 0.6.0.1."""
KEY = TsigKey(names.from_text("k1"), ALGORITHMS["hmac-sha256"], bytes(range(32)))

NSD = """\
server:
  ip-address: 127.0.0.1@{port}
  username: ""
  zonesdir: "{folder}"
  database: ""
  pidfile: "{folder}/pid"
  xfrdfile: "{folder}/xfrd"
  zonelistfile: "{folder}/list"
  xfrdir: "{folder}"
  logfile: "{folder}/log"
remote-control:
  control-enable: no
key:
  name: "k1"
  algorithm: hmac-sha256
  secret: "{secret}"
zone:
  name: "{zone}"
  zonefile: "{folder}/zone"
  provide-xfr: 127.0.0.1 NOKEY
  provide-xfr: 127.0.0.1 k1
"""


class OneZone:
    """As much of a zone view as a transfer asks for."""

    def __init__(self, zone: Zone) -> None:
        spec = DNSZoneSpec(zone_name=ZONE, transfer=Transfer(allow=["127.0.0.0/8"]))
        self._state = ZoneState(Key("DNSZone//home.example"), "", spec)
        self._state.zone = zone
        self.history = ZoneHistory()

    def serving(self, apex: names.Name) -> ZoneState | None:
        return self._state if apex == self._state.apex else None


def pipeline_of(zone: Zone) -> Pipeline:
    def raise_again(error: Exception) -> None:
        raise error

    view: Any = OneZone(zone)
    return Pipeline(
        ZoneSet([zone]),
        lambda: True,
        clock=SystemClock(),
        identity=Identity(),
        is_lameduck=lambda: False,
        on_exception=raise_again,
        signatures=Signatures({KEY.name: KEY}.get),
        transfers=Transfers(view),
    )


def serve(records: int) -> None:
    """Serve in this process until it is ended; print the port first."""
    zone = build_zone(records)
    zone.stamp(1)

    async def main() -> None:
        engine = make_engine("tcp", pipeline_of(zone))
        await engine.start()
        print(engine.addresses[0].rpartition(":")[2], flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


@contextmanager
def ours(records: int) -> Iterator[tuple[int, int]]:
    command = [sys.executable, "-m", "tests.bench.transfers", "--serve", "--records", str(records)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.terminate()


@contextmanager
def nsd(records: int, folder: Path) -> Iterator[tuple[int, int]]:
    port = free_port()
    with (folder / "zone").open("w") as file:
        file.write(f"$ORIGIN {ZONE}\n$TTL 300\n@ IN SOA ns1 admin 1 3600 600 86400 300\n")
        file.write("@ IN NS ns1\n")
        for i in range(records):
            file.write(f"host{i} IN A {'.'.join(map(str, i.to_bytes(4, 'big')))}\n")
    secret = b64encode(KEY.secret).decode()
    (folder / "conf").write_text(NSD.format(port=port, folder=folder, zone=ZONE, secret=secret))
    with subprocess.Popen(
        ["nsd", "-d", "-c", str(folder / "conf")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield port, process.pid
        finally:
            process.terminate()


def fetch(port: int, *, signed: bool) -> tuple[int, int, float]:
    """Records, octets and seconds of an AXFR; nothing is looked at but counts."""
    packet = transfer_query(ZONE).to_wire()
    if signed:
        packet, _ = tsig.sign_request(packet, KEY, int(time.time()))
    records = octets = soas = 0
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.sendall(len(packet).to_bytes(2, "big") + packet)
        with stream.makefile("rb", buffering=1 << 18) as file:
            while soas < 2:
                wire = file.read(int.from_bytes(file.read(2), "big"))
                octets += len(wire)
                records += int.from_bytes(wire[6:8], "big")
                soas += wire.count(SOA)
    return records, octets, time.perf_counter() - started


def cpu_seconds(pid: int) -> float:
    """Of a process and its children; those of NSD have children of their own."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(stat.parent.name) == pid or int(fields[1]) == pid:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def memory_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--serve", action="store_true")
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen.records)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, opened in (
            ("kudurru", ours(chosen.records)),
            ("nsd", nsd(chosen.records, Path(folder))),
        ):
            with opened as (port, pid):
                fetch(port, signed=False)  # which also waits until the zone is loaded
                before = memory_kib(pid)
                for signed in (False, True):
                    cpu_s = -cpu_seconds(pid)
                    records, octets, seconds = fetch(port, signed=signed)
                    cpu_s += cpu_seconds(pid)
                    print(
                        f"{name:8} {'signed' if signed else 'plain':7} {records:,} records, "
                        f"{octets / 1e6:.1f} MB in {seconds:.2f} s: "
                        f"{records / seconds / 1e3:,.0f} thousand records a second"
                        + (f"; {cpu_s / records * 1e6:.2f} µs of CPU each" if cpu_s else ""),
                        flush=True,
                    )
                grown = (memory_kib(pid) - before) / 1024
                print(f"{name:8} peak memory grew by {grown:.1f} MiB over two transfers")


if __name__ == "__main__":
    main()
