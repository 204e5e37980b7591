"""Several nodes on one log: whoever is overtaken decides again, and all end equal."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.signing import KeyFolder
from kudurru.domain.chain import origin_of
from kudurru.domain.commands import Command
from kudurru.domain.errors import Busy, Conflict, Invalid, ManagedBy, NotFound, StorageFailed
from kudurru.domain.events import OBJECT_APPLIED, OBJECT_STATUS, PAYLOAD_REDACTED, Recorded
from kudurru.domain.object_store import decode_status
from kudurru.domain.objects import key_of
from kudurru.domain.verify import verify
from kudurru.entrypoints.checkpoints import Checkpointer, CheckpointPolicy
from kudurru.entrypoints.directory import trust_of
from kudurru.entrypoints.upkeep import RedactRequest
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer, keep_stamped
from tests.nodes import TESTER, a_change
from tests.objects import drop, endpoint, put, record_set, www, zone
from tests.shared_log import SharedMemoryLog

NODES = 3


class Peer:
    def __init__(self, log: SharedMemoryLog) -> None:
        self.node = Node(log, SystemClock(), SystemEntropy())
        self.writer = Writer(self.node)

    async def do(self, *commands: Command) -> None:
        await self.writer.submit(a_change(*commands))


@asynccontextmanager
async def peers(count: int = NODES, *, stamping: bool = True) -> AsyncIterator[list[Peer]]:
    log = SharedMemoryLog(entropy=SystemEntropy(), clock=SystemClock())
    found = [Peer(log) for _ in range(count)]
    tasks = []
    for peer in found:
        peer.writer.follow()
        tasks.append(asyncio.create_task(peer.writer.run()))
        if stamping:
            tasks.append(asyncio.create_task(keep_stamped(peer.writer, peer.node, 0.001)))
    try:
        yield found
    finally:
        for task in tasks:
            assert not task.done(), task
            task.cancel()


async def until_level(peers: list[Peer]) -> None:
    """All nodes have everything, and nothing is left to stamp."""
    async with asyncio.timeout(60):
        while True:
            head = peers[0].node.log.head().seq
            await asyncio.sleep(0.005)
            if all(
                p.node.position == head == p.node.log.head().seq and not p.node.zones.unstamped()
                for p in peers
            ):
                return


def run(test: Callable[[list[Peer]], Awaitable[None]], **how: bool) -> None:
    async def main() -> None:
        async with peers(**how) as found:
            await test(found)

    asyncio.run(main())


def digests(node: Node) -> dict[str, str]:
    return node.views.digests()


def test_what_one_node_records_is_in_the_views_of_all() -> None:
    async def test(peers: list[Peer]) -> None:
        await peers[0].do(put(zone()), put(www()))
        await until_level(peers)
        assert len({peer.node.zones.digest() for peer in peers}) == 1
        await peers[1].do(put(www("192.0.2.9")))
        assert peers[1].node.objects.version(www().key) == 2  # acknowledged: the caller sees it
        await until_level(peers)
        assert [peer.node.objects.version(www().key) for peer in peers] == [2] * NODES

    run(test)


def test_of_nodes_that_race_one_creates_and_the_others_are_told_who() -> None:
    async def test(peers: list[Peer]) -> None:
        results = await asyncio.gather(
            *(peers[i % NODES].do(put(zone(), f"m{i}")) for i in range(9)), return_exceptions=True
        )
        winners = [i for i, result in enumerate(results) if result is None]
        lost = [result for result in results if result is not None]
        assert len(winners) == 1
        assert {type(error) for error in lost} == {ManagedBy}
        assert {e.owner for e in lost if isinstance(e, ManagedBy)} == {f"m{winners[0]}"}

    run(test)


def test_of_nodes_that_race_with_one_version_one_wins() -> None:
    async def test(peers: list[Peer]) -> None:
        await peers[0].do(put(zone()), put(www()))
        await until_level(peers)
        stored = peers[0].node.objects.find(www().key)
        assert stored is not None
        version = stored.resource_version
        results = await asyncio.gather(
            *(p.do(put(www(f"198.51.100.{i}"), expected=version)) for i, p in enumerate(peers)),
            return_exceptions=True,
        )
        assert results.count(None) == 1
        assert sum(isinstance(result, Conflict) for result in results) == NODES - 1

    run(test)


def test_an_apply_that_was_overtaken_by_the_same_apply_writes_nothing() -> None:
    async def test(peers: list[Peer]) -> None:
        await asyncio.gather(*(peer.do(put(www())) for peer in peers))
        assert peers[0].node.log.head().seq == 1

    run(test, stamping=False)


def test_zones_are_stamped_once_for_each_content_whoever_stamps() -> None:
    async def test(peers: list[Peer]) -> None:
        await peers[0].do(put(zone()))
        for number in range(12):
            await peers[number % NODES].do(put(www(f"192.0.2.{number}")))
            if number % 4 == 0:
                await until_level(peers)
        await until_level(peers)
        stamps = [
            decode_status(event.body)
            for event in peers[0].node.log.read()
            if event.type == OBJECT_STATUS and event.body is not None
        ]
        serials = [stamp["serial"] for stamp in stamps]
        assert serials == sorted(set(serials))
        hashes = [stamp["contentHash"] for stamp in stamps]
        assert all(a != b for a, b in itertools.pairwise(hashes))

    run(test)


def a_command(rng: random.Random) -> Command:
    name = f"r{rng.randrange(6)}"
    match rng.randrange(8):
        case 0:
            return put(zone(defaultTTL=rng.choice([60, 300, 600])))
        case 1:
            return drop(key_of("DNSRecordSet", "default", name))
        case 2:
            return drop(key_of("DNSZone", "", "example.org"))
        case _:
            owner = rng.choice(["a", "b", "c", name])
            address = f"192.0.2.{rng.randrange(5)}"
            return put(record_set(name, endpoint(f"{owner}.example.org", "A", address)))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_nodes_that_all_write_by_chance_end_equal_and_as_a_rebuilt_one(seed: int) -> None:
    async def write(peer: Peer, rng: random.Random) -> None:
        for _ in range(12):
            # Busy: the other nodes were faster all the time, which is told and changes nothing.
            with suppress(NotFound, Conflict, Invalid, Busy):
                await peer.do(*(a_command(rng) for _ in range(rng.choice([1, 1, 1, 4]))))

    async def test(peers: list[Peer]) -> None:
        rng = random.Random(seed)
        await peers[0].do(put(zone()))
        await asyncio.gather(*(write(peer, random.Random(rng.random())) for peer in peers))
        await until_level(peers)
        log = peers[0].node.log
        rebuilt = Node(log, SystemClock(), SystemEntropy())
        rebuilt.catch_up()
        found = [digests(peer.node) for peer in peers]
        assert found == [digests(rebuilt)] * NODES
        assert verify(log).is_whole
        assert [event.seq for event in log.read()] == list(range(1, log.head().seq + 1))

    run(test)


class OvertakingLog(MemoryEventLog):
    """What `overtake` does comes between a decision and the next signed append."""

    is_shared = True
    overtake: Callable[[], object] | None = None

    def append_signed(self, *args: Any, **how: Any) -> list[Recorded]:
        overtake, self.overtake = self.overtake, None
        if overtake is not None:
            overtake()
        return super().append_signed(*args, **how)


def test_a_node_without_a_key_that_is_overtaken_erases_all_the_same(tmp_path: Path) -> None:
    log = OvertakingLog(entropy=SystemEntropy(), clock=SystemClock())
    one, other = (Node(log, SystemClock(), SystemEntropy()) for _ in range(2))

    def signer(node: Node, name: str) -> Checkpointer:
        (tmp_path / name).mkdir()
        keys = KeyFolder(tmp_path / name, origin_of(log.log_id, log.epoch), SystemEntropy())
        return Checkpointer(node, keys, CheckpointPolicy())

    one.commit(a_change(put(zone()), put(www())))
    first = signer(one, "one")
    first.take(first.plan)
    one.commit(a_change(put(www("192.0.2.9"))))
    other.catch_up()
    second = signer(other, "other")
    assert "another node signs this log" in second.why_not
    secret = next(e.seq for e in log.read(key=www().key) if e.type == OBJECT_APPLIED)
    log.overtake = lambda: one.commit(a_change(put(www("192.0.2.10"))))

    async def redact() -> None:
        writer = Writer(other, second)
        running = asyncio.create_task(writer.run())
        await writer.redact(RedactRequest(seq=secret, reason="secret"), TESTER)
        writer.stop()
        await running

    asyncio.run(redact())
    assert log.overtake is None
    erased = log.get(secret)
    assert erased is not None
    assert erased.body is None
    one.catch_up()
    assert digests(one) == digests(other)
    assert verify(log).is_whole
    # Until the node that has the key signs it, whoever verifies is told of it.
    (redacted,) = [e.seq for e in log.read() if e.type == PAYLOAD_REDACTED]
    unsigned = verify(log, trust=trust_of())
    assert unsigned.is_whole
    assert unsigned.signed.size < redacted == unsigned.signed.open_redaction
    first.take(first.plan)
    signed = verify(log, trust=trust_of())
    assert signed.is_whole
    assert signed.signed.size > redacted
    assert signed.signed.open_redaction == 0


@pytest.mark.parametrize("by_change", [True, False])
def test_a_node_that_cannot_read_the_log_serves_on_and_follows_later(
    by_change: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(peers: list[Peer]) -> None:
        one, other = peers[:2]
        await one.do(put(zone()), put(www()))
        await until_level(peers)

        def unreachable(limit: int) -> list[object]:
            raise StorageFailed("the database is away")

        with monkeypatch.context() as patch:
            patch.setattr(other.node, "news", unreachable)
            await one.do(put(www("192.0.2.9")))
            async with asyncio.timeout(60):
                while not other.writer.statistics().catch_ups_failed:
                    await asyncio.sleep(0)
            (served,) = other.node.zones.served
            assert served.record_count
            if by_change:
                with pytest.raises(StorageFailed):
                    await other.do(put(zone(defaultTTL=60)))
        await one.do(put(www("192.0.2.10")))
        await until_level(peers)
        assert len({peer.node.zones.digest() for peer in peers}) == 1

    run(test)
