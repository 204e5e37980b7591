"""How a server ends: in order, with nobody left without an answer, and in time."""

import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import pytest

from tests.blackbox.program import (
    AT_ONCE,
    PATIENCE_S,
    Serving,
    command,
    environment,
    read_line,
    records,
    serve_arguments,
    serving,
    wait_until,
    write_json,
    zone,
)
from tests.saying import Say

NAME = "www.example.org"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    www = records(NAME, "example.org", (NAME, "A", "192.0.2.1"))
    file = write_json(tmp_path / "zone.json", zone("example.org"), www)
    assert command("apply", "-f", file, "--data", tmp_path / "data").code == 0
    return tmp_path / "data"


class Clients:
    """Ask without a pause, until they are sent elsewhere."""

    def __init__(self, server: Serving) -> None:
        self.server = server
        self.answered = 0
        self.lost: list[str] = []
        self.elsewhere = threading.Event()
        kinds = (dns.query.udp, dns.query.udp, dns.query.tcp)
        self._threads = [threading.Thread(target=self._ask, args=(kind,)) for kind in kinds]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.elsewhere.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, send: object) -> None:
        while not self.elsewhere.is_set():
            query = dns.message.make_query(NAME, "A")
            try:
                answer = send(query, self.server.host, port=self.server.port, timeout=PATIENCE_S)  # type: ignore[operator]  # of dns.query
                assert answer.answer[0][0].to_text() == "192.0.2.1"
            except (OSError, dns.exception.DNSException, AssertionError, IndexError) as error:
                self.lost.append(repr(error))
            else:
                self.answered += 1


def is_ready(server: Serving) -> bool:
    try:
        with urllib.request.urlopen(f"http://{server.addresses['ops']}/readyz"):
            return True
    except urllib.error.HTTPError:
        return False


@pytest.mark.slow
def test_sigterm_under_load_loses_no_query_of_clients_that_heed_readiness(
    data: Path, say: Say
) -> None:
    with serving(data, env={AT_ONCE: "10s"}) as server, Clients(server) as clients:
        wait_until(lambda: clients.answered > 500)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_ready(server))
        before = clients.answered
        wait_until(lambda: clients.answered > before + 100)  # a balancer takes its time
        clients.elsewhere.set()
        assert server.process.wait(2 * PATIENCE_S) == 0
    assert not clients.lost
    say(f"SIGTERM under load: {clients.answered} queries, none lost")


def test_a_server_that_is_told_twice_does_not_wait_for_balancers(data: Path) -> None:
    with serving(data, env={AT_ONCE: "1h"}) as server:
        server.process.terminate()
        wait_until(lambda: not is_ready(server))
        server.process.terminate()
        assert server.process.wait(PATIENCE_S) == 0


DEAF = """
import asyncio, sys
from kudurru.entrypoints import runner, server
runner.PHASE_US = runner.SECOND_US = 100_000

async def deaf(*_):
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

server.keep_neighbours = deaf
from kudurru.entrypoints.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_what_does_not_end_is_named_and_left_behind(data: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", DEAF, *serve_arguments(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**{AT_ONCE: "0s"}),
    )
    try:
        assert read_line(process).startswith("ready ")
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "the server ends without waiting any longer for neighbours" in err
    assert command("audit", "verify", "--data", data).code == 0
    with serving(data) as again:
        assert again.texts(NAME) == ["192.0.2.1"]


BROKEN = """
import asyncio, sys
from kudurru.domain.errors import StorageFailed
from kudurru.entrypoints import server

async def breaks(*_):
    sys.stdin.readline()
    raise StorageFailed("no more neighbours; get some")

server.keep_neighbours = lambda *_: breaks()
from kudurru.entrypoints.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_part_that_fails_ends_the_server_in_order_with_1(data: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, *serve_arguments(data)],
        input="\n",
        capture_output=True,
        text=True,
        env=environment(**{AT_ONCE: "0s"}),
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "error: no more neighbours; get some" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (data / "kudurru.sock").exists()


def test_connections_that_do_nothing_hold_no_end_up(data: Path) -> None:
    with serving(data) as server, socket.create_connection((server.host, server.port)) as idle:
        assert server.stop() == 0
        idle.settimeout(PATIENCE_S)
        assert idle.recv(1) == b""
