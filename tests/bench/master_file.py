"""Reading and writing a master file of 100,000 mixed records, beside named-compilezone and
nsd-checkzone, and dnspython on a slice. Figures are CPU time; nothing is asserted.

Run: python -m tests.bench.master_file [records]
"""

import gc
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dns.zone

from kudurru.domain.dns import master_file, names, zone_rules

RECORDS = 100_000
SLICE = 5_000
ORIGIN = "bench.example."
PEERS = (
    ("named-compilezone", "-k", "ignore", "-i", "none", "-o", "/dev/null"),
    ("nsd-checkzone",),
)


def zone_text(count: int) -> str:
    """A zone of about `count` records: addresses, aliases, mail, text, services, a few rare ones,
    comments and parentheses here and there."""
    lines = [
        f"$ORIGIN {ORIGIN}",
        "$TTL 3600",
        "@ IN SOA ns1 hostmaster ( 2024010101 ; serial",
        "    7200 900 1209600 300 )",
        "@ IN NS ns1",
        "@ IN NS ns2",
        "ns1 IN A 192.0.2.1",
        "ns2 IN A 192.0.2.2",
        "mx1 IN A 192.0.2.3",
        "mx2 IN A 192.0.2.4",
    ]
    i = 0
    while len(lines) < count + 3:
        i += 1
        host = f"host{i:06d}"
        lines += [
            f"{host} 300 IN A 10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}",
            f"{host} IN AAAA 2001:db8:{i & 0xFFFF:x}::{i >> 16:x}",
            f"www.{host}\tIN\tCNAME\t{host}",
            f"{host} IN MX 10 mx1",
            f"  MX 20 mx2.{ORIGIN}",
            f'{host} IN TXT "v=spf1 mx ip4:192.0.2.{i & 255} -all"',
        ]
        if i % 4 == 0:
            lines.append(f"_sip._tcp.{host} 600 IN SRV 10 60 5060 {host} ; telephony")
        if i % 8 == 0:
            lines.append(f'{host} IN CAA 0 issue "ca.example.net"')
            lines.append(f"{i} IN PTR {host}.{ORIGIN}")
        if i % 32 == 0:
            lines.append(f"{host} IN HTTPS 1 . alpn=h2,h3 ipv4hint=192.0.2.{i & 255}")
            lines.append(f"_443._tcp.{host} IN TLSA 3 1 1 {'0d' * 32}")
    return "\n".join(lines) + "\n"


def cpu_s(work: Callable[[], object]) -> float:
    gc.collect()
    started = time.process_time()
    work()
    return time.process_time() - started


def command_cpu_s(*command: str) -> float | None:
    if shutil.which(command[0]) is None:
        return None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def show(what: str, seconds: float | None, count: int) -> None:
    figure = "not installed" if seconds is None else f"{seconds / count * 1e6:8.2f} µs per record"
    print(f"{what:32} {figure}")


def main(count: int = RECORDS) -> None:
    text = zone_text(count)
    data = text.encode()
    origin = names.from_text(ORIGIN)
    before = resident_bytes()
    found = master_file.read(data, file="bench", origin=origin)
    total = len(found.records)
    print(f"{total} records, {len(data)} octets")
    print(f"{'resident':32} {(resident_bytes() - before) / total:8.0f} bytes per record")
    read_s = min(cpu_s(lambda: master_file.read(data, file="bench")) for _ in range(3))
    show("kudurru read", read_s, total)
    show("kudurru check_zone", cpu_s(lambda: zone_rules.check_zone(found.records, origin)), total)
    show("kudurru write", cpu_s(lambda: list(master_file.write(found.records, origin))), total)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.zone"
        written = Path(folder) / "written.zone"
        path.write_bytes(data)
        written.write_text("".join(master_file.write(found.records, origin)))
        for peer in PEERS:
            show(peer[0], command_cpu_s(*peer, ORIGIN, str(path)), total)
            show(f"{peer[0]} (our write)", command_cpu_s(*peer, ORIGIN, str(written)), total)
    part = zone_text(SLICE)
    part_total = len(master_file.read(part, file="slice").records)
    dnspython_s = cpu_s(lambda: dns.zone.from_text(part, ORIGIN, relativize=False))
    show(f"dnspython ({part_total} records)", dnspython_s, part_total)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
