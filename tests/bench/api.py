"""Writes through the API: 32 clients that apply record sets, one after the other each.

    python -m tests.bench.api [--seconds 5] [--clients 32] [--first]

Beside it, in order: the log alone with groups as large as those clients make them, deciding alone,
the writer without HTTP (decide, append, views), and HTTP without anything behind it. The log is
SQLite on this disk and syncs as it always does. Prints figures, asserts nothing; the goal is a
quarter of the log alone. CPU is that of the process that has the log: it tells on a busy machine
too, and with `--first` (as root) server and clients come before all else that runs there, so that
it measures nearly like a quiet one.
"""

import argparse
import asyncio
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import open_data_dir
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sockets import split_address
from kudurru.domain.commands import Apply
from kudurru.domain.errors import KudurruError
from kudurru.domain.events import OBJECT_APPLIED, ChangeSet, Event, Who
from kudurru.domain.objects import key_of
from kudurru.entrypoints.log_place import open_event_log
from kudurru.entrypoints.service import manifest_from_wire
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer
from tests.bench.engine import claim_processors
from tests.blackbox.program import command, records, serving, zone

WHO = Who(actor="token:bench", source="api 127.0.0.1")
ZONE = "bench.example"
NUMBERS_BEGIN = 1_000_000
"""Of record sets over HTTP, so that each has as many octets."""

READ = 1 << 16
LINE = "{:<32}{:>7.0f} applies/s   p50 {:6.1f} ms   p99 {:6.1f} ms   {:4.0f} us CPU each"


def document(i: int) -> dict[str, Any]:
    target = f"10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}"
    return records(f"h{i}", ZONE, (f"h{i}.{ZONE}", "A", target))


class Row(NamedTuple):
    rate: float  # applies a second
    cpu_us: float  # of each


def show(name: str, took_s: float, waits_s: list[float], cpu_s: float) -> Row:
    rate = len(waits_s) / took_s
    waits_s.sort()
    p50, p99 = (waits_s[int(len(waits_s) * part)] * 1000 for part in (0.5, 0.99))
    each_us = cpu_s / len(waits_s) * 1e6
    print(LINE.format(name, rate, p50, p99, each_us), flush=True)
    return Row(rate, each_us)


