"""A node with its writer, stamps and controllers, on a clock that a test moves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.memory.sink import MemorySink
from kudurru.adapters.memory.timers import ManualTimers
from kudurru.domain.events import OBJECT_STATUS, Who
from kudurru.domain.objects import Key
from kudurru.domain.reconcile.conditions import condition
from kudurru.entrypoints.controllers import RESYNC_US, Controllers
from kudurru.entrypoints.store import LogStore
from kudurru.entrypoints.watches import Hub
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer, keep_stamped
from tests.idle_loop import IdleLoop, run_idle
from tests.nodes import a_change, memory_node

SECOND = 1_000_000
COALESCE_S = 0.25
SYSTEM = Who(actor="system", source="controllers")


PATIENCE_S = 600.0
"""For all of a scene. None takes as long, but for one that hangs."""

SETTLED_US = 3_600 * SECOND
"""By then everything is done that is ever done: the longest wait before a retry is a thousand
seconds."""


class Scene:
    def __init__(self, node: Node, store: type[LogStore] = LogStore) -> None:
        clock = node.clock
        assert isinstance(clock, ManualClock)
        self.node = node
        self.clock = clock
        self.timers = ManualTimers(clock)
        self.writer = Writer(node)
        self.sink = MemorySink()
        self.store = store("memory", node, self.writer, Hub(node), SYSTEM)
        self.controllers = Controllers(
            node,
            self.writer,
            self.store,
            clock=clock,
            timers=self.timers,
            sink=self.sink,
            coalesce_us=round(COALESCE_S * SECOND),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Scene"]:
        tasks = [
            asyncio.create_task(self.writer.run()),
            asyncio.create_task(keep_stamped(self.writer, self.node, COALESCE_S, self.timers)),
            asyncio.create_task(self.controllers.run()),
        ]
        try:
            await self.settle()
            yield self
            assert not any(task.done() for task in tasks), "one of them ended"
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    async def do(self, *commands: Any, **how: Any) -> None:
        await self.writer.submit(a_change(*commands, **how))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what needs no time to pass."""
        await self.idle()
        assert condition(), "nothing is left to be done, and it did not happen"

    async def settle(self) -> None:
        """Let time pass until nothing is left to be done, and no more: what is being done has all
        the time it needs while the clock stands."""
        give_up_us = self.clock.monotonic_us() + SETTLED_US
        await self.idle()
        while self._is_something_due():
            assert self.clock.monotonic_us() < give_up_us, "this goes on for ever"
            self.timers.advance(self.timers.waits_us()[0])
            await self.idle()

    async def resync(self) -> None:
        before = self.controllers.statistics().resyncs.get("DNSZone", 0)
        self.timers.advance(RESYNC_US)
        await self.idle()
        assert self.controllers.statistics().resyncs["DNSZone"] == before + 1
        await self.settle()

    async def idle(self) -> None:
        """Let happen what needs no time to pass."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, IdleLoop)
        await loop.idle()

    def _is_something_due(self) -> bool:
        waiting = sum(self.controllers.statistics().waiting.values())
        return bool(waiting or self.node.zones.unstamped())

    def status(self, key: Key) -> dict[str, Any] | None:
        stored = self.node.objects.find(key)
        return stored.status if stored is not None else None

    def says(self, key: Key, kind: str = "Ready") -> tuple[str, str] | None:
        found = condition(self.status(key), kind)
        return (found["status"], found["reason"]) if found is not None else None

    def status_events(self) -> int:
        return sum(event.type == OBJECT_STATUS for event in self.node.log.read())

    def told(self) -> list[tuple[str, str]]:
        return [(notice.reason, notice.key) for notice in self.sink.notices]


def play(
    act: Callable[[Scene], Awaitable[None]],
    node: Node | None = None,
    store: type[LogStore] = LogStore,
) -> Node:
    node = node or memory_node()

    async def whole() -> None:
        async with Scene(node, store).running() as scene:
            await asyncio.wait_for(act(scene), PATIENCE_S)

    run_idle(whole())
    return node
