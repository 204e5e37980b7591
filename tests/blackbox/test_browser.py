"""What pages of others can do to the API from inside a real browser: nothing.

The browser (Chromium, headless) shows a page of an attacker, which tries everything that a page may
send, with an admin's token that it knows and without one, and tells the attacker's own server what
it could read. Rebinding is played by a front: it serves the page first, and then passes every
connection on to the API, as if the name pointed there by now.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.program import PATIENCE_S, Serving, command, end, serving
from tests.blackbox.test_api import Asking
from tests.blackbox.test_metrics import scraped
from tests.browsers import browser_program

pytestmark = pytest.mark.slow

PAGE = Path(__file__).with_name("attack.html").read_text()
NAMED = ("rebind.example", "evil.example")
RULES = ",".join([*(f"MAP {name} 127.0.0.1" for name in NAMED), "MAP *.invalid ~NOTFOUND"])


class Front(socketserver.ThreadingTCPServer):
    """The attacker's server: its page, where reports of the page go, and, from when it is asked to,
    a way through to the API."""

    daemon_threads = True

    def __init__(self, at: str, api: tuple[str, int]) -> None:
        super().__init__((at, 0), _Connection)
        self.api = api
        self.page = ""
        self.is_rebound = False
        self.reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self.port = int(self.server_address[1])


class _Connection(socketserver.BaseRequestHandler):
    server: Front

    def handle(self) -> None:
        self.request.recv(1, socket.MSG_PEEK)  # a browser connects ahead of what it sends
        if self.server.is_rebound:
            self._pass_on()
            return
        head, _, body = self._received().partition(b"\r\n\r\n")
        if head.startswith(b"GET /page"):
            self._answer(self.server.page.encode())
        elif head.startswith(b"POST /rebind"):
            self.server.is_rebound = True
            self._answer(b"rebound")
        elif head.startswith(b"POST /report"):
            self._answer(b"thanks")
            self.server.reports.put(json.loads(body))
        else:
            self._answer(b"mine")

    def _received(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data and (more := self.request.recv(65536)):
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        while len(body) < length and (more := self.request.recv(65536)):
            body += more
        return head + b"\r\n\r\n" + body

    def _answer(self, body: bytes) -> None:
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close\r\n"
            f"Access-Control-Allow-Origin: *\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            self.request.sendall(head.encode() + body)

    def _pass_on(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(self.server.api) as api:
            back = threading.Thread(target=_copy, args=(api, self.request), daemon=True)
            back.start()
            _copy(self.request, api)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def showing(url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A browser at a page, until the end of the block. Nothing of it asks anybody else."""
    arguments = [
        browser_program(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--no-first-run", "--no-proxy-server", f"--user-data-dir={folder}",
        f"--host-resolver-rules={RULES}", "--remote-debugging-port=0", url,
    ]  # fmt: skip
    quiet = {
        k: v for k, v in os.environ.items() if k not in ("DISPLAY", "DBUS_SESSION_BUS_ADDRESS")
    }
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            arguments, stdout=log, stderr=log, env=quiet, start_new_session=True
        )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # it is many processes
            end(process)


def attacked(server: Serving, token: str, name: str, folder: Path, *, rebinds: bool) -> Any:
    """What a page at a host of the attacker could do and read of the API. It rebinds: the API is
    asked by the page's own name."""
    host, _, port = server.addresses["http"].rpartition(":")
    at = name if name.startswith("127.") else "127.0.0.1"
    with fronting(at, (host, int(port))) as front, fronting("127.0.0.1", (host, 0)) as reporter:
        origin = f"http://{name}:{front.port}"
        settings = {
            "api": origin if rebinds else f"http://{server.addresses['http']}",
            "token": token,
            "report": f"http://127.0.0.1:{reporter.port}",
            "rebinds": rebinds,
        }
        front.page = PAGE.replace("SETTINGS", json.dumps(settings))
        with showing(f"{origin}/page", folder):
            return reporter.reports.get(timeout=PATIENCE_S)


