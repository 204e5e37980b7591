"""CPU per query of the resolver: answers from the cache, and questions that go to an upstream,
beside unbound and dnsdist with the same upstream (Knot). Prints figures, asserts nothing.

    python -m tests.bench.forward [--seconds 5] [--rounds 2]

Needs dnsperf and knot; unbound and dnsdist as peers where they are installed.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dns.message
import dns.query

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
NAMES = 10_000
WINDOW = 100

ZONE = "$TTL 3600\n@ SOA ns h 1 7200 900 1209600 60\n@ NS ns\nns A 192.0.2.53\n* A 192.0.2.1\n"
KNOT = """\
server:
    rundir: "{folder}"
    listen: 127.0.0.1@{port}
database:
    storage: "{folder}"
zone:
  - domain: "bench.example."
    file: "{folder}/zone"
    zonefile-load: whole
    journal-content: none
"""
UNBOUND = """\
server:
  interface: 127.0.0.1@{port}
  do-daemonize: no
  username: ""
  chroot: ""
  pidfile: ""
  directory: "{folder}"
  use-syslog: no
  num-threads: 1
  module-config: "iterator"
  do-not-query-localhost: no
  so-reuseport: no
  outgoing-range: 4096
  num-queries-per-thread: 2048
forward-zone:
  name: "."
  forward-addr: 127.0.0.1@{upstream}
remote-control:
  control-enable: no
"""
DNSDIST = """\
setLocal("127.0.0.1:{port}")
newServer{{address="127.0.0.1:{upstream}", healthCheckMode="up"}}
getPool(""):setCache(newPacketCache(500000))
"""


@contextmanager
def running(command: list[str], port: int, **options: object) -> Iterator[int]:
    """A server: its process id, once it answers."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload]  # as Popen takes them
    )
    try:
        query = dns.message.make_query("x.bench.example", "A")
        for _ in range(200):
            try:
                dns.query.udp(query, "127.0.0.1", port=port, timeout=0.2)
                break
            except (dns.exception.Timeout, OSError):
                time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def contestants(folder: Path) -> Iterator[dict[str, tuple[int, int]]]:
    """Port and process id of each server, all with Knot behind them."""
    with ExitStack() as stack:
        upstream = free_port()
        (folder / "zone").write_text("$ORIGIN bench.example.\n" + ZONE)
        (folder / "knot.conf").write_text(KNOT.format(folder=folder, port=upstream))
        stack.enter_context(running(["knotd", "-c", str(folder / "knot.conf")], upstream))
        found = {}
        port = free_port()
        settings = folder / "settings.yaml"
        settings.write_text(
            f'upstreams: {{groups: {{default: ["127.0.0.1:{upstream}"]}}}}\n'
            "cache: {persistInterval: 0s}\n"
        )
        command = [sys.executable, "-m", "kudurru", "serve", "--data", str(folder / "data")]
        command += ["--config", str(settings), "--dns", f"127.0.0.1:{port}"]
        for listener in ("http", "ops", "metrics"):
            command += [f"--{listener}", "127.0.0.1:0"]
        environment = os.environ | {
            "PYTHONPATH": str(ROOT / "src"),
            "KUDURRU__HEALTH__LAMEDUCK": "0s",
        }
        found["kudurru"] = port, stack.enter_context(running(command, port, env=environment))
        for name, text, args in (
            ("unbound", UNBOUND, ["-d", "-c"]),
            ("dnsdist", DNSDIST, ["--supervised", "--disable-syslog", "-C"]),
        ):
            if shutil.which(name) is None:
                print(f"{name} is not installed")
                continue
            port = free_port()
            path = folder / f"{name}.conf"
            path.write_text(text.format(folder=folder, port=port, upstream=upstream))
            found[name] = port, stack.enter_context(running([name, *args, str(path)], port))
        yield found


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def measure(port: int, pid: int, questions: Path, seconds: float) -> tuple[float, float]:
    """Microseconds of CPU for each answered question, and answers a second."""
    before = cpu_s(pid)
    command = ["dnsperf", "-s", "127.0.0.1", "-p", str(port), "-d", str(questions)]
    command += ["-l", str(seconds), "-c", "4", "-q", str(WINDOW)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shown = dict(line.strip().split(":", 1) for line in out.splitlines() if ":" in line)
    answered = int(shown["Queries completed"].split()[0])
    return (cpu_s(pid) - before) / max(answered, 1) * 1e6, answered / seconds


def write_questions(path: Path, prefix: str, count: int) -> Path:
    path.write_text("".join(f"{prefix}{i}.bench.example A\n" for i in range(count)))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contestants(Path(name)) as servers:
        warm = write_questions(Path(name) / "warm", "w", NAMES)
        print(f"{'':<10}{'cached':>12}{'forwarded':>12}   us of CPU for each question")
        figures: dict[str, list[list[float]]] = {one: [[], []] for one in servers}
        for port, pid in servers.values():
            measure(port, pid, warm, 1.5)
        for round_ in range(given.rounds):
            for one, (port, pid) in servers.items():
                figures[one][0].append(measure(port, pid, warm, given.seconds)[0])
                cold = write_questions(Path(name) / "cold", f"c{round_}-{one}-", 400_000)
                figures[one][1].append(measure(port, pid, cold, given.seconds)[0])
        for one, (cached, forwarded) in figures.items():
            print(
                f"{one:<10}{statistics.median(cached):>12.1f}{statistics.median(forwarded):>12.1f}"
            )
        ours = figures.pop("kudurru")
        for one, (cached, forwarded) in figures.items():
            ratios = [
                statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
                for mine, theirs in zip(ours, (cached, forwarded), strict=True)
            ]
            print(f"{'to ' + one:<10}{ratios[0]:>12.1f}{ratios[1]:>12.1f}   times, round by round")


if __name__ == "__main__":
    main()
