"""The stores that the suite runs on. A new driver adds one factory here, and no case changes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.events import Who
from kudurru.domain.ports import EventLog, Store
from kudurru.entrypoints.store import opened
from tests.postgres import postgres_log

PATIENCE_S = 60.0
"""For a whole case. None takes as long, but for one that hangs."""

Case = Callable[[Store], Awaitable[None]]
Factory = Callable[[Path], AbstractAsyncContextManager[Store]]
"""An empty store, given a folder that is there for this case only."""


@asynccontextmanager
async def on_log(driver: str, log: EventLog) -> AsyncIterator[Store]:
    try:
        async with opened(
            driver,
            log,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            who=Who(actor="system", source="test"),
        ) as store:
            yield store
    finally:
        log.close()


def memory(folder: Path) -> AbstractAsyncContextManager[Store]:
    return on_log("memory", MemoryEventLog(entropy=SystemEntropy(), clock=SystemClock()))


def sqlite(folder: Path) -> AbstractAsyncContextManager[Store]:
    log = SQLiteEventLog.open(
        folder / "log.db", entropy=SystemEntropy(), clock=SystemClock(), create=True
    )
    return on_log("sqlite", log)


def postgres(folder: Path) -> AbstractAsyncContextManager[Store]:
    return on_log("postgres", postgres_log())


FACTORIES: dict[str, Factory] = {"memory": memory, "sqlite": sqlite, "postgres": postgres}


def on_every_store(case: Case) -> Callable[..., None]:
    """Make a case a test of every driver."""

    async def run(driver: str, folder: Path) -> None:
        async with FACTORIES[driver](folder) as store:
            await case(store)

    @pytest.mark.parametrize("driver", list(FACTORIES))
    def test(driver: str, tmp_path: Path) -> None:
        asyncio.run(asyncio.wait_for(run(driver, tmp_path), PATIENCE_S))

    # Not functools.wraps: pytest would take the case's argument for a fixture.
    test.__dict__["case"] = case  # for drivers that want more than a folder
    test.__name__ = case.__name__
    test.__doc__ = case.__doc__
    return test
