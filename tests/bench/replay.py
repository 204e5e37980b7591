"""A million events: verified, replayed, and started from, with a snapshot and without.

    python -m tests.bench.replay [--events 1000000] [--zones 1000]

The history is that of `tests.bench.restore`, kept in a folder of its own. Each figure is of a
process of its own, so that nothing is warm that would not be; CPU seconds hold on a busy machine.
Prints figures, asserts nothing.
"""

import argparse
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import dns.rcode
import msgspec

from kudurru.adapters.data_dir import open_data_dir
from kudurru.domain.events import OBJECT_APPLIED
from kudurru.domain.kinds.stored import read_record_set_body
from kudurru.domain.verify import verify
from kudurru.entrypoints import directory, snapshot_child, snapshots
from kudurru.entrypoints.cli.replay import replay_compared
from kudurru.entrypoints.wiring import Node
from tests.bench.restore import ROOT, cached

MIB = 2**20
PATIENCE_S = 600.0


def hash_all(data: Path, node: Node) -> None:
    """SHA-256 over every octet that the verifier hashes, in one go a row: what cannot be saved."""
    before = bytes(32)
    for row in node.log.rows():  # type: ignore[attr-defined]  # every log of ours has them
        before = sha256(row.entry + (row.body or b"") + (row.who or b"") + before).digest()


def floor(data: Path, node: Node) -> None:
    """Every row read, hashed as above, its entry and its body decoded, and nothing made of it."""
    hash_all(data, node)
    for event in node.log.read():
        if event.body is None:
            continue
        if event.type == OBJECT_APPLIED and event.key.startswith("DNSRecordSet/"):
            read_record_set_body(event.body)
        else:
            msgspec.json.decode(event.body)


def rebuild_objects(data: Path, node: Node) -> None:
    directory.replay(node, follower=node.views.follower_to("objects"))


def load(data: Path, node: Node) -> None:
    snapshots.load_snapshot(open_data_dir(data), node)


STEPS: dict[str, Callable[[Path, Node], object]] = {
    "rows": lambda data, node: sum(1 for _ in node.log.rows()),  # type: ignore[attr-defined]  # as above
    "sha256": hash_all,
    "floor": floor,
    "verify": lambda data, node: verify(node.log, trust=directory.trust_of()),  # type: ignore[arg-type]  # as above
    "objects": rebuild_objects,
    "replay": lambda data, node: directory.replay(node),
    "compared": lambda data, node: replay_compared(node, None),
    "load": load,
}


def run_step(name: str, data: Path) -> None:
    """In a process of its own: seconds, CPU seconds and resident octets on stdout."""
    with directory.open_reader(data) as node:
        wall, cpu = time.perf_counter(), time.process_time()
        STEPS[name](data, node)
        spent = time.perf_counter() - wall, time.process_time() - cpu
        # Not ru_maxrss, which begins with that of the process that started this one.
        status = Path("/proc/self/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    print(json.dumps([*spent, peak]))


def step(what: str, name: str, data: Path, events: int, goal: str = "") -> tuple[float, float]:
    line = [sys.executable, "-m", "tests.bench.replay", "--step", name, "--data", str(data)]
    out = subprocess.run(line, check=True, capture_output=True, env=environment()).stdout
    wall_s, cpu_s, peak = json.loads(out)
    print(
        f"{what:44} {wall_s:7.2f} s {cpu_s:7.2f} s CPU {events / cpu_s:>9,.0f}/s of CPU "
        f"{peak / MIB:6.0f} MiB  {goal}",
        flush=True,
    )
    return wall_s, cpu_s


def environment() -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "KUDURRU__HEALTH__LAMEDUCK": "0s",
    }


def replay_command(what: str, data: Path) -> None:
    """The command, which verifies in a process of its own while it rebuilds."""
    line = [sys.executable, "-m", "kudurru", "replay", "--verify", "--json", "--data", str(data)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(line, check=True, capture_output=True, env=environment())
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{what:44} {wall_s:7.2f} s {cpu_s:7.2f} s CPU  (goal 20 s on two free cores)", flush=True
    )


def start(what: str, data: Path, name: str, goal: str) -> None:
    """Seconds from the start of a server to its first answer for a zone, and until it is ready."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [sys.executable, "-m", "kudurru", "serve", "--data", str(data)]
    line += ["--dns", f"127.0.0.1:{port}"]
    for listener in ("http", "ops", "metrics"):
        line += [f"--{listener}", "127.0.0.1:0"]
    started = time.perf_counter()
    ready: list[float] = []
    with subprocess.Popen(
        line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:

        def wait_for_line() -> None:
            assert server.stdout is not None
            server.stdout.readline()
            ready.append(time.perf_counter() - started)

        reader = threading.Thread(target=wait_for_line, daemon=True)
        reader.start()
        while not answers(name, port):
            assert time.perf_counter() - started < PATIENCE_S
            time.sleep(0.002)
        first_s, first = time.perf_counter() - started, used(server.pid)
        reader.join(PATIENCE_S)
        print(
            f"{what:44} {first_s:7.2f} s, {first[0] / MIB:4.0f} MiB, {first[1]:5.2f} s CPU; ready "
            f"after {ready[0]:6.2f} s, {used(server.pid)[0] / MIB:4.0f} MiB  {goal}",
            flush=True,
        )
        server.send_signal(signal.SIGTERM)


def answers(name: str, port: int) -> bool:
    try:
        query = dns.message.make_query(name, "A")
        reply = dns.query.udp(query, "127.0.0.1", port=port, timeout=1.0)
    except (OSError, dns.exception.DNSException):
        return False
    return reply.rcode() == dns.rcode.NOERROR


def used(pid: int) -> tuple[int, float]:
    """Resident octets and CPU seconds of a process."""
    proc = Path(f"/proc/{pid}")
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"), cpu_s


def write_snapshot(data: Path) -> None:
    """The first one, as the process beside a server makes it, and one more."""
    for what in ("first snapshot, by a replay", "the next one, by the one before"):
        line = [sys.executable, "-m", snapshot_child.__name__, str(data)]
        started = time.perf_counter()
        subprocess.run(line, check=True, capture_output=True, env=environment())
        octets = open_data_dir(data).views.stat().st_size
        spent = time.perf_counter() - started
        print(f"{what:44} {spent:7.2f} s, niced; {octets / MIB:.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--zones", type=int, default=1_000)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step:
        run_step(asked.step, asked.data)
        return
    data, events = cached(asked.events, asked.zones), asked.events
    open_data_dir(data).views.unlink(missing_ok=True)
    step("rows read", "rows", data, events)
    plain = step("plain SHA-256 over the same rows", "sha256", data, events)
    least = step("rows read, hashed, decoded: the floor", "floor", data, events)
    full = step("verified: rows, chain, tree", "verify", data, events)
    print(f"{'verification beside plain SHA-256':44} x{full[1] / plain[1]:.1f} of its CPU")
    step("index of objects rebuilt", "objects", data, events)
    step("all views rebuilt", "replay", data, events)
    compared = step("all views rebuilt, every stamp compared", "compared", data, events)
    print(f"{'both beside the floor':44} x{(full[1] + compared[1]) / least[1]:.1f} of its CPU")
    replay_command("replay --verify: both, side by side", data)
    name = f"h7.zone{asked.zones // 2}.example"
    start("first answer from the log alone", data, name, "(goals 4 s, 600 MiB)")
    open_data_dir(data).views.unlink(missing_ok=True)
    write_snapshot(data)
    step("snapshot loaded", "load", data, events)
    start("first answer from a snapshot", data, name, "(goal 2 s)")


if __name__ == "__main__":
    main()
