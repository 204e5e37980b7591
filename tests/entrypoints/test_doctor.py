"""The report of a running server, over a node in memory."""

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kudurru.adapters.data_dir import open_data_dir
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain.events import Recorded
from kudurru.domain.ports import LogHead
from kudurru.entrypoints.doctor import Patient, examine
from kudurru.entrypoints.doctor_report import Report
from kudurru.entrypoints.listeners import Udp
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.settings import Sources
from kudurru.entrypoints.wiring import Node
from tests.nodes import a_change
from tests.objects import put, zone


class DistantLog(MemoryEventLog):
    """One that a server far away has: asking it takes its time, so nobody may on the loop."""

    def head(self) -> LogHead:
        _refuse_the_loop()
        return super().head()

    def get(self, seq: int) -> Recorded | None:
        _refuse_the_loop()
        return super().get(seq)


def _refuse_the_loop() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise AssertionError("the log was asked on the event loop")


def patient(node: Node, data: Path) -> Patient:
    parts: Any = SimpleNamespace(
        node=node,
        settings=LiveSettings(Sources(None, {}), node.clock),
        checkpointer=None,
        keyring=SimpleNamespace(problems=list),
        directory=open_data_dir(data, create=True),
        lists=SimpleNamespace(rows=list),
        following=None,
        peers=SimpleNamespace(urls=()),
    )
    front: Any = SimpleNamespace(
        bound=[],
        resolving=SimpleNamespace(unhealthy=list),
        certificates=None,
        udp=Udp("python", 1),
    )
    readiness: Any = SimpleNamespace(why_not=list, warnings=list)
    return Patient(parts=parts, front=front, readiness=readiness)


def test_the_log_is_never_asked_on_the_event_loop(tmp_path: Path) -> None:
    clock = ManualClock()
    log = DistantLog(entropy=SeededEntropy(1), clock=clock)
    node = Node(log, clock, SeededEntropy(2))
    node.commit(a_change(put(zone())))

    async def main() -> Report:
        return await examine(patient(node, tmp_path / "data"), "admin")

    found = {check.check: check.status for check in asyncio.run(main()).checks}
    assert (found["clock"], found["log"]) == ("ok", "ok")
