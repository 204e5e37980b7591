"""Time travel in a log of a million events: one zone as it was, and the plan of a restore.

    python -m tests.bench.restore [--events 1000000] [--zones 1000]

Each zone has 300 record sets, which are edited and stamped in turn, all zones at the same time: the
events of one zone lie scattered over the whole file. Prints medians, asserts nothing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import msgspec

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import open_data_dir
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain import zone_model
from kudurru.domain.codec import canonical
from kudurru.domain.dns import names
from kudurru.domain.dns.images import RRset
from kudurru.domain.dns.record_types import A
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.events import OBJECT_APPLIED, OBJECT_STATUS, ChangeSet, Event, Who
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.object_store import AppliedBody
from kudurru.domain.objects import key_of
from kudurru.domain.ports import EventLog
from kudurru.domain.restore import Scope
from kudurru.entrypoints import answering, restoring
from kudurru.entrypoints.asking import query_packet
from kudurru.entrypoints.restoring import RestoreRequest
from kudurru.projections import as_of

ROOT = Path(__file__).parents[2]
SETS = 300
BATCH = 2_000
ROUNDS = 15
HISTORY = 2
"""Number of the history that is kept; another one gets another."""
WHO = Who(actor="user:1000", source="bench")


def body(spec: dict[str, object], generation: int) -> bytes:
    return canonical(
        AppliedBody(
            uid="0d6a7f3c-2f0f-4a3e-9d57-1c2d3e4f5a6b",
            generation=generation,
            creation_timestamp="2026-01-01T00:00:00Z",
            spec=spec,
        )
    )


def events_of_zone(zone: str) -> Iterator[Event]:
    """The zone, its record sets, then edits and stamps for ever."""
    key = key_of("DNSZone", "", zone)
    spec = {"zoneName": f"{zone}.", "nameservers": [f"ns.{zone}."]}
    content = zone_of(spec)
    yield Event(OBJECT_APPLIED, key, 1, f"/{zone}", "kudurru", body(spec, 1))
    stamps, version = 0, 0
    while True:
        version += 1
        for i in range(SETS):
            yield record_set(zone, i, version)
            content.replace(names.from_text(f"h{i}.{zone}."), [address_of(i, version)])
            if version > 1 or i == SETS - 1:
                stamps += 1
                status = {
                    "serial": stamps,
                    "contentHash": content.digest(),
                    "recordCount": SETS + 1,
                }
                yield Event(
                    OBJECT_STATUS, key, 1 + stamps, f"/{zone}", "kudurru",
                    canonical({"status": status}),
                )  # fmt: skip


def zone_of(spec: dict[str, object]) -> Zone:
    """What replay makes of a DNSZone: so that a verifying one agrees with the stamps."""
    decoded = msgspec.convert(spec, DNSZoneSpec)
    zone = Zone(names.from_text(decoded.zone_name), zone_model.soa_of(decoded))
    zone.replace(zone.apex, zone_model.apex_rrsets(decoded))
    return zone


def address_of(i: int, version: int) -> RRset:
    return RRset(A, 300, (bytes((10, version % 256, i // 256, i % 256)),))


def record_set(zone: str, i: int, version: int) -> Event:
    address = f"10.{version % 256}.{i // 256}.{i % 256}"
    endpoint = {"dnsName": f"h{i}.{zone}.", "recordType": "A", "targets": [address]}
    spec = {"endpoints": [endpoint], "zoneRef": {"name": zone}}
    key = key_of("DNSRecordSet", "default", f"h{i}.{zone}")
    applied = body(spec, version)
    return Event(OBJECT_APPLIED, key, version, f"default/{zone}", "kudurru", applied)


def fill(log: EventLog, events: int, zones: int) -> None:
    streams = [events_of_zone(f"zone{z}.example") for z in range(zones)]
    now_us = 1_760_000_000_000_000
    for first in range(0, events, BATCH):
        sets = [
            ChangeSet((next(streams[n % zones]),), WHO)
            for n in range(first, min(events, first + BATCH))
        ]
        log.append(sets, now_us + first)


def show(what: str, goal: str, call: Callable[[], object]) -> None:
    call()
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    print(f"{what:52} {median(times) * 1e3:8.1f} ms   best {min(times) * 1e3:8.1f}   {goal}")


def command(*args: str) -> Callable[[], object]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    line = [sys.executable, "-m", "kudurru", *args]
    return lambda: subprocess.run(line, env=environment, check=True, capture_output=True)


def cached(events: int, zones: int) -> Path:
    """A data directory with such a history, made where there is none: that takes a minute."""
    base = Path(os.environ.get("KUDURRU_BENCH_CACHE") or Path.home() / ".cache/kudurru-bench")
    folder = base / f"history-{HISTORY}-{events}-{zones}"
    if folder.exists():
        return folder
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base) as name:
        unfinished = open_data_dir(Path(name) / "data", create=True)
        log = SQLiteEventLog.open(
            unfinished.log, entropy=SystemEntropy(), clock=SystemClock(), create=True
        )
        started = time.perf_counter()
        fill(log, events, zones)
        log.close()
        spent = time.perf_counter() - started
        print(f"{events:,} events of {zones} zones made in {spent:.0f} s, kept in {folder}")
        unfinished.path.rename(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--zones", type=int, default=1_000)
    asked = parser.parse_args()
    folder = cached(asked.events, asked.zones)
    log = SQLiteEventLog.open(folder / "log.db", entropy=SystemEntropy(), clock=SystemClock())
    bench(log, folder, f"zone{asked.zones // 2}.example", asked.events)
    log.close()


def bench(log: EventLog, folder: Path, zone: str, events: int) -> None:
    scope, then = Scope(zone=zone), events * 6 // 10
    own = sum(1 for _ in as_of.events_of(log, zone))
    print(f"{zone} has {own} events; asked for as of {then:,}")
    request = RestoreRequest(target=then, scope=scope)
    plan = restoring.plan_restore(log, request)
    packet = query_packet(f"h7.{zone}", "A", dnssec=False)
    key = key_of("DNSRecordSet", "default", f"h7.{zone}")
    show("one object as of", "", lambda: as_of.find(log, key, then))
    show("objects of one zone as of", "goal 10", lambda: as_of.objects(log, scope, then))
    show("answer as of", "", lambda: answering.answer_as_of(log, then, packet))
    show("zone export as of", "", lambda: answering.export_as_of(log, then, zone))
    show(f"plan of a restore, {len(plan.steps)} of {SETS} objects differ", "goal 20",
         lambda: restoring.plan_restore(log, request))  # fmt: skip
    show("  with differences and serials, as it is shown", "",
         lambda: restoring.describe(log, restoring.plan_restore(log, request), 0))  # fmt: skip
    data = ("--data", str(folder))
    show("kudurru version, for comparison", "", command("version"))
    show("kudurru query --at", "", command("query", f"h7.{zone}", "--at", str(then), *data))
    at = ("--at", str(then), *data)
    show("kudurru restore --zone (plan)", "", command("restore", "--zone", zone, *at))


if __name__ == "__main__":
    main()
