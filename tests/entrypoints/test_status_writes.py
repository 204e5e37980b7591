"""How many statuses are written, counted in the log: what differs, and nothing else."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.domain.objects import Key, key_of
from kudurru.domain.ports import EventLog
from kudurru.entrypoints.wiring import Node
from tests.controllers import SECOND, Scene, play
from tests.logs import memory_log, sqlite_log
from tests.objects import ZONE_KEY, endpoint, put, record_set, zone
from tests.postgres import postgres_log

LOGS: dict[str, Callable[[Path], EventLog]] = {
    "memory": lambda folder: memory_log(),
    "sqlite": lambda folder: sqlite_log(folder / "log.db"),
    "postgres": lambda folder: postgres_log(),
}
CLAIMED = 20


@pytest.fixture(params=list(LOGS))
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    log = LOGS[request.param](tmp_path)
    yield Node(log, ManualClock(), SeededEntropy(2))
    log.close()


def key(name: str) -> Key:
    return key_of("DNSRecordSet", "default", name)


def host(name: str, owner: str, i: int) -> object:
    address = f"10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}"
    return put(record_set(name, endpoint(f"{owner}.example.org", "A", address)))


def changes_write_what_differs(node: Node, changes: int) -> None:
    """Changes, one after the other, of record sets that have a problem: each is a new generation,
    which the status has to name. Nobody is served them, so no serial moves."""

    async def act(scene: Scene) -> None:
        await scene.do(put(zone()), *(host(f"a{i}", f"h{i}", i) for i in range(CLAIMED)))
        await scene.do(*(host(f"b{i}", f"h{i}", i + 1) for i in range(CLAIMED)))
        await scene.settle()
        before = scene.status_events(), scene.status(ZONE_KEY)
        for i in range(changes):
            name = f"b{i % CLAIMED}"
            await scene.do(host(name, f"h{i % CLAIMED}", i + 1_000))
            scene.timers.advance(SECOND // 1_000)
            generation = scene.node.objects.find(key(name)).body.generation  # type: ignore[union-attr]  # it is there
            await scene.until(
                lambda name=name, generation=generation: (
                    (scene.status(key(name)) or {})["observedGeneration"] == generation
                )
            )
        await scene.settle()
        assert scene.status_events() == before[0] + changes
        assert scene.status(ZONE_KEY) == before[1]

    play(act, node)


def test_changes_write_exactly_what_differs(node: Node) -> None:
    changes_write_what_differs(node, 100)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_changes_write_exactly_what_differs(node: Node) -> None:
    changes_write_what_differs(node, 2_000)


def test_changes_of_what_is_as_it_should_be_write_serials_only(node: Node) -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()))
        await scene.settle()
        before = scene.status_events()
        for i in range(100):
            await scene.do(host(f"a{i % 10}", f"h{i % 10}", i))
            scene.timers.advance(SECOND // 1_000)
        await scene.settle()
        assert scene.status(key("a1")) is None
        assert scene.status_events() == before + 1  # all came within a quarter of a second

    play(act, node)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_resyncs_of_ten_thousand_objects_write_nothing() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()), *(host(f"a{i}", f"h{i}", i) for i in range(5_000)))
        await scene.do(*(host(f"b{i}", f"h{i}", i + 1) for i in range(5_000)))
        await scene.settle()
        assert scene.controllers.statistics().status_writes["DNSRecordSet"] == 5_000
        head = scene.node.log.head().seq
        for _ in range(10):
            await scene.resync()
        assert scene.node.log.head().seq == head

    play(act)
