"""Millions of queries while names come, change and go: every answer is of a state that the log had
between the question and the answer, none is lost to a crash, and memory is flat.

`just endurance` asks 24 million; CI as many as take about a minute (KUDURRU_ENDURANCE_QUERIES).
"""

import mmap
import os
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.dns.engine_native import is_available
from kudurru.domain.objects import key_of
from kudurru.entrypoints.rpc import RemoteService, connect
from kudurru.entrypoints.service import ChangeRequest, manifest_from_wire
from tests.absent import absent
from tests.bench.asker import Asker, Figures
from tests.bench.misses import QUIET, resident
from tests.blackbox.program import records, serving, zone

QUERIES = int(os.environ.get("KUDURRU_ENDURANCE_QUERIES", "8000000"))
ROUNDS = 8
WARM_ROUNDS = 2
"""Until the table of answers is full, and Python has the arenas that it needs."""

ZONE, OTHER = "endures.example", "other.example"
NAMES = 2_000
PER_APPLY = 200
CHANGES_PER_S = 100
AT_FIRST = 2  # version of each name; odd ones are that it is not there

GROWTH_MAX = 3 << 20
"""Octets more than after warming up: of 24 million queries none may leave one behind."""
PER_CHANGE = 1_000
"""Octets of a change that are kept on purpose: its pages in SQLite's cache, which is bounded, and
who changed in which version of the zone."""


class State:
    """Versions of each name, where the asker sees them: begun, and acknowledged."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_bytes(struct.pack("=I", AT_FIRST) * 2 * NAMES)
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), 0)

    def close(self) -> None:
        self._shared.close()

    def version(self, name: int) -> int:
        found: int = struct.unpack_from("=I", self._shared, 4 * name)[0]
        return found

    @contextmanager
    def changing(self, name: int) -> Iterator[int]:
        """To the next version."""
        version = self.version(name) + 1
        struct.pack_into("=I", self._shared, 4 * name, version)
        yield version
        struct.pack_into("=I", self._shared, 4 * (NAMES + name), version)


class Changer:
    """Changes one thing after the other, until it is told to stop."""

    def __init__(self, service: RemoteService, state: State) -> None:
        self._service, self._state = service, state
        self._is_over = threading.Event()
        self._step = count(1)
        self.changes = 0
        self.fault: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        self._is_over.clear()
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()
        if self.fault is not None:
            raise self.fault

    def _run(self) -> None:
        try:
            while True:  # one at least
                self._change(next(self._step))
                self.changes += 1
                if self._is_over.wait(1 / CHANGES_PER_S):
                    return
        except BaseException as fault:
            self.fault = fault

    def _change(self, step: int) -> None:
        if step % 20 == 0:  # what the answers do not depend on
            self._other_zone(is_there=step % 40 == 0)
        elif step % 50 == 1:
            self._policy(step)
        else:
            name = step * 7 % NAMES
            with self._state.changing(name) as version:
                if version % 2:
                    self._service.change(
                        ChangeRequest(delete=[key_of("DNSRecordSet", "default", f"n{name}")])
                    )
                else:
                    self._apply(manifest(name, version))

    def _other_zone(self, *, is_there: bool) -> None:
        if is_there:
            self._delete("DNSZone", "", OTHER)
        else:
            self._apply(zone(OTHER))

    def _policy(self, step: int) -> None:
        spec = {"deny": [f"blocked{step}.example"]}
        self._apply({**zone("unused"), "kind": "Policy", "metadata": {"name": "p"}, "spec": spec})

    def _apply(self, *manifests: dict[str, Any]) -> None:
        self._service.change(ChangeRequest(apply=[manifest_from_wire(one) for one in manifests]))

    def _delete(self, *parts: str) -> None:
        self._service.change(ChangeRequest(delete=[key_of(*parts)]))


def manifest(name: int, version: int) -> dict[str, Any]:
    address = ".".join(map(str, struct.pack("!I", version)))
    return records(f"n{name}", ZONE, (f"n{name}.{ZONE}", "A", address))


def prepare(data: Path, folder: Path) -> Path:
    """A zone with all names in their first version; the names in a file."""
    service = connect(data / "kudurru.sock")
    assert service is not None
    with service:
        manifests = [zone(ZONE), *(manifest(name, AT_FIRST) for name in range(NAMES))]
        for at in range(0, len(manifests), PER_APPLY):
            some = [manifest_from_wire(one) for one in manifests[at : at + PER_APPLY]]
            service.change(ChangeRequest(apply=some))
    file = folder / "names"
    file.write_text("".join(f"n{name}.{ZONE}\n" for name in range(NAMES)))
    return file


def shown(run: Figures, octets: int) -> str:
    return (
        f"{run.answered:,} answers at {run.per_s:,.0f} a second, {run.lost} lost, {run.changing:,} "
        f"while their name changed; {octets / 2**20:.1f} MiB resident"
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="the engine is for Linux")
def test_every_answer_is_of_a_state_that_the_log_had_meanwhile_and_memory_is_flat(
    tmp_path: Path,
) -> None:
    if not is_available():
        absent("the native engine is not built")
    asker, state = Asker(tmp_path), State(tmp_path / "state")
    warm, warm_changes = 0, 0
    with serving(tmp_path / "data", env=QUIET) as server:
        names = prepare(tmp_path / "data", tmp_path)
        service = connect(tmp_path / "data" / "kudurru.sock")
        assert service is not None
        with service:
            changer = Changer(service, state)
            for i in range(ROUNDS):
                with changer.running():
                    at = server.host, server.port
                    run = asker.checked(at, QUERIES // ROUNDS, state.file, names)
                octets = resident(server.process.pid)
                print(shown(run, octets), f"{changer.changes:,} changes", flush=True)
                assert run.wrong == 0, "what they are is on stderr"
                assert run.answered > QUERIES // ROUNDS * 9 // 10, "it answers"
                if i + 1 == WARM_ROUNDS:
                    warm, warm_changes = octets, changer.changes
        kept = (changer.changes - warm_changes) * PER_CHANGE
        assert octets - warm < GROWTH_MAX + kept
        state.close()
        assert server.stop() == 0
