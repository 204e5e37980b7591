"""The writer of a server, when what is written is in doubt, and when it is told to end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kudurru.adapters.memory.clock import SeededEntropy
from kudurru.adapters.signing import KeyFolder
from kudurru.domain.errors import LogDamaged, StorageBroken, StorageFailed
from kudurru.entrypoints import writer as writer_module
from kudurru.entrypoints.checkpoint_loop import keep_checkpoints
from kudurru.entrypoints.checkpoints import Checkpointer, CheckpointPolicy
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer, keep_stamped
from tests.nodes import BrittleLog, a_change, memory_node
from tests.objects import WWW_KEY, drop, put, www, zone


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[Writer]:
    writer = Writer(node)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        assert not task.done(), "the writer ended, and with it the server"
        task.cancel()


def with_writer(test: Callable[[Writer, Node, BrittleLog], Awaitable[None]]) -> None:
    node = memory_node()
    log = node.log
    assert isinstance(log, BrittleLog)

    async def run() -> None:
        async with asyncio.timeout(60), running(node) as writer:
            await test(writer, node, log)

    asyncio.run(run())


async def serial_of(node: Node) -> int:
    """Of the zone, once it is stamped."""
    while (state := node.zones.find("example.org")) is None or state.zone is None:
        await asyncio.sleep(0)
    while state.zone.stamped_soa is None:
        await asyncio.sleep(0)
    return state.zone.serial


def test_an_imported_serial_waits_for_a_stamp_that_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "STAMP_RETRY_S", 0)

    async def test(writer: Writer, node: Node, log: BrittleLog) -> None:
        log.fails_next, log.passes = True, 1
        change = a_change(put(zone()), imported_serials={"example.org": 77})
        assert (await writer.submit(change)).seq == 1
        assert not log.fails_next
        assert await serial_of(node) == 77

    with_writer(test)


@pytest.mark.parametrize(
    "error", [StorageFailed("it cannot be read"), LogDamaged("gap", 2, "the event is missing")]
)
def test_who_changed_what_the_views_could_not_follow_is_told_that_it_is_recorded(
    error: StorageFailed | LogDamaged,
) -> None:
    async def test(writer: Writer, node: Node, log: BrittleLog) -> None:
        await writer.submit(a_change(put(zone()), put(www())))

        def broken(seq: int) -> None:
            raise error

        node.zones._read_event = broken  # type: ignore[assignment]
        before = log.head().seq
        with pytest.raises(StorageBroken, match="is recorded, and the views could not follow"):
            await writer.submit(a_change(drop(WWW_KEY)))
        assert log.head().seq == before + 1
        assert isinstance(node.why_not_writable, StorageBroken)

    with_writer(test)


@pytest.mark.parametrize("error", [StorageBroken("half a commit"), LogDamaged("gap", 1, "gone")])
def test_after_a_write_that_leaves_doubt_nothing_is_written_any_more(
    error: StorageBroken | LogDamaged,
) -> None:
    async def test(writer: Writer, node: Node, log: BrittleLog) -> None:
        log.fails_next, log.error = True, error
        for _ in range(2):
            with pytest.raises(type(error), match=str(error)):
                await writer.submit(a_change(put(zone())))
            writer.request_stamp()
        assert node.why_not_writable is error
        assert log.head().seq == 0

    with_writer(test)


def test_views_that_cannot_follow_the_log_stop_the_writing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(writer: Writer, node: Node, log: BrittleLog) -> None:
        await writer.submit(a_change(put(zone()), put(www())))
        position = log.head().seq

        def unreadable(_: object) -> None:
            raise StorageFailed("the disk failed")

        monkeypatch.setattr(node, "take_in_steps", unreadable)
        with pytest.raises(StorageBroken, match=f"position {position + 1} is recorded"):
            await writer.submit(a_change(put(www("192.0.2.9"))))
        assert isinstance(node.why_not_writable, StorageBroken)

    with_writer(test)


def test_a_node_of_the_same_log_has_what_was_acknowledged() -> None:
    async def test(writer: Writer, node: Node, log: BrittleLog) -> None:
        log.fails_next, log.passes = True, 3
        await asyncio.gather(
            *(writer.submit(a_change(put(zone(f"z{n}.example")))) for n in range(5)),
            return_exceptions=True,
        )
        other = Node(log, node.clock, node._entropy)
        other.views.follower.catch_up(log)
        assert other.views.digests() == node.views.digests()

    with_writer(test)


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("loop", ["stamps", "checkpoints"])
def test_the_loops_beside_the_writer_end_when_told_even_as_something_is_recorded(
    loop: str, turns: int, tmp_path: Path
) -> None:
    async def test() -> None:
        node = memory_node()
        keys = KeyFolder(tmp_path, "kudurru/test/1", SeededEntropy(1))
        checkpointer = Checkpointer(node, keys, CheckpointPolicy())
        writer = Writer(node, checkpointer)
        task = asyncio.create_task(
            keep_stamped(writer, node, 0)
            if loop == "stamps"
            else keep_checkpoints(writer, checkpointer, node.clock)
        )
        for _ in range(3):
            await asyncio.sleep(0)
        writer.on_applied.set()
        writer.on_recorded.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        ended, _ = await asyncio.wait([task], timeout=60)
        assert ended

    asyncio.run(test())


def test_a_refused_write_changes_nothing_and_the_next_one_works() -> None:
    async def test(writer: Writer, node: Node, log: BrittleLog) -> None:
        log.fails_next = True
        with pytest.raises(StorageFailed, match="no space left"):
            await writer.submit(a_change(put(zone())))
        assert (log.head().seq, node.objects.position, node.why_not_writable) == (0, 0, None)
        assert (await writer.submit(a_change(put(zone())))).seq == 1
        assert (writer.statistics().changes, writer.statistics().failed) == (2, 1)

    with_writer(test)


def test_a_change_is_acknowledged_when_only_its_stamp_is_refused_which_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "STAMP_RETRY_S", 0)

    async def test(writer: Writer, node: Node, log: BrittleLog) -> None:
        log.fails_next, log.passes = True, 1
        change = a_change(put(zone()), imported_serials={"example.org": 77})
        assert (await writer.submit(change)).seq == 1
        assert not log.fails_next
        assert await serial_of(node) == 77

    with_writer(test)
