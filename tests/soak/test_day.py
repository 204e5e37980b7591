"""A day of a server that is used: a write and 80 calls of the API a minute. What it holds in memory
after an hour it holds after a day.

`just soak` runs the whole day; CI an hour and a half of it (KUDURRU_SOAK_MINUTES).
"""

import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from kudurru.adapters.sockets import split_address
from kudurru.adapters.sqlite.log import CACHE_KIB
from kudurru.projections.zone_history import VERSIONS_MAX
from tests.blackbox.program import (
    AT_ONCE,
    ROOT,
    command,
    end,
    environment,
    read_line,
    records,
    serve_arguments,
    write_json,
    zone,
)
from tests.soak.told_time import STEP_S

MINUTES = int(os.environ.get("KUDURRU_SOAK_MINUTES", "90"))
WARM_MINUTES = 60
"""Until Python has the arenas that it needs, and SQLite its statements."""

CALLS = 80  # a minute, beside the write
SETS = 200
"""Record sets, which are written one after the other again and again."""

ZONE = "soak.example"
PAGES_MAX = CACHE_KIB << 10
"""Octets of the log that SQLite keeps: that much may come as the log grows."""

GROWTH_MAX = 3 << 20
"""Octets more than after warming up, beside those: a leak of 30 octets a call would be as much in a
day. Versions of the zone are kept too, as many as there are before the day begins."""

READS = (
    "GET /api/v1/dnszones",
    f"GET /api/v1/dnszones/{ZONE}",
    f"GET /api/v1/dnszones/{ZONE}/conditions",
    f"GET /api/v1/dnszones/{ZONE}/export",
    "GET /api/v1/dnsrecordsets?limit=20",
    "GET /api/v1/namespaces/default/dnsrecordsets/h7",
    "GET /api/v1/namespaces/default/dnsrecordsets/gone",  # 404
    "GET /api/v1/events?limit=20",
    "GET /api/v1/events?limit=5&kind=rs&changes=true",
    "GET /api/v1/checkpoint",
    f"GET /api/v1/query?name=h7.{ZONE}&type=A",
    f"GET /api/v1/explain?name=h7.{ZONE}",
    "GET /api/v1/info",
    "GET /api/v1/settings",
    "GET /api/v1/lists",
    "GET /api/v1/cache",
    "GET /api/v1/queries?limit=5",
    "GET /api/v1/stats/domains",
    "GET /api/v1/openapi.json",
    "GET /readyz",
)


class Caller:
    """One connection to the API, and one that is opened anew for every hundredth call."""

    def __init__(self, address: str, token: str) -> None:
        self._where, self._token, self._made = split_address(address), token, 0
        self._open()

    def _open(self) -> None:
        self._stream = socket.create_connection(self._where, timeout=60)
        self._answers = self._stream.makefile("rb")

    def close(self) -> None:
        self._answers.close()
        self._stream.close()

    def __call__(self, line: str, body: bytes = b"") -> int:
        """The code of the answer."""
        self._made += 1
        if self._made % 100 == 0:
            self.close()
            self._open()
        head = f"{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._stream.sendall(head.encode() + b"\r\n" + body)
        code = int(self._answers.readline().split()[1])
        length = 0
        while (header := self._answers.readline()) != b"\r\n":
            if header.lower().startswith(b"content-length:"):
                length = int(header.partition(b":")[2])
        self._answers.read(length)
        return code


class Soaked:
    """A server in told time."""

    def __init__(self, process: "subprocess.Popen[str]", ready: str) -> None:
        self.process = process
        self.http = dict(part.split("=", 1) for part in ready.split()[1:])["http"]

    def let_pass(self) -> None:
        """STEP_S seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write(".")
        self.process.stdin.flush()
        assert read_line(self.process) == "passed\n"

    def resident(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def soaking(data: Path) -> Iterator[Soaked]:
    line = [sys.executable, "-m", "tests.soak.told_time", *serve_arguments(data)]
    process = subprocess.Popen(
        line,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(**{AT_ONCE: "0s", "KUDURRU__LOG__LEVEL": "error"}),
    )
    with process:
        try:
            ready = read_line(process)
            assert ready.startswith("ready ")
            yield Soaked(process, ready)
        finally:
            process.terminate()
            end(process)


def written(i: int, minute: int) -> tuple[str, bytes]:
    address = f"10.{minute >> 8}.{minute & 255}.{i}"
    body = json.dumps(records(f"h{i}", ZONE, (f"h{i}.{ZONE}", "A", address))).encode()
    return f"PUT /api/v1/namespaces/default/dnsrecordsets/h{i}", body


def a_minute(server: Soaked, call: Caller, minute: int, reads: Iterator[str]) -> None:
    assert call(*written(minute % SETS, minute)) in (200, 201)
    steps = 60 // STEP_S
    for step in range(steps):
        server.let_pass()
        for _ in range(CALLS * step // steps, CALLS * (step + 1) // steps):
            line = next(reads)
            assert call(line) == (404 if line.endswith("/gone") else 200), line


def log_octets(data: Path) -> int:
    """Of its pages, those that are not in the database file yet too."""
    with closing(sqlite3.connect(f"file:{data / 'log.db'}?mode=ro", uri=True)) as db:
        return int(db.execute("PRAGMA page_count").fetchone()[0]) * 4096


def fill(server: Soaked, call: Caller) -> None:
    """What is bounded and fills with writes, before anything is measured."""
    for i in range(VERSIONS_MAX + SETS):
        assert call(*written(i % SETS, i)) in (200, 201)
        server.let_pass()  # each a version of its own


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.timeout(1800)
def test_memory_is_flat_over_a_day(tmp_path: Path) -> None:
    data = tmp_path / "data"
    manifests = write_json(tmp_path / "zone.json", zone(ZONE))
    assert command("apply", "-f", manifests, "--data", data).code == 0
    made = command("token", "create", "soak", "--role", "admin", "--data", data, "-o", "json")
    reads, seen = cycle(READS), [(0, 0)]  # resident, log
    with soaking(data) as server:
        call = Caller(server.http, made.json()["token"])
        fill(server, call)
        for minute in range(1, MINUTES + 1):
            a_minute(server, call, minute, reads)
            if minute % 30 == 0:
                seen.append((server.resident(), log_octets(data)))
                resident, log = (octets / 2**20 for octets in seen[-1])
                print(f"{minute / 60:4.1f} h: {resident:5.1f} MiB, log {log:5.1f}", flush=True)
        call.close()
        server.process.terminate()
        assert server.process.wait(60) == 0
    (warm, log_then), (resident, log_now) = seen[min(WARM_MINUTES // 30, len(seen) - 1)], seen[-1]
    assert resident - warm < min(PAGES_MAX, log_now - log_then) + GROWTH_MAX
