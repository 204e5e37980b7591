"""The process that writes the query log, as the server meets it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kudurru.adapters.query_log import process as process_module
from kudurru.adapters.query_log.process import QueryLogProcess
from kudurru.adapters.query_log.reader import Wanted, open_reader
from kudurru.domain.dns import names
from kudurru.domain.errors import Busy, NotFound
from kudurru.domain.filtering.clients import packed_address
from kudurru.domain.query_log import Fact, Privacy, Retention
from kudurru.projections.query_log import BATCH_MAX, QueryNotes

PATIENCE_S = 60.0


def fact(name: str = "www.example", ts_us: int = 1, key: bytes = b"") -> Fact:
    client = packed_address("192.0.2.77")
    return Fact(ts_us, client, names.from_text(name), 1, "udp", 0, "forward", key=key)


@asynccontextmanager
async def running(
    path: Path,
    notes: QueryNotes,
    privacy: Privacy | None = None,
    forget: Callable[[], None] = lambda: None,
) -> AsyncIterator[QueryLogProcess]:
    process = QueryLogProcess(
        path, lambda: notes.take(2), notes.lost, privacy or Privacy(), Retention(), forget
    )
    task = asyncio.create_task(process.run())
    try:
        yield process
    finally:
        task.cancel()
        await process.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


def logged(path: Path) -> list[str]:
    try:
        with open_reader(path) as reader:
            return [one.name for one in reader.queries(Wanted(), 100_000)]
    except NotFound:
        return []


def test_what_is_noted_is_in_the_file_at_the_end(tmp_path: Path) -> None:
    async def session() -> None:
        notes = QueryNotes()
        async with running(tmp_path / "q.db", notes) as process:
            await until(lambda: process._child is not None)
            assert await process.purge(None) == 0  # it has come up, however slow the machine is
            for i in range(BATCH_MAX + 10):
                notes.note(fact(f"{i}.example"))
        assert notes.statistics().waiting == 0

    asyncio.run(session())
    assert len(logged(tmp_path / "q.db")) == BATCH_MAX + 10


def test_a_purge_takes_also_what_was_noted_just_now(tmp_path: Path) -> None:
    async def session() -> None:
        notes = QueryNotes()
        async with running(tmp_path / "q.db", notes) as process:
            await until(lambda: process._child is not None)
            for i in range(10):
                notes.note(fact(ts_us=i + 1))
            assert await process.purge(5) == 4
            assert await process.purge(None) == 6
            assert process.statistics.deleted == 10

    asyncio.run(session())
    assert logged(tmp_path / "q.db") == []


def test_without_a_child_notes_are_lost_and_counted_and_a_purge_is_told(tmp_path: Path) -> None:
    async def session() -> None:
        notes = QueryNotes()
        process = QueryLogProcess(
            tmp_path / "q.db", lambda: notes.take(2), notes.lost, Privacy(), Retention()
        )
        notes.note(fact())
        with pytest.raises(Busy):
            await process.purge(None)
        assert notes.statistics().dropped == 1

    asyncio.run(session())


def test_another_child_is_started_when_one_ends(tmp_path: Path) -> None:
    async def session() -> None:
        notes = QueryNotes()
        async with running(tmp_path / "q.db", notes) as process:
            await until(lambda: process._child is not None)
            first = process._child
            assert first is not None
            os.kill(first.pid, signal.SIGKILL)
            await until(lambda: process._child is not first and process._child is not None)
            notes.note(fact("after.example"))
            await until(lambda: logged(tmp_path / "q.db") == ["after.example"])
            assert process.restarts == 1

    asyncio.run(session())


KEY = names.from_text("www.example") + b"\0\1\0\1"
REPEAT = packed_address("192.0.2.9"), bytes(10) + KEY, 0, 1


def test_another_child_gets_to_know_what_is_repeated(tmp_path: Path) -> None:
    """Engines that forget ask the pipeline again, which notes what they will repeat."""

    async def session() -> None:
        notes = QueryNotes()
        asked: list[int] = []

        def ask_again() -> None:
            asked.append(process.restarts)
            notes.note(fact(key=KEY))

        async with running(tmp_path / "q.db", notes, forget=ask_again) as process:
            await until(lambda: process._child is not None)
            notes.note(fact(key=KEY))
            await until(lambda: len(logged(tmp_path / "q.db")) == 1)
            assert asked == []
            first = process._child
            assert first is not None
            os.kill(first.pid, signal.SIGKILL)
            await until(lambda: bool(asked))
            notes.repeated("udp", [REPEAT] * 3)
            assert asked == [1]
            assert await process.purge(None) == 5
            assert process.statistics.unknown == 0

    asyncio.run(session())


def test_what_was_counted_stays_counted_when_another_child_is_started(tmp_path: Path) -> None:
    async def session() -> None:
        notes = QueryNotes()
        async with running(tmp_path / "q.db", notes) as process:
            for round_ in range(1, 3):
                old = process._child
                await until(lambda old=old: process._child is not old)  # type: ignore[misc]  # a condition
                notes.repeated("udp", [REPEAT] * 3)
                notes.note(fact())
                assert await process.purge(None) == 1
                seen = process.statistics
                assert (seen.written, seen.deleted, seen.unknown) == (round_, round_, 3 * round_)
                assert process._child is not None
                os.kill(process._child.pid, signal.SIGKILL)
                await until(lambda round_=round_: process.restarts == round_)  # type: ignore[misc]  # a condition
                assert process.statistics == seen

    asyncio.run(session())


def test_a_child_that_got_nothing_to_write_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "STOP_S", 3600)

    async def session() -> None:
        async with running(tmp_path / "q.db", QueryNotes()) as process:
            await until(lambda: process._child is not None)
            assert process._child is not None
            process._child.send_signal(signal.SIGSTOP)

    asyncio.run(session())


def test_facts_that_were_lost_are_asked_for_once_there_is_somebody_to_tell(tmp_path: Path) -> None:
    async def session() -> None:
        notes, forgotten = QueryNotes(), []
        process = QueryLogProcess(
            tmp_path / "q.db", lambda: notes.take(2), notes.lost, Privacy(), Retention(),
            lambda: forgotten.append(True),
        )  # fmt: skip
        for _ in range(3):
            notes.note(fact(key=KEY))
            with pytest.raises(Busy):
                await process.purge(None)
        assert (notes.statistics().dropped, forgotten) == (3, [])
        task = asyncio.create_task(process.run())
        await until(lambda: bool(forgotten))
        task.cancel()
        await process.close()
        assert forgotten == [True]

    asyncio.run(session())


def test_privacy_is_there_before_the_first_query_and_changes_at_once(tmp_path: Path) -> None:
    async def session() -> None:
        notes = QueryNotes()
        async with running(tmp_path / "q.db", notes, Privacy(level=2)) as process:
            await until(lambda: process._child is not None)
            notes.note(fact())
            await until(lambda: bool(logged(tmp_path / "q.db")))
            process.configure(Privacy(level=3), Retention())
            notes.note(fact("secret.example"))

    asyncio.run(session())
    data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"192.0.2.77" not in data
    assert b"secret" not in data


def test_when_notes_are_full_the_newest_are_dropped_and_counted() -> None:
    notes = QueryNotes(notes_max=3)
    notes.note(fact())
    notes.answered([(b"\0\0\0\1", b"q", 3, 1)])
    notes.repeated("udp", [(b"\0\0\0\1", b"q", 0, 1)] * 5)
    notes.note(fact())
    notes.answered([(b"\0\0\0\1", b"q", 0, 1)])
    assert notes.statistics().dropped == 6
    assert notes.statistics().noted == 3
    taken = notes.take(9)
    assert taken is not None
    assert (taken.now_us, len(taken.facts), len(taken.repeats["udp"])) == (9, 1, 1)
    assert taken.answers == [(b"\0\0\0\1", b"q", 3, 1)]
    assert notes.take(9) is None


def test_a_repeat_never_goes_before_the_fact_that_it_repeats() -> None:
    notes = QueryNotes()
    for i in range(BATCH_MAX + 1):
        notes.note(fact(ts_us=i))
    notes.repeated("udp", [(b"\0\0\0\1", b"q", 0, 1)])
    first, second = notes.take(0), notes.take(0)
    assert first is not None
    assert second is not None
    assert (len(first.facts), len(first.repeats)) == (BATCH_MAX, 0)
    assert second.repeats == {"udp": [(b"\0\0\0\1", b"q", 0, 1)]}


def test_many_repeats_are_handed_over_in_batches_of_each_protocol() -> None:
    notes = QueryNotes()
    for proto, count in (("udp", BATCH_MAX + 5), ("tls", 3), ("tcp", 2 * BATCH_MAX + 1)):
        notes.repeated(proto, [(b"\0\0\0\1", b"q", 0, 1)] * count)
    taken = iter(lambda: notes.take(0), None)
    sizes = [
        {proto: len(repeats) for proto, repeats in seen.repeats.items()}
        for seen in taken
        if seen is not None
    ]
    assert sizes == [
        {"udp": BATCH_MAX, "tls": 3, "tcp": BATCH_MAX},
        {"udp": 5, "tcp": BATCH_MAX},
        {"tcp": 1},
    ]
    assert len(notes) == 0
