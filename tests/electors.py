"""Electors of every kind for tests, and an arena in which several runners use them.

Whoever writes another elector adds it to HUBS, or gives a hub of its own to `contend`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.kubernetes.election import LeaseElector, Timings
from kudurru.adapters.kubernetes.fakes.api import FakeApi
from kudurru.adapters.kubernetes.fakes.network import MemoryServer, client_of
from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.memory.elector import MemoryElector
from kudurru.adapters.memory.timers import ManualTimers
from kudurru.adapters.postgres.connection import Place
from kudurru.adapters.postgres.elector import PostgresElector
from kudurru.adapters.sqlite.elector import FileElector
from kudurru.domain.ports import Elector
from kudurru.entrypoints.runner import Runner
from tests.postgres import server

PATIENCE_S = 60
"""Before a test that waits in vain fails. Nothing takes as long."""

PAUSE_S = 0.001

Hub = Callable[[], Elector]
"""Makes electors that contend with each other."""


def memory_hub(folder: Path) -> Hub:
    leader = asyncio.Lock()
    return lambda: MemoryElector(leader)


def file_hub(folder: Path) -> Hub:
    return lambda: FileElector(folder / "log.db.controller.leader", ManualClock())


def postgres_hub(folder: Path) -> Hub:
    place = Place(server().url(), "public")
    return lambda: PostgresElector(place, str(folder))


def lease_hub(folder: Path) -> Hub:
    """Leases of a fake API server. Tries follow each other closely, and nothing expires while a
    machine is slow."""
    clock = SystemClock()
    api = FakeApi(clock)
    api.seed("leases", "default", "kudurru-controller")
    server = MemoryServer(api.handle)
    return lambda: LeaseElector(
        client_of(server, clock),
        "controller",
        namespace="default",
        pod="pod",
        clock=clock,
        entropy=SystemEntropy(),
        chance=random.Random(1),
        timings=Timings(15, 10, 0.2),
    )


HUBS: dict[str, Callable[[Path], Hub]] = {
    "memory": memory_hub,
    "sqlite": file_hub,
    "postgres": postgres_hub,
    "lease": lease_hub,
}


class Arena:
    """Counts who works at an instant, and who ever did."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.terms: list[str] = []

    async def work(self, name: str) -> None:
        """Takes its time to end, as work does."""
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.terms.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.inside -= 1


class Contender:
    """A runner that may be started again, as a process is: with an elector of its own."""

    def __init__(self, name: str, hub: Hub, arena: Arena) -> None:
        self.name = name
        self._hub = hub
        self._arena = arena
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.elector: Elector
        self.runner: Runner

    @property
    def is_running(self) -> bool:
        return self._task is not None

    @property
    def is_leader(self) -> bool:
        return self.is_running and self.runner.status().is_leader

    def start(self) -> None:
        clock = ManualClock()
        self._stopping.clear()
        self.elector = self._hub()
        self.runner = Runner(clock, ManualTimers(clock), self.elector)
        for part in ("one", "other"):  # a group of two, of which one is counted
            work = self._work if part == "one" else asyncio.Event().wait
            self.runner.add(part, work, leader_only=True)
        self._task = asyncio.create_task(self.runner.run(self._stopping.wait))

    async def stop(self) -> None:
        assert self._task is not None
        self._stopping.set()
        await self._task
        self._task = None

    async def _work(self) -> None:
        await self._arena.work(self.name)


async def contend(
    hub: Hub,
    chance: random.Random,
    rounds: int,
    revoke: Callable[[Elector], Awaitable[None]] | None = None,
) -> Arena:
    """Three runners, of which leaders are stopped, or lose their term where `revoke` makes them,
    and others come back. Fails when the work of two terms overlaps."""
    arena = Arena()
    contenders = [Contender(name, hub, arena) for name in "abc"]
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(rounds):
            for contender in chance.sample(contenders, 3):
                is_needed = sum(one.is_running for one in contenders) < 2
                if not contender.is_running and (is_needed or chance.random() < 0.5):
                    contender.start()
            leader = await _leader(contenders, arena)
            before = len(arena.terms)
            if revoke is not None and chance.random() < 0.5:
                await revoke(leader.elector)
            else:
                await leader.stop()
            while len(arena.terms) == before:
                await asyncio.sleep(PAUSE_S)
        for contender in contenders:
            if contender.is_running:
                await contender.stop()
    assert arena.most == 1, f"{arena.most} worked at one instant"
    assert arena.inside == 0
    return arena


async def _leader(contenders: list[Contender], arena: Arena) -> Contender:
    while True:
        for contender in contenders:
            if contender.is_leader and arena.inside:
                return contender
        await asyncio.sleep(PAUSE_S)
