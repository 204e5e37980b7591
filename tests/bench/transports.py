"""CPU per query over TCP, TLS, HTTPS and QUIC beside other servers, persistent connections, rounds
in turns: medians and their ratios. Goals: over TCP at most twice what Knot takes, over TLS and
HTTPS at most twice what dnsdist does. Prints figures, asserts nothing.

    python -m tests.bench.transports [--seconds 2] [--rounds 3] [--only https]

Needs dnsperf, and knot, bind9 and dnsdist for those beside. dnsdist answers from its packet cache,
as we do from our table; BIND and Knot compose each answer. The real pipeline answers what is not
known. HTTPS is asked by clients of our own (doh_load.py), by GET and POST, with 1, 10 and 100 under
way on each of four connections: a stub has one or a few, a browser that loads a page has ten. Each
round is held against the one beside it, since others use the machine.
"""

import argparse
import asyncio
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median

from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_native import AnswerTable
from kudurru.adapters.sockets import split_address
from tests.bench.answers import build_zone, pipeline_of
from tests.bench.doh_load import Asking, Manner
from tests.certificates import write_pair
from tests.dns_clients import open_doq, open_http3, post
from tests.engines import make_engine
from tests.packets import query

ROOT = Path(__file__).parents[2]
NAMES = 1000
QUERIES = 20_000  # of a round over HTTPS: a multiple of what all clients ask at once
PROTOCOLS = ("tcp", "tls", "https", "h3", "quic")
MODES = {"tcp": "tcp", "tls": "dot"}  # of dnsperf
MANNERS = {
    "tcp": {"": Manner()},
    "tls": {"": Manner()},
    "https": {
        **{f"POST {at_once}": Manner("POST", at_once) for at_once in (1, 10, 100)},
        **{f"GET {at_once}": Manner("GET", at_once) for at_once in (1, 10, 100)},
        "GET 10 indexed": Manner("GET", 10, is_indexed=True),
        "HTTP/1.1 POST": Manner("POST", 1, is_http1=True),
        "HTTP/1.1 GET": Manner("GET", 1, is_http1=True),
    },
    "h3": {"": Manner()},
    "quic": {"": Manner()},
}


