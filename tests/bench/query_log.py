"""Answers from the cache and blocked ones, as a resolver gives them that filters, limits and logs:
CPU per query beside unbound and dnsdist. Prints figures, asserts nothing.

    python -m tests.bench.query_log [--seconds 3] [--rounds 3] [--rate 10000] [--first]

The first two tables are at full speed: ours with a policy, the limiter (nobody exempt, levels
high), metrics and one query in a hundred logged, beside peers that do neither limit nor log, and
beside a loop in C that answers without looking (`floor.c`): less than that costs no server. In the
others, at `--rate`, every query is logged, by the peers in their own ways: files of unbound and
dnsdist, and dnsdist's protobuf, whose reader is not counted. Ours are all of it, with the process
that writes, until it is done. `--first` is as in `engine`. Needs dnsperf, knot, unbound, dnsdist.
"""

import argparse
import json
import re
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.bench.asker import floor
from tests.bench.engine import claim_processors
from tests.bench.forward import (
    DNSDIST,
    KNOT,
    NAMES,
    UNBOUND,
    WINDOW,
    ZONE,
    cpu_s,
    running,
    write_questions,
)
from tests.blackbox.program import Serving, kudurru, serving
from tests.ports import free_port

NOBODY_EXEMPT = "ratelimit: {exempt: [], ipv4: {32: 1000000000, 24: 1000000000}}\n"
POLICY = {
    "apiVersion": "kudurru.io/v1alpha1",
    "kind": "Policy",
    "metadata": {"name": "everybody"},
    "spec": {"deny": ["*.ads.example"]},
}
BLOCKED_UNBOUND = 'server:\n  local-zone: "ads.example." always_null\n'
BLOCKED_DNSDIST = 'addAction({{"ads.example."}}, SpoofAction({{"0.0.0.0", "::"}}))\n'
LOG_UNBOUND = '  log-queries: yes\n  logfile: "{folder}/unbound.log"\n'
LOG_FILE = 'addAction(AllRule(), LogAction("{folder}/dnsdist.log", true, true, true))\n'
LOG_PROTOBUF = 'addAction(AllRule(), RemoteLogAction(newRemoteLogger("127.0.0.1:{sink}")))\n'
IDLE_S = 0.5
"""Without work the writer of a log is done."""


class Server(NamedTuple):
    port: int
    pid: int
    is_logging_all: bool
    ours: Serving | None = None