@contextlib.contextmanager
def fronting(at: str, api: tuple[str, int]) -> Iterator[Front]:
    with Front(at, api) as front:
        thread = threading.Thread(target=front.serve_forever, daemon=True)
        thread.start()
        try:
            yield front
        finally:
            front.shutdown()


@pytest.fixture(scope="module")
def attacked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, str]]:
    """With an admin's token."""
    data = tmp_path_factory.mktemp("server") / "data"
    made = command("token", "create", "root", "--role", "admin", "--data", data, "-o", "json")
    with serving(data, "--demo") as server:
        yield server, made.json()["token"]


def state_of(ask: Asking) -> list[Any]:
    """What a change would change. Versions move by statuses, which a server writes in its time."""
    objects = [
        (one["kind"], one["metadata"]["name"], one["spec"])
        for path in ("/dnszones", "/dnsrecordsets")
        for one in ask("GET", path)[1]["items"]
    ]
    return [objects, [one["name"] for one in ask("GET", "/tokens")[1]], ask("GET", "/settings")]


def answered(server: Serving) -> dict[str, float]:
    """Requests to the API so far, by code."""
    return {
        dict(labels)["code"]: count
        for (name, labels), count in scraped(server).items()
        if name == "api_requests_total"
    }


ATTACKERS = {
    "another address": ("127.0.0.2", False),
    "another port of the same address": ("127.0.0.1", False),
    "a name": ("evil.example", False),
    "a name that is rebound": ("rebind.example", True),
}


@pytest.mark.parametrize(("name", "rebinds"), ATTACKERS.values(), ids=ATTACKERS)
def test_a_page_of_others_changes_and_reads_nothing(
    attacked_server: tuple[Serving, str], tmp_path: Path, name: str, rebinds: bool
) -> None:
    server, token = attacked_server
    ask = Asking(server, token)
    state, before = state_of(ask), answered(server)
    found = attacked(server, token, name, tmp_path, rebinds=rebinds)
    assert found.pop("own") == "mine", found  # the page ran, and the browser sends requests
    code = 421 if rebinds else 403
    more = {k: n - before.get(k, 0) for k, n in answered(server).items() if n != before.get(k, 0)}
    assert set(more) == {str(code)}, more
    assert more[str(code)] >= 10  # it is the server that refuses them, not the browser alone
    for attack, outcome in found.items():
        if isinstance(outcome, dict):
            # What the browser takes for the page's own can be read: it is a refusal.
            assert outcome["code"] == code, (attack, outcome)
            status = json.loads(outcome["text"])
            assert (status["status"], status["code"]) == ("Failure", code), (attack, outcome)
    assert state_of(ask) == state
    assert len(found) >= 22
    seen = {json.dumps(outcome) for outcome in found.values() if not isinstance(outcome, dict)}
    print(f"suite browser: {version()}; {name}: {len(found)} attacks, {sorted(seen)}")


def test_the_same_page_at_an_address_of_ours_reads_and_writes_with_its_token(
    attacked_server: tuple[Serving, str], tmp_path: Path
) -> None:
    """So it is a page that could."""
    server, token = attacked_server
    found = attacked(server, token, "127.0.0.1", tmp_path, rebinds=True)
    assert found["read"]["code"] == 401
    assert found["read token in URL"]["code"] == 400
    assert "demo.example" in found["read with token"]["text"]
    assert found["post"]["code"] == 200
    assert found["post no-cors"]["code"] == 401
    assert found["get"]["code"] == 200
    codes = {name: one["code"] for name, one in found.items() if isinstance(one, dict)}
    assert [name for name, code in codes.items() if code == 200] == [
        *("read with token", "read with key", "read document", "post", "delete", "get"),
    ]
    assert Asking(server, token)("DELETE", "/dnszones/evil.example")[0] == 200


def version() -> str:
    done = subprocess.run(
        [browser_program(), "--version"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