def log_alone(folder: Path, clients: int, seconds: float) -> Row:
    log = open_event_log(open_data_dir(folder, create=True), create=True)
    body = json.dumps(document(1)["spec"]).encode()
    waits, i, started, cpu_s = [], 0, time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) - started < seconds:
        group = []
        for _ in range(clients):
            key = key_of("DNSRecordSet", "default", f"h{i}")
            event = Event(OBJECT_APPLIED, key, 1, f"default/{ZONE}", "kudurru", body)
            group.append(ChangeSet((event,), WHO))
            i += 1
        log.append(group, time.time_ns() // 1000)
        waits += [time.perf_counter() - now] * clients
    took_s = time.perf_counter() - started
    log.close()
    return show(f"log alone, groups of {clients}", took_s, waits, time.process_time() - cpu_s)


def decide_alone(clients: int, seconds: float) -> Row:
    clock, entropy = SystemClock(), SystemEntropy()
    node = Node(MemoryEventLog(entropy=entropy, clock=clock), clock, entropy)
    node.commit(_change(zone(ZONE)))
    waits, i, cpu_s = [], 0, 0.0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        changes = [_change(document(n)) for n in range(i, i + clients)]
        i += clients
        now, cpu_now = time.perf_counter(), time.process_time()
        decided = node.decide(changes, time.time_ns() // 1000)
        cpu_s += time.process_time() - cpu_now
        assert not any(isinstance(one, KudurruError) for one in decided)
        waits += [time.perf_counter() - now] * clients
    return show("decide alone", sum(waits) / clients, waits, cpu_s)


async def writer_alone(folder: Path, clients: int, seconds: float) -> Row:
    log = open_event_log(open_data_dir(folder, create=True), create=True)
    node = Node(log, SystemClock(), SystemEntropy())
    writer = Writer(node)
    running = asyncio.create_task(writer.run())
    await writer.submit(_change(zone(ZONE)))
    waits: list[float] = []
    until = time.perf_counter() + seconds
    reading_s = 0.0  # of manifests, which is no part of this

    async def client(number: int) -> None:
        nonlocal reading_s
        i = number
        while time.perf_counter() < until:
            began_s = time.thread_time()
            change = _change(document(i))
            reading_s += time.thread_time() - began_s
            began = time.perf_counter()
            await writer.submit(change)
            waits.append(time.perf_counter() - began)
            i += clients

    started, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(client, range(clients)))
    took_s = time.perf_counter() - started
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    log.close()
    cpu_s = time.process_time() - cpu_s - reading_s
    return show("writer: decide, append, views", took_s, waits, cpu_s)


def _change(value: dict[str, Any]) -> Change:
    return Change(commands=(Apply(manifest=manifest_from_wire(value), manager="kudurru"),), who=WHO)


def cpu_of(pid: int) -> float:
    """Seconds that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Requests:
    """Requests that apply one record set after another. They differ in digits only, which are put
    in their places: the generator shares the machine with what it measures."""

    def __init__(self, token: str) -> None:
        number = f"{NUMBERS_BEGIN}"
        body = json.dumps(document(NUMBERS_BEGIN))
        assert body.count(number) == 2
        head = (
            f"PUT /api/v1/namespaces/default/dnsrecordsets/h{number} HTTP/1.1\r\n"
            f"Host: localhost\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._parts = f"{head}{body}".encode().split(number.encode())
        self._numbers = count(NUMBERS_BEGIN)

    def next(self) -> bytes:
        return (b"%d" % next(self._numbers)).join(self._parts)


def drive(address: str, token: str, clients: int, seconds: float) -> list[float]:
    """Let clients send one request after the other; how long each waited, in seconds."""
    requests, waits = Requests(token), list[float]()
    poll, began = select.epoll(), dict[int, float]()
    now = time.perf_counter
    until = now() + seconds
    with ExitStack() as stack:
        socks: dict[int, socket.socket] = {}
        for _ in range(clients):
            sock = stack.enter_context(socket.create_connection(split_address(address)))
            socks[sock.fileno()], began[sock.fileno()] = sock, now()
            poll.register(sock, select.EPOLLIN)
            sock.sendall(requests.next())
        while began:
            for number, _ in poll.poll():
                sock = socks[number]
                answer = sock.recv(READ)
                assert answer.startswith(b"HTTP/1.1 20"), answer
                while not _is_whole(answer):
                    answer += sock.recv(READ)
                done = now()
                waits.append(done - began.pop(number))
                if done < until:
                    began[number] = done
                    sock.sendall(requests.next())
    return waits


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    return bool(end) and len(body) == int(head.rpartition(b"Content-Length: ")[2])


def over_http(name: str, address: str, pid: int, token: str, clients: int, seconds: float) -> Row:
    started, cpu_s, own_s = time.perf_counter(), cpu_of(pid), time.process_time()
    waits = drive(address, token, clients, seconds)
    took_s = time.perf_counter() - started
    row = show(name, took_s, waits, cpu_of(pid) - cpu_s)
    own_us = (time.process_time() - own_s) / len(waits) * 1e6
    print(f"{'  its clients':<79}{own_us:6.0f} us CPU each")
    return row


def bare_http(clients: int, seconds: float) -> Row:
    arguments = [sys.executable, "-m", "tests.bench.bare_http"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            return over_http("HTTP alone", address, server.pid, "x" * 80, clients, seconds)
        finally:
            server.terminate()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--first", action="store_true", help="before all other work of the machine")
    options = parser.parse_args(arguments)
    if options.first:
        claim_processors()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        alone = log_alone(folder / "log", options.clients, options.seconds)
        decide = decide_alone(options.clients, options.seconds / 5)
        writer = asyncio.run(writer_alone(folder / "writer", options.clients, options.seconds))
        bare = bare_http(options.clients, options.seconds / 5)
        data, file = folder / "api", folder / "zone.json"
        file.write_text(json.dumps(zone(ZONE)))
        assert command("apply", "-f", file, "--data", data).code == 0
        token = command(
            "token", "create", "bench", "--role", "operator", "--data", data, "-o", "json"
        ).json()["token"]
        with serving(data) as server:
            address = server.addresses["http"]
            pid, clients, seconds = server.process.pid, options.clients, options.seconds
            api = over_http("API: PUT over HTTP", address, pid, token, clients, seconds)
        rest = writer.cpu_us - alone.cpu_us - decide.cpu_us
        print(
            f"of each: append {alone.cpu_us:.0f} us, decide {decide.cpu_us:.0f} us, views and "
            f"groups {rest:.0f} us, HTTP {api.cpu_us - writer.cpu_us:.0f} us "
            f"(at least {bare.cpu_us:.0f} us)"
        )
        print(
            f"the API is at {100 * api.rate / alone.rate:.0f} % of the log alone, by CPU at "
            f"{100 * alone.cpu_us / api.cpu_us:.0f} %  (goal 25 %)"
        )


if __name__ == "__main__":
    main()
