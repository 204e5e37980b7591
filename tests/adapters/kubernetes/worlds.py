"""A fake API server, clients of it, and tasks that end with the test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.fakes.api import FakeApi
from kudurru.adapters.kubernetes.fakes.network import Link, MemoryServer, client_of
from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.memory.loop import run_manually

MAPS = "/api/v1/namespaces/default/configmaps"
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
"""Of long random runs: two in the fast suite, the others in the slow one."""


class World:
    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.api = FakeApi(clock)
        self.server = MemoryServer(self.api.handle)
        self._clients: list[Client] = []
        self.people = self.client()
        """Somebody else, who writes too."""

    def client(self, link: Link | None = None) -> Client:
        client = client_of(link or self.server, self.clock)
        self._clients.append(client)
        return client

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_us() / 1e6

    async def write(self, name: str, data: str, **metadata: Any) -> dict[str, Any]:
        """Make or change a config map, whatever it was."""
        body = config_map(name, data, **metadata)
        return await self.people.request(
            "PATCH",
            f"{MAPS}/{name}?fieldManager=people&force=true",
            body,
            content_type="application/apply-patch+yaml",
        )

    async def delete(self, name: str) -> None:
        await self.people.request("DELETE", f"{MAPS}/{name}")

    async def close(self) -> None:
        for client in self._clients:
            await client.transport.close()
        await self.server.close()


def config_map(name: str, data: str, **metadata: Any) -> dict[str, Any]:
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    return kind | {"metadata": {"name": name, **metadata}, "data": {"of": data}}


def in_world(case: Callable[[World], Awaitable[None]]) -> None:
    """Run a case on the clock of its world."""

    clock = ManualClock()

    async def main() -> None:
        world = World(clock)
        try:
            await case(world)
        finally:
            await world.close()

    run_manually(main(), clock)


@asynccontextmanager
async def running(*mains: Awaitable[Any]) -> AsyncIterator[None]:
    """Tasks for as long as a block takes. What they raise is raised after it."""
    tasks = [asyncio.ensure_future(main) for main in mains]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