def children(pid: int) -> Iterator[int]:
    """A process and those below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from children(int(child))


def tree_cpu_s(pid: int) -> float:
    return sum(map(cpu_s, children(pid)))


def settled_cpu_s(pid: int) -> float:
    """CPU time once there is nothing left to do."""
    while True:
        before = tree_cpu_s(pid)
        time.sleep(IDLE_S)
        if tree_cpu_s(pid) - before <= 0.02:
            return before


@contextmanager
def sink() -> Iterator[int]:
    """The port of somebody who takes whatever comes."""

    def drain(connection: socket.socket) -> None:
        with suppress(OSError):
            while connection.recv(1 << 20):
                pass

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=drain, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


@contextmanager
def ours(folder: Path, upstream: int, one_in: int) -> Iterator[Server]:
    folder /= f"ours-{one_in}"
    folder.mkdir()
    (folder / "policy.json").write_text(json.dumps(POLICY))
    kudurru("apply", "--data", folder / "data", "-f", folder / "policy.json")
    settings = folder / "settings.yaml"
    settings.write_text(
        f'upstreams: {{groups: {{default: ["127.0.0.1:{upstream}"]}}}}\n'
        f"cache: {{persistInterval: 0s}}\nquerylog: {{sample: {one_in}}}\n{NOBODY_EXEMPT}"
        "listeners: {sockets: 1}\n"
    )
    with serving(folder / "data", "--config", str(settings)) as server:
        yield Server(server.port, server.process.pid, one_in == 1, server)


@contextmanager
def contestants(folder: Path) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        upstream = free_port()
        (folder / "zone").write_text("$ORIGIN bench.example.\n" + ZONE)
        (folder / "knot.conf").write_text(KNOT.format(folder=folder, port=upstream))
        stack.enter_context(running(["knotd", "-c", str(folder / "knot.conf")], upstream))
        given = {"folder": folder, "upstream": upstream, "sink": stack.enter_context(sink())}
        found = {
            "ours, 1 in 100": stack.enter_context(ours(folder, upstream, 100)),
            "ours, all": stack.enter_context(ours(folder, upstream, 1)),
        }
        unbound, dnsdist = ["unbound", "-d", "-c"], ["dnsdist", "--supervised", "-C"]
        for name, command, text in (
            ("unbound", unbound, UNBOUND + BLOCKED_UNBOUND),
            ("dnsdist", dnsdist, BLOCKED_DNSDIST + DNSDIST),
            ("unbound, file", unbound, UNBOUND + BLOCKED_UNBOUND + LOG_UNBOUND),
            ("dnsdist, file", dnsdist, LOG_FILE + BLOCKED_DNSDIST + DNSDIST),
            ("dnsdist, protobuf", dnsdist, LOG_PROTOBUF + BLOCKED_DNSDIST + DNSDIST),
        ):
            port = free_port()
            path = folder / f"{name.replace(', ', '-')}.conf"
            path.write_text(text.format(**given, port=port))
            pid = stack.enter_context(running([*command, str(path)], port))
            found[name] = Server(port, pid, "," in name)
        for name, joined in (("floor", []), ("floor, joined", ["joined"])):
            port = free_port()
            command = [str(floor(folder)), str(port), *joined]
            found[name] = Server(port, stack.enter_context(running(command, port)), False)
        yield found


def measure(server: Server, questions: Path, seconds: float, rate: int = 0) -> float:
    """Microseconds of CPU for each answered question."""
    before = settled_cpu_s(server.pid)
    command = ["dnsperf", "-s", "127.0.0.1", "-p", str(server.port), "-d", str(questions)]
    command += ["-l", str(seconds), "-c", "4", "-q", str(WINDOW)]
    command += ["-Q", str(rate)] if rate else []
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answered = int(re.findall(r"Queries completed: +(\d+)", out)[0])
    return (settled_cpu_s(server.pid) - before) / max(answered, 1) * 1e6


def warm(server: Server, questions: Path) -> None:
    """Ask everything three times: first it is fetched, then found, then repeated."""
    command = ["dnsperf", "-s", "127.0.0.1", "-p", str(server.port), "-d", str(questions)]
    command += ["-n", "3", "-c", "4", "-q", str(WINDOW)]
    subprocess.run(command, capture_output=True, check=True)


def dropped(server: Serving) -> int:
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as page:
        found = re.findall(r"querylog_dropped_total\{.*\} (.*)", page.read().decode())
    return sum(int(float(one)) for one in found)


def compare(
    title: str, servers: dict[str, Server], questions: Path, given: argparse.Namespace, rate: int
) -> None:
    print(f"\n{title}: us of CPU per query, median; ours/this, median of rounds", flush=True)
    rounds = [
        {name: measure(one, questions, given.seconds, rate) for name, one in servers.items()}
        for _ in range(given.rounds)
    ]
    first = next(iter(servers))
    for name in servers:
        cost = statistics.median(one[name] for one in rounds)
        ratio = statistics.median(one[first] / one[name] for one in rounds)
        print(f"{name:<20}{cost:>8.2f}{ratio:>8.2f}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--first", action="store_true", help="before all other work of the machine")
    parser.add_argument("--lean", action="store_true", help="the first two tables only")
    given = parser.parse_args(arguments)
    if given.first:
        claim_processors()
    with tempfile.TemporaryDirectory() as name, contestants(Path(name)) as servers:
        kinds = {
            "from the cache": write_questions(Path(name) / "cached", "w", NAMES),
            "blocked": Path(name) / "blocked",
        }
        names = (f"b{i}.ads.example A\n" for i in range(NAMES))
        kinds["blocked"].write_text("".join(names))
        for server in servers.values():
            for questions in kinds.values():
                warm(server, questions)
        lean = {one: server for one, server in servers.items() if not server.is_logging_all}
        logging = {one: server for one, server in servers.items() if server.is_logging_all}
        for kind, questions in kinds.items():
            compare(f"{kind}, 1 in 100 logged beside none", lean, questions, given, 0)
        if given.lean:
            return
        before = [dropped(one.ours) for one in servers.values() if one.ours]
        for kind, questions in kinds.items():
            title = f"{kind}, all logged, {given.rate} a second"
            compare(title, logging, questions, given, given.rate)
        after = [dropped(one.ours) for one in servers.values() if one.ours]
        print(f"\nof ours {sum(after) - sum(before)} were not logged in the last two")


if __name__ == "__main__":
    main()
