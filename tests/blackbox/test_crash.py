"""Killed with SIGKILL in the middle of changes, a server keeps what it acknowledged."""

import os
import random
import secrets
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from kudurru.domain.errors import KudurruError
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.entrypoints.rpc import RemoteService, connect
from kudurru.entrypoints.service import ChangeRequest, ListRequest, collect
from tests.blackbox.program import (
    PATIENCE_S,
    Serving,
    command,
    command_line,
    environment,
    records,
    serve_arguments,
    serving,
    wait_until,
    write_json,
    zone,
)

ROUNDS = 50
CLIENTS = 4
NAMES_EACH = 20
CHANGES_MAX = 200
"""Acknowledged in one round before the kill."""

START_S_MAX = 1.0
"""A start that is killed lives this long at most; most are ready after half of it."""

OFTEN = {"KUDURRU__SNAPSHOTS__INTERVAL": "100ms"}
"""A snapshot of the views is being written nearly all the time, and begun with at every start."""

ZONE = "crash.example"
Address = str | None
"""Of a name; None: it does not exist."""


class Client:
    """Applies and deletes its own names through the socket, and remembers what was acknowledged.
    A change is of a name and its twin, which must come and go together."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self._rng = rng
        self.names = [f"c{number}-{i}.{ZONE}" for i in range(NAMES_EACH)]
        self.acknowledged: dict[str, Address] = dict.fromkeys(self.names)
        self.in_flight: tuple[str, Address] | None = None
        self.count = 0

    def stream(self, service: RemoteService) -> None:
        """Change things until the server is gone."""
        while True:
            name = self._rng.choice(self.names)
            address = None
            if self.acknowledged[name] is None or self._rng.random() < 0.8:
                address = f"10.{'.'.join(str(self._rng.randrange(256)) for _ in range(3))}"
            self.in_flight = name, address
            try:
                service.change(_change(name, address))
            except KudurruError:
                return  # the connection is gone, and nobody knows whether the change is there
            self.acknowledged[name] = address
            self.in_flight = None
            self.count += 1

    def allowed(self, name: str) -> set[Address]:
        """What the name may be after a crash."""
        found = {self.acknowledged[name]}
        if self.in_flight is not None and self.in_flight[0] == name:
            found.add(self.in_flight[1])
        return found


def _change(name: str, address: Address) -> ChangeRequest:
    both = (name, f"twin-{name}")
    if address is None:
        return ChangeRequest(delete=[key_of("DNSRecordSet", "default", one) for one in both])
    manifests = [
        parse_manifest(
            records(one, ZONE, (one, "A", address)), what="test", default_namespace="default"
        )
        for one in both
    ]
    return ChangeRequest(apply=manifests)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_acknowledged_change_is_there_after_kill_9(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("KUDURRU_SEED") or secrets.randbits(32))
    rng = random.Random(seed)
    data = tmp_path / "data"
    file = write_json(tmp_path / "zone.json", zone(ZONE))
    assert command("apply", "-f", file, "--data", data).code == 0
    clients = [Client(i, random.Random(rng.random())) for i in range(CLIENTS)]
    survived = 0
    for _ in range(ROUNDS):
        with serving(data, env=OFTEN) as server:
            survived += check(server, data, clients)
            crash(server, data, clients, after=rng.randrange(CHANGES_MAX))
        if rng.random() < 0.2:
            crash_while_starting(data, after_s=rng.random() * START_S_MAX)
        rows = verify(data)
    with serving(data) as server:
        survived += check(server, data, clients)
    with capsys.disabled():
        acknowledged = sum(client.count for client in clients)
        print(
            f"\nkill -9: seed {seed}, {ROUNDS} crashes, {acknowledged} changes acknowledged and "
            f"kept, {survived} more were durable but not acknowledged, {rows} events"
        )
    assert acknowledged > ROUNDS


def crash(server: Serving, data: Path, clients: list[Client], *, after: int) -> None:
    """Let all clients change things, and kill the server once `after` changes more than before
    are acknowledged."""
    target = sum(client.count for client in clients) + after
    services = [connect(data / "kudurru.sock") for _ in clients]
    threads = [
        threading.Thread(target=client.stream, args=(service,))
        for client, service in zip(clients, services, strict=True)
        if service is not None
    ]
    assert len(threads) == CLIENTS
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(client.count for client in clients) >= target)
    writers = children_of(server.process.pid)
    server.process.kill()
    server.process.wait(PATIENCE_S)
    for writer in writers:
        with suppress(ProcessLookupError):
            os.kill(writer, signal.SIGKILL)
    for thread, service in zip(threads, services, strict=True):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert service is not None
        service.__exit__()


def children_of(pid: int) -> list[int]:
    """Processes that write snapshots."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def crash_while_starting(data: Path, *, after_s: float) -> None:
    process = subprocess.Popen(
        command_line(*serve_arguments(data)), stdout=subprocess.DEVNULL, env=environment()
    )
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(PATIENCE_S)
    assert process.returncode == -signal.SIGKILL


def verify(data: Path) -> int:
    """The chain and every stamp, on the directory that the crash left. How many events it has."""
    done = command("audit", "verify", "--level", "state", "--data", data, "-o", "json")
    assert done.code == 0, done
    found = done.json()
    assert found["rows"] == found["newest"], "a gap"
    return int(found["newest"])


def check(server: Serving, data: Path, clients: list[Client]) -> int:
    """Every name is what was acknowledged, or what was in flight: as an object and in DNS. From
    then on it counts as acknowledged. How many were in flight and are there."""
    service = connect(data / "kudurru.sock")
    assert service is not None
    with service:
        documents = collect(service, ListRequest(kind="DNSRecordSet"))
    stored = {d["metadata"]["name"]: d["spec"]["endpoints"][0]["targets"][0] for d in documents}
    survived = 0
    for client in clients:
        for name in client.names:
            found = stored.get(name)
            assert found in client.allowed(name), f"{name}: {client.allowed(name)}"
            assert stored.get(f"twin-{name}") == found, "half a change"
            for one in (name, f"twin-{name}"):
                assert server.texts(one) == [found or "NXDOMAIN"]
            survived += client.in_flight == (name, found)
            client.acknowledged[name] = found
        client.in_flight = None
    return survived