def serve() -> None:
    """Serve in this process until it is ended; print the addresses first."""
    zone = build_zone(NAMES)
    zone.stamp(1)

    async def main() -> None:
        table = AnswerTable() if engine_native.is_available() else None
        pipeline = pipeline_of(zone)
        engines = [
            make_engine(proto, pipeline, memo=None if table is None else table.new_scope())
            for proto in PROTOCOLS
        ]
        for engine in engines:
            await engine.start()
        print(*(engine.addresses[0].rpartition(":")[2] for engine in engines), flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


Ports = dict[str, int]


@contextmanager
def ours() -> Iterator[tuple[Ports, int]]:
    command = [sys.executable, "-m", "tests.bench.transports", "--serve"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            ports = map(int, process.stdout.readline().split())
            yield dict(zip(PROTOCOLS, ports, strict=True)), process.pid
        finally:
            process.terminate()


@contextmanager
def peer(command: list[str], ports: Ports) -> Iterator[tuple[Ports, int]]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for port in ports.values():
                wait_for(port)
            yield ports, process.pid
        finally:
            process.terminate()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def knot(folder: Path) -> AbstractContextManager[tuple[Ports, int]]:
    port = free_port()
    (folder / "knot.conf").write_text(
        f"server:\n  listen: 127.0.0.1@{port}\n  udp-workers: 1\n  tcp-workers: 1\n"
        f"  background-workers: 1\n  rundir: {folder}\ndatabase:\n  storage: {folder}/knotdb\n"
        f"zone:\n  - domain: home.example\n    storage: {folder}\n    file: home.zone\n"
        "    zonefile-sync: -1\n    journal-content: none\n"
    )
    return peer(["knotd", "-c", f"{folder}/knot.conf"], {"tcp": port})


def bind(folder: Path) -> AbstractContextManager[tuple[Ports, int]]:
    ports = {proto: free_port() for proto in (*MODES, "https")}
    on = "{ 127.0.0.1; }"
    (folder / "named.conf").write_text(
        f'tls t {{ cert-file "{folder}/cert.pem"; key-file "{folder}/key.pem"; }};\n'
        f'options {{ directory "{folder}"; pid-file none; recursion no; dnssec-validation no;\n'
        f"listen-on-v6 {{ none; }}; listen-on port {ports['tcp']} {on};\n"
        f"listen-on port {ports['tls']} tls t {on};\n"
        f"listen-on port {ports['https']} tls t http default {on}; }};\n"
        f'controls {{}};\nzone "home.example" {{ type primary; file "{folder}/home.zone"; }};\n'
    )
    return peer(["named", "-n", "1", "-f", "-c", f"{folder}/named.conf"], ports)


def dnsdist(folder: Path, backend: int) -> AbstractContextManager[tuple[Ports, int]]:
    ports = {"tcp": free_port(), "tls": free_port(), "https": free_port()}
    files = f'"{folder}/cert.pem", "{folder}/key.pem"'
    (folder / "dnsdist.conf").write_text(
        f'setSecurityPollSuffix("")\nsetLocal("127.0.0.1:{ports["tcp"]}")\n'
        f'addTLSLocal("127.0.0.1:{ports["tls"]}", {files})\n'
        f'addDOHLocal("127.0.0.1:{ports["https"]}", {files}, "/dns-query")\n'
        f'newServer("127.0.0.1:{backend}")\n'
        'getPool(""):setCache(newPacketCache(100000))\n'
    )
    return peer(["dnsdist", "-C", f"{folder}/dnsdist.conf", "--supervised"], ports)


def cpu_s(pid: int) -> float:
    """Of all threads that live, exactly."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in threads) / 1e9


def load(
    proto: str, manner: Manner, port: int, pid: int, questions: Path, seconds: float
) -> tuple[float, float]:
    """Answers a second, and CPU µs of each. Raises OSError where the server does not speak it."""
    if proto == "https":
        return load_https(manner, port, pid)
    before, began = cpu_s(pid), time.monotonic()
    if proto in ("h3", "quic"):
        done = asyncio.run(load_quic(proto, port, seconds))
    else:
        shown = subprocess.run(
            ["dnsperf", "-m", MODES[proto], "-s", "127.0.0.1", "-p", str(port), "-d", questions,
             "-l", str(max(1, round(seconds))), "-c", "4", "-q", "40"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        done = int(re.findall(r"Queries completed: +(\d+)", shown)[0])
    return done / (time.monotonic() - began), (cpu_s(pid) - before) / done * 1e6


def load_https(manner: Manner, port: int, pid: int) -> tuple[float, float]:
    """So many questions, whatever time it takes: connecting does not count, nor what is not known
    yet."""
    asking = Asking(port, names=NAMES, manner=manner)
    count = QUERIES // 5 if manner.at_once == 1 or manner.is_indexed else QUERIES
    try:
        before, began = cpu_s(pid), time.monotonic()
        asking.ask(count)
        return count / (time.monotonic() - began), (cpu_s(pid) - before) / count * 1e6
    finally:
        asking.close()


async def load_quic(proto: str, port: int, seconds: float) -> int:
    """The same by a client of our own, for want of another; it costs more than the server."""
    done = 0
    deadline = time.monotonic() + seconds
    packets = [query(f"host{number}.home.example", ident=0) for number in range(20)]
    opened = open_doq if proto == "quic" else open_http3
    async with opened(split_address(f"127.0.0.1:{port}")) as client:
        while time.monotonic() < deadline:
            if proto == "quic":
                await asyncio.gather(*map(client.ask, packets))
            else:
                await asyncio.gather(*(client.request(*post(one)) for one in packets))
            done += len(packets)
    return done


Round = tuple[float, float]
"""Queries a second, and CPU µs of each."""


def compare(
    proto: str,
    how: str,
    manner: Manner,
    servers: Mapping[str, tuple[Ports, int]],
    questions: Path,
    seconds: float,
    rounds: int,
) -> None:
    """Measure those that speak it in turns, and print medians; the first one is ours."""
    seen: dict[str, list[Round]] = {}
    for number in range(rounds + 1):
        for server, (ports, pid) in servers.items():
            if proto in ports:
                try:
                    found = load(proto, manner, ports[proto], pid, questions, seconds)
                except OSError:  # it does not speak that version of HTTP
                    continue
                if number:  # in the first one they learn what they are asked
                    seen.setdefault(server, []).append(found)
    own = [cost for _, cost in next(iter(seen.values()))]
    for server, rounds_of in seen.items():
        rate, cost = (median(one) for one in zip(*rounds_of, strict=True))
        # Of each round: what others do on the machine meanwhile slows both.
        ratio = median(mine / theirs for mine, (_, theirs) in zip(own, rounds_of, strict=True))
        label = f"{proto} {how}".strip()
        print(f"{label:22}{server:10}{rate:12,.0f}{cost:14.1f}{ratio:13.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=PROTOCOLS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_pair(folder)
        folder.chmod(0o755)
        questions = write_zone(folder)
        servers = {
            "kudurru": stack.enter_context(ours()),
            "knot": stack.enter_context(knot(folder)),
        }
        servers["bind"] = stack.enter_context(bind(folder))
        backend = servers["bind"][0]["tcp"]
        servers["dnsdist"] = stack.enter_context(dnsdist(folder, backend))
        print(f"{'':22}{'server':10}{'queries/s':>12}{'CPU µs/query':>14}{'ours/theirs':>13}")
        for proto in given.only or PROTOCOLS:
            for how, manner in MANNERS[proto].items():
                compare(proto, how, manner, servers, questions, given.seconds, given.rounds)


def write_zone(folder: Path) -> Path:
    """The zone of `build_zone` as a master file, and questions about it."""
    lines = ["$ORIGIN home.example.", "$TTL 300", "@ SOA ns host 1 7200 900 1209600 300", "@ NS ns"]
    lines += ["ns A 192.0.2.1", *(f"host{number} A 192.0.2.2" for number in range(NAMES))]
    (folder / "home.zone").write_text("\n".join(lines) + "\n")
    questions = folder / "questions"
    questions.write_text("".join(f"host{number}.home.example A\n" for number in range(NAMES)))
    return questions


if __name__ == "__main__":
    main()
