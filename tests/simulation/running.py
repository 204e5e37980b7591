"""A node that works on a directory as a server does, without its sockets: the lock, the log with
its tail verified, the one writer, and callers that change things by chance."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import open_data_dir
from kudurru.adapters.secret_files import secret_in
from kudurru.adapters.sqlite.lock import DirectoryLock
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.checkpoint import parse_checkpoint
from kudurru.domain.commands import Apply, Command, Delete
from kudurru.domain.errors import NotFound
from kudurru.domain.events import Who
from kudurru.domain.objects import key_of
from kudurru.domain.ports import LogRow
from kudurru.domain.verify import verify
from kudurru.entrypoints.checkpoint_loop import keep_checkpoints
from kudurru.entrypoints.checkpoints import Checkpointer, CheckpointPolicy
from kudurru.entrypoints.directory import open_checkpointer, open_log, replay, trust_of
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer, keep_stamped
from tests.objects import endpoint, record_set, zone

ZONE = "cut.example"
NAMES = 40
BATCH_MAX = 30
PUBLISHED = "published"
WHO = Who(actor="user:0", source="test", reason="by chance")

Acknowledge = Callable[[int], None]
"""Called with the position of a change set that the writer says is durable."""


@contextmanager
def log_at(data: Path) -> Iterator[SQLiteEventLog]:
    directory = open_data_dir(data, create=True)
    with (
        DirectoryLock.acquire(directory.lock, now_us=SystemClock().now_us()),
        open_log(directory, create=True) as log,
    ):
        yield log


def node_on(log: SQLiteEventLog) -> Node:
    node = Node(log, SystemClock(), SystemEntropy())
    replay(node)
    return node


def checkpointer_of(node: Node, data: Path) -> Checkpointer:
    """With the other secrets that a server has, made where they are missing. Checkpoints are often
    here."""
    directory = open_data_dir(data)
    secret_in(directory.cookie_secret, 16, SystemEntropy())
    policy = CheckpointPolicy(events=20, interval_s=0.02, publish=(str(data / PUBLISHED),))
    checkpointer = open_checkpointer(directory, node, policy)
    assert not checkpointer.why_not
    checkpointer.recount()
    return checkpointer


@asynccontextmanager
async def writer_of(
    node: Node, checkpointer: Checkpointer | None = None, coalesce_s: float = 0.001
) -> AsyncIterator[Writer]:
    """The writer, the stamps and the checkpoints of a node, running. What ends them ends the block
    too."""
    writer = Writer(node, checkpointer)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(writer.run()),
            tasks.create_task(keep_stamped(writer, node, coalesce_s)),
        ]
        if checkpointer is not None:
            keeping = keep_checkpoints(writer, checkpointer, node.clock)
            running.append(tasks.create_task(keeping))
        writer.request_stamp()
        yield writer
        for task in running:
            task.cancel()


async def change_things(
    node: Node,
    checkpointer: Checkpointer,
    rng: random.Random,
    *,
    callers: int,
    each: int,
    acknowledge: Acknowledge,
) -> None:
    """`callers` at a time, each of them `each` changes, one after the other; a checkpoint now and
    then, and at the end."""

    async def caller(rng: random.Random) -> None:
        for _ in range(each):
            if rng.random() < 0.05:
                acknowledge((await writer.checkpoint()).size)
            with suppress(NotFound):  # what is deleted may not be there
                result = await writer.submit(a_change(rng))
                if result.seq:
                    acknowledge(result.seq)

    async with writer_of(node, checkpointer) as writer:
        result = await writer.submit(change(Apply(manifest=zone(ZONE), manager="kudurru")))
        if result.seq:
            acknowledge(result.seq)
        seeds = [random.Random(rng.random()) for _ in range(callers)]
        await asyncio.gather(*map(caller, seeds))
        acknowledge((await writer.checkpoint()).size)


def change(*commands: Command) -> Change:
    return Change(commands=commands, who=WHO)


def a_change(rng: random.Random) -> Change:
    """One record set, a batch of them, a long text, or a deletion."""
    chance = rng.random()
    if chance < 0.1:
        return change(Delete(key=key_of("DNSRecordSet", "default", _name(rng))))
    if chance < 0.2:
        chosen = rng.sample(range(NAMES), rng.randrange(2, BATCH_MAX))
        return change(*(an_apply(f"r{number}", rng) for number in chosen))
    text = "x" * rng.randrange(4_000) if chance < 0.4 else ""
    return change(an_apply(_name(rng), rng, text))


def _name(rng: random.Random) -> str:
    return f"r{rng.randrange(NAMES)}"


def an_apply(name: str, rng: random.Random, text: str = "") -> Apply:
    """Of a record set that is most likely not what it was."""
    address = f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}"
    endpoints = [endpoint(f"{name}.{ZONE}", "A", address)]
    if text:
        endpoints.append(endpoint(f"{name}.{ZONE}", "TXT", text))
    return Apply(manifest=record_set(name, *endpoints, zone=ZONE), manager="kudurru", force=True)


def check_start(data: Path, *, acknowledged: int, history: list[LogRow] | None = None) -> int:
    """Start on what a crash left: everything up to position `acknowledged` is there, whole and in
    order, and the next changes work. How many rows there were.

    `history` is what was going to be recorded: the log must be a beginning of it.
    """
    with log_at(data) as log:
        rows = list(log.rows())
        newest = len(rows)
        assert [row.seq for row in rows] == list(range(1, newest + 1)), "a gap"
        assert newest >= acknowledged, f"{acknowledged} was acknowledged, and {newest} is the last"
        if history is not None:
            assert rows == history[:newest], "other events than were recorded"
        assert_whole(log, data)
        node = node_on(log)
        assert node.log.head().seq == newest
        rng = random.Random(newest)
        for command in (
            Apply(manifest=zone(ZONE), manager="kudurru"),
            an_apply("after", rng),
            an_apply("after", rng),
        ):
            node.commit(change(command))
        checkpointer = checkpointer_of(node, data)
        assert checkpointer.take(checkpointer.plan).size == log.head().seq > newest
        assert_whole(log, data)
    return newest


def assert_whole(log: SQLiteEventLog, data: Path) -> None:
    """Chain, tree, signatures, indexes, and what was published."""
    published = data / PUBLISHED
    checkpoint = parse_checkpoint(published.read_text()) if published.exists() else None
    found = verify(log, trust=trust_of(checkpoint=checkpoint))
    assert found.is_whole, found.damages
    log.check_storage()
