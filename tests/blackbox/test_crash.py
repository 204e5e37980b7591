"""Killed with SIGKILL amid changes, checkpoints, redactions and prunings, a server keeps what it
acknowledged."""

import os
import random
import secrets
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from kudurru.domain.checkpoint import parse_checkpoint
from kudurru.domain.errors import Conflict, Invalid, KudurruError, NotFound
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.entrypoints.directory import open_reader
from kudurru.entrypoints.rpc import RemoteService, connect
from kudurru.entrypoints.service import ChangeRequest, ListRequest, collect
from kudurru.entrypoints.upkeep import PruneRequest, RedactRequest
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
from tests.saying import Say

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


class Upkeeper:
    """Signs, erases and prunes through the socket while clients change things, and remembers what
    was acknowledged. Which positions it tries is left to chance: many of them are refused."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.erased: set[tuple[int, str]] = set()  # position and part
        self.oldest = 0
        self.signed = 0
        self.prunings = 0

    def stream(self, service: RemoteService) -> None:
        """Do one thing after the other until the server is gone."""
        while True:
            try:
                self._do_one(service)
            except (Invalid, NotFound, Conflict):
                continue
            except KudurruError:
                return

    def _do_one(self, service: RemoteService) -> None:
        match self._rng.randrange(8):
            case 0 | 1:
                self.signed = parse_checkpoint(service.checkpoint()).size
            case 2:
                newest = service.info().position
                before = self._rng.randint(self.oldest, newest)
                pruned = service.prune(PruneRequest(before=before, reason="crash test"))
                self.oldest = max(self.oldest, pruned.upto)
                self.prunings += bool(pruned.upto)
            case _:
                seq = self._rng.randint(self.oldest + 1, service.info().position)
                is_who = self._rng.random() < 0.3
                request = RedactRequest(seq=seq, who=is_who, reason="crash test")
                erased = service.redact(request)
                positions = range(erased.first, erased.last + 1)
                self.erased.update((one, erased.part) for one in positions)

    def check(self, data: Path) -> None:
        """What was acknowledged holds. More may have been done, of what was on its way."""
        with open_reader(data) as node:
            log = node.log
            assert log.oldest() >= self.oldest
            self.oldest = log.oldest()
            newest = log.newest_checkpoint()  # type: ignore[attr-defined]  # a log of ours
            assert self.signed == 0 or newest.size >= self.signed
            for seq, part in self.erased:
                event = log.get(seq)
                assert event is None or getattr(event, part) is None, f"{part} of {seq} is back"
                assert event is not None or seq <= self.oldest


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
def test_every_acknowledged_change_is_there_after_kill_9(tmp_path: Path, say: Say) -> None:
    seed = int(os.environ.get("KUDURRU_SEED") or secrets.randbits(32))
    rng = random.Random(seed)
    data = tmp_path / "data"
    file = write_json(tmp_path / "zone.json", zone(ZONE))
    assert command("apply", "-f", file, "--data", data).code == 0
    clients = [Client(i, random.Random(rng.random())) for i in range(CLIENTS)]
    upkeeper = Upkeeper(random.Random(rng.random()))
    survived = 0
    for _ in range(ROUNDS):
        with serving(data, env=OFTEN) as server:
            survived += check(server, data, clients)
            crash(server, data, clients, upkeeper, after=rng.randrange(CHANGES_MAX))
        if rng.random() < 0.2:
            crash_while_starting(data, after_s=rng.random() * START_S_MAX)
        events = verify(data)
        upkeeper.check(data)
    with serving(data) as server:
        survived += check(server, data, clients)
    acknowledged = sum(client.count for client in clients)
    say(
        f"kill -9: seed {seed}, {ROUNDS} crashes, {acknowledged} changes acknowledged and "
        f"kept, {survived} more were durable but not acknowledged, {events} events; "
        f"{upkeeper.prunings} prunings up to {upkeeper.oldest}, "
        f"{len(upkeeper.erased)} payloads erased"
    )
    assert acknowledged > ROUNDS
    assert upkeeper.erased


def crash(
    server: Serving, data: Path, clients: list[Client], upkeeper: Upkeeper, *, after: int
) -> None:
    """Let all clients change things beside the upkeep, and kill the server once `after` changes
    more than before are acknowledged."""
    target = sum(client.count for client in clients) + after
    at_work = [*clients, upkeeper]
    services = [connect(data / "kudurru.sock") for _ in at_work]
    threads = [
        threading.Thread(target=one.stream, args=(service,))
        for one, service in zip(at_work, services, strict=True)
        if service is not None
    ]
    assert len(threads) == len(at_work)
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
    while True:
        found = Path(f"/proc/{pid}/task").glob("*/children")
        try:
            return [int(child) for path in found for child in path.read_text().split()]
        except OSError:
            continue  # a thread ended meanwhile, and its children are another one's


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
    return int(done.json()["newest"])


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
