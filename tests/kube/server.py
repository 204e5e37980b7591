"""A real kube-apiserver and its etcd on loopback, for as long as a test session.

No controller manager runs: nothing collects garbage, finishes namespaces or makes service accounts.
"""

import json
import secrets
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.ports import free_port

READY_WITHIN_S = 120


class ApiServer(NamedTuple):
    url: str
    ca: Path
    """The certificate of the server, which signed itself."""
    etcd: str
    tokens: dict[str, str]
    """By user. `admin` may do everything, the others what a test binds them to."""

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str = "admin",
        form: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, Any]:
        """Status and decoded body of one request, whatever the status. `form` is what the body
        is sent as. The body is JSON, or octets; an answer that Python cannot read is a text."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("Authorization", f"Bearer {self.tokens[user]}")
        request.add_header("Content-Type", form)
        request.add_header("Accept", accept)
        try:
            with urllib.request.urlopen(request, context=self._tls(), timeout=30) as answer:
                return answer.status, _decoded(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _decoded(error.read())

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


def _decoded(octets: bytes) -> Any:
    try:
        return json.loads(octets)
    except (ValueError, RecursionError):
        return octets.decode(errors="replace")


@contextmanager
def api_server(binary: Path, folder: Path, users: tuple[str, ...] = ()) -> Iterator[ApiServer]:
    """Ready when it is yielded. `folder` is empty, and keeps the logs of both."""
    with machines(binary, folder, users) as found:
        yield found.server


class Machines:
    """Both processes, to be stopped and started again where they were."""

    def __init__(self, binary: Path, folder: Path, users: tuple[str, ...]) -> None:
        self._binary = binary
        self._folder = folder
        client, peer, port = free_port(), free_port(), free_port()
        self._etcd_arguments = _etcd_arguments(folder, client, peer)
        etcd = f"http://127.0.0.1:{client}"
        tokens = {user: secrets.token_hex(16) for user in ("admin", *users)}
        self._arguments = _arguments(folder, etcd, port, tokens)
        url = f"https://127.0.0.1:{port}"
        self.server = ApiServer(url, folder / "pki" / "apiserver.crt", etcd, tokens)
        self._etcd = ExitStack()
        self._api = ExitStack()

    def start(self) -> None:
        self._etcd.enter_context(
            _running([self._binary, "etcd", *self._etcd_arguments], self._folder)
        )
        self.start_api()

    def start_api(self) -> None:
        """Ready when it returns."""
        command = [self._binary, "kube-apiserver", *self._arguments]
        process = self._api.enter_context(_running(command, self._folder))
        _wait_until_ready(self.server, process, self._folder / "kube-apiserver.log")

    def stop_api(self) -> None:
        self._api.close()

    def stop(self) -> None:
        self.stop_api()
        self._etcd.close()

    def back_up(self) -> None:
        """Keep what etcd has, while both stand still."""
        shutil.copytree(self._folder / "etcd", self._folder / "backup")

    def set_back(self) -> None:
        shutil.rmtree(self._folder / "etcd")
        (self._folder / "backup").rename(self._folder / "etcd")


@contextmanager
def machines(binary: Path, folder: Path, users: tuple[str, ...] = ()) -> Iterator[Machines]:
    """Both, ready. `folder` is empty, and keeps their data and logs."""
    found = Machines(binary, folder, users)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def _etcd_arguments(folder: Path, client: int, peer: int) -> list[str]:
    clients, peers = (f"http://127.0.0.1:{port}" for port in (client, peer))
    arguments = {
        "data-dir": folder / "etcd",
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        "log-level": "error",
    }
    return [*(f"--{name}={value}" for name, value in arguments.items()), "--unsafe-no-fsync"]


def _arguments(folder: Path, etcd: str, port: int, tokens: dict[str, str]) -> list[str]:
    private, public = folder / "sa.key", folder / "sa.pub"
    for command in (
        ["genrsa", "-out", private, "2048"],
        ["rsa", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    rows = (
        f'{token},{user},{user}-uid,"{"system:masters" if user == "admin" else ""}"\n'
        for user, token in tokens.items()
    )
    (folder / "tokens.csv").write_text("".join(rows))
    arguments = {
        "etcd-servers": etcd,
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "cert-dir": folder / "pki",
        # Without a default route it does not find an address, and refuses a loopback endpoint.
        "advertise-address": "127.0.0.1",
        "endpoint-reconciler-type": "none",
        "service-cluster-ip-range": "10.0.0.0/24",
        "authorization-mode": "RBAC",
        "token-auth-file": folder / "tokens.csv",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": public,
        "service-account-signing-key-file": private,
        "disable-admission-plugins": "ServiceAccount",
        "profiling": "false",
        "v": 1,
    }
    return [f"--{name}={value}" for name, value in arguments.items()]


@contextmanager
def _running(command: list[Any], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    log = folder / f"{command[1]}.log"
    with log.open("ab") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_ready(server: ApiServer, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if server.call("GET", "/readyz")[0] == 200:
                return
        except (OSError, urllib.error.URLError):
            pass  # not listening yet, or its certificate is not written
        time.sleep(0.2)
    raise RuntimeError(f"kube-apiserver is not ready; it said:\n{log.read_text()[-4000:]}")
