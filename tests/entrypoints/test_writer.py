"""The writer of a server: groups of changes, and stamps between them."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.dns.serials import CLOCK_LEAP_MAX_S
from kudurru.domain.errors import Busy, LogDamaged, ManagedBy, StorageBroken, StorageFailed
from kudurru.domain.events import CLOCK_STEPPED, OBJECT_STATUS, ChangeSet, Event
from kudurru.entrypoints import writer as module
from kudurru.entrypoints.wiring import Node, Result
from kudurru.entrypoints.writer import Writer, keep_stamped
from tests.nodes import TESTER, BrittleLog, a_change, memory_node, rebuilt
from tests.objects import WWW_KEY, ZONE_KEY, endpoint, put, record_set, www, zone

SECOND = 1_000_000

Use = Callable[[Node, Writer], Awaitable[None]]


def run(use: Use, *, coalesce_s: float | None = None) -> Node:
    """A node with its writer running while `use` does; with the runnable that asks for stamps,
    when it is told how long a burst may be."""

    async def scene() -> Node:
        node = memory_node()
        writer = Writer(node)
        tasks = [asyncio.create_task(writer.run())]
        if coalesce_s is not None:
            tasks.append(asyncio.create_task(keep_stamped(writer, node, coalesce_s)))
        try:
            await asyncio.wait_for(use(node, writer), 60)
            assert not any(task.done() for task in tasks), "the writer ended"
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
        return node

    return asyncio.run(scene())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def host(i: int):
    return put(record_set(f"h{i}", endpoint(f"h{i}.example.org", "A", f"192.0.2.{i % 250}")))


def stamps(node: Node) -> int:
    return sum(event.type == OBJECT_STATUS for event in node.log.read())


def serial(node: Node) -> int:
    (only,) = node.zones.served
    return only.serial


def log_of(node: Node) -> BrittleLog:
    assert isinstance(node.log, BrittleLog)
    return node.log


def test_concurrent_callers_share_a_transaction_and_each_is_told_its_own() -> None:
    async def use(node: Node, writer: Writer) -> None:
        results = await asyncio.gather(*(writer.submit(a_change(host(i))) for i in range(32)))
        assert [result.seq for result in results] == list(range(1, 33))
        assert all(node.objects.version(result.outcomes[0].key) == 1 for result in results)
        assert writer.statistics().groups == 1
        assert writer.statistics().changes == 32

    node = run(use)
    assert {event.n for event in node.log.read()} == {1}


async def after_turns(turns: int, writer: Writer) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    await writer.submit(a_change(host(turns)))


def test_callers_who_come_one_turn_after_the_other_share_a_transaction() -> None:
    async def use(_: Node, writer: Writer) -> None:
        await asyncio.gather(*(after_turns(i, writer) for i in range(module.TURNS_MAX // 2)))
        assert writer.statistics().groups == 1

    run(use)


def test_a_group_does_not_wait_for_ever_for_those_who_still_come() -> None:
    async def use(_: Node, writer: Writer) -> None:
        coming = [asyncio.ensure_future(after_turns(i, writer)) for i in range(100)]
        await coming[0]
        assert not all(one.done() for one in coming)
        await asyncio.gather(*coming)
        assert writer.statistics().groups > 1

    run(use)


def test_a_refused_change_hurts_no_other_of_its_group() -> None:
    async def use(node: Node, writer: Writer) -> None:
        found = await asyncio.gather(
            *(writer.submit(a_change(put(www(f"192.0.2.{i}"), manager=f"m{i}"))) for i in range(8)),
            return_exceptions=True,
        )
        assert isinstance(found[0], Result)
        assert [error.owner for error in found[1:] if isinstance(error, ManagedBy)] == ["m0"] * 7

    assert run(use).log.head().seq == 1


def test_a_new_zone_has_its_serial_before_the_change_is_acknowledged() -> None:
    async def use(node: Node, writer: Writer) -> None:
        await writer.submit(a_change(put(zone())))
        assert serial(node) == node.clock.now_us() // SECOND

    assert stamps(run(use)) == 1


def test_an_imported_serial_stands_before_the_change_is_acknowledged() -> None:
    async def use(node: Node, writer: Writer) -> None:
        await writer.submit(a_change(put(zone()), imported_serials={"example.org": 2026112901}))
        assert serial(node) == 2026112901

    run(use)


def test_a_burst_of_changes_passes_as_one_version() -> None:
    async def use(node: Node, writer: Writer) -> None:
        await writer.submit(a_change(put(zone())))
        before = serial(node)
        for i in range(300):
            await writer.submit(a_change(host(i)))
        assert serial(node) == before
        (served,) = node.zones.served
        assert served.record_count == 300  # queries are answered from the newest content
        writer.request_stamp()
        await until(lambda: serial(node) != before)
        assert serial(node) == before + 1

    assert stamps(run(use)) == 2


def test_a_change_is_stamped_without_being_asked_and_the_stamp_causes_no_other() -> None:
    async def use(node: Node, writer: Writer) -> None:
        await writer.submit(a_change(put(zone())))
        await writer.submit(a_change(put(www())))
        await until(lambda: stamps(node) == 2)
        await writer.submit(a_change(put(www(labels={"a": "b"}))))
        for _ in range(50):
            await asyncio.sleep(0)

    node = run(use, coalesce_s=0)
    assert stamps(node) == 2
    assert rebuilt(node).views.digests() == node.views.digests()


def test_a_log_that_refuses_is_told_to_every_caller_and_the_next_change_works() -> None:
    async def use(node: Node, writer: Writer) -> None:
        log_of(node).fails_next = True
        found = await asyncio.gather(
            *(writer.submit(a_change(host(i))) for i in range(3)), return_exceptions=True
        )
        assert all(isinstance(error, StorageFailed) for error in found)
        assert node.log.head().seq == 0
        assert len(node.objects) == 0
        assert (await writer.submit(a_change(host(1)))).seq == 1

    run(use)


class FullAt(BrittleLog):
    """A log that has no room for one kind of event."""

    def append(self, change_sets, now_us, *, head_seq=None):
        if any(event.type == OBJECT_STATUS for one in change_sets for event in one.events):
            raise StorageFailed("no space left on device; free some")
        return super().append(change_sets, now_us, head_seq=head_seq)


def test_a_change_that_is_durable_is_acknowledged_also_when_its_stamp_is_not() -> None:
    async def use(node: Node, writer: Writer) -> None:
        node.log.__class__ = FullAt
        result = await writer.submit(a_change(put(zone()), put(www())))
        assert result.seq == 2
        assert writer.statistics().stamps_refused == 1
        node.log.__class__ = BrittleLog
        writer.request_stamp()
        await until(lambda: serial(node) != 0)

    run(use)


def test_a_stamp_that_the_log_refuses_does_not_end_the_writer() -> None:
    async def use(node: Node, writer: Writer) -> None:
        await writer.submit(a_change(put(zone())))
        await writer.submit(a_change(put(www())))
        before = serial(node)
        log_of(node).fails_next = True
        writer.request_stamp()
        await until(lambda: writer.statistics().stamps_refused == 1)
        assert serial(node) == before
        writer.request_stamp()
        await until(lambda: serial(node) == before + 1)

    run(use)


def test_a_node_that_may_not_write_serves_on_when_a_record_expires() -> None:
    async def use(node: Node, writer: Writer) -> None:
        one = endpoint("a.example.org", "A", "192.0.2.1", expiresAt="2023-11-14T22:14:20Z")
        await writer.submit(a_change(put(zone()), put(record_set("soon", one))))
        node.why_not_writable = LogDamaged("payload", 1, "the payload of position 1 was changed")
        assert isinstance(node.clock, ManualClock)
        node.clock.advance(120 * SECOND)
        node.advance()
        writer.request_stamp()
        await until(lambda: writer.statistics().stamps_refused == 1)
        (served,) = node.zones.served
        assert served.record_count == 0

    run(use)


def unknown_event(node: Node) -> None:
    """What a newer version has written."""
    event = Event(
        "obj.renamed.v1", ZONE_KEY, node.log.stream_version(ZONE_KEY) + 1, "/", "m", b"{}"
    )
    node.log.append([ChangeSet((event,), TESTER)], node.clock.now_us())
    node.catch_up()


def damage(node: Node) -> None:
    node.why_not_writable = LogDamaged("payload", 1, "the payload of position 1 was changed")


@pytest.mark.parametrize("what", [unknown_event, damage])
def test_a_log_that_may_not_be_written_gets_no_event_of_the_clock_either(
    what: Callable[[Node], None],
) -> None:
    async def use(node: Node, writer: Writer) -> None:
        await writer.submit(a_change(put(zone())))
        what(node)
        head = node.log.head()
        assert isinstance(node.clock, ManualClock)
        node.clock.step_wall(3600 * SECOND)
        writer.request_stamp()
        await until(lambda: writer.statistics().stamps_refused == 1)
        assert node.log.head() == head
        assert node.why_not_writable is not None

    run(use)


def test_a_stamp_after_a_leap_of_the_clock_records_the_leap_and_does_not_follow_it() -> None:
    async def use(node: Node, writer: Writer) -> None:
        await writer.submit(a_change(put(zone())))
        await writer.submit(a_change(put(www())))
        before = serial(node)
        assert isinstance(node.clock, ManualClock)
        node.clock.step_wall((CLOCK_LEAP_MAX_S + 3600) * SECOND)
        writer.request_stamp()
        await until(lambda: serial(node) != before)
        assert serial(node) == before + 1

    node = run(use)
    assert CLOCK_STEPPED in [event.type for event in node.log.read()]


class GatedLog(BrittleLog):
    """A log whose appends wait for a gate, in their thread."""

    gate: threading.Event | None = None
    waiting = 0

    def append(self, change_sets, now_us, *, head_seq=None):
        if self.gate is not None:
            self.waiting += 1
            assert self.gate.wait(60)
        return super().append(change_sets, now_us, head_seq=head_seq)


class WaitingLog(GatedLog):
    """A log that says that it waits for its disk."""

    def append(self, change_sets, now_us, *, head_seq=None):
        if self.gate is not None:
            self._wait_begins()
        return super().append(change_sets, now_us, head_seq=head_seq)


def waiting_log(node: Node) -> WaitingLog:
    log = node.log
    log.__class__ = WaitingLog
    assert isinstance(log, WaitingLog)
    log.gate = threading.Event()
    return log


def is_settled(node: Node) -> bool:
    (state,) = node.zones.states()
    assert state.zone is not None
    return not node.objects._unsettled and not state.zone._unsettled


@pytest.mark.parametrize("is_refused", [False, True])
def test_digests_are_brought_up_to_date_while_an_append_waits(is_refused: bool) -> None:
    """Of what is in the views, and of nothing that may still be refused."""

    async def use(node: Node, writer: Writer) -> None:
        await writer.submit(a_change(put(zone())))
        await asyncio.gather(*(writer.submit(a_change(host(i))) for i in range(20)))
        assert not is_settled(node)
        log = waiting_log(node)
        log.fails_next = is_refused
        write = asyncio.ensure_future(writer.submit(a_change(host(20))))
        await until(lambda: is_settled(node))
        assert not write.done()
        assert log.gate is not None
        log.gate.set()
        (found,) = await asyncio.gather(write, return_exceptions=True)
        assert isinstance(found, StorageFailed) == is_refused
        assert rebuilt(node).views.digests() == node.views.digests()

    run(use)


def test_digests_are_left_alone_once_an_append_has_ended() -> None:
    """A checkpoint may be in the making then, in another thread."""

    async def use(node: Node, writer: Writer) -> None:
        await writer.submit(a_change(put(zone())))
        await writer.submit(a_change(host(1)))
        log_of(node)._wait_begins()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not is_settled(node)

    run(use)


def test_an_append_that_outlives_the_loop_is_not_disturbed() -> None:
    async def use(node: Node, writer: Writer) -> None:
        await writer.submit(a_change(put(zone())))

    log_of(run(use))._wait_begins()  # raises nothing in the middle of it


@pytest.mark.parametrize("what", ["change", "stamp"])
def test_nothing_expires_while_a_write_is_on_its_way(what: str) -> None:
    """What a stamp says was decided before; the content must not move until it is applied."""

    async def use(node: Node, writer: Writer) -> None:
        one = endpoint("a.example.org", "A", "192.0.2.1", expiresAt="2023-11-14T22:14:20Z")
        await writer.submit(a_change(put(zone())))
        await writer.submit(a_change(put(record_set("soon", one))))
        log, clock = node.log, node.clock
        assert isinstance(clock, ManualClock)
        log.__class__ = GatedLog
        assert isinstance(log, GatedLog)
        log.gate = threading.Event()
        other = put(record_set("other", endpoint("b.example.org", "A", "192.0.2.1")))
        write = asyncio.ensure_future(
            writer.submit(a_change(other)) if what == "change" else asyncio.sleep(0)
        )
        writer.request_stamp()
        await until(lambda: log.waiting == 1)
        clock.advance(60 * SECOND)
        passing = asyncio.ensure_future(writer.let_time_pass())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not passing.done()
        log.gate.set()
        await asyncio.gather(write, passing)
        (served,) = node.zones.served
        assert served.record_count == (1 if what == "change" else 0)
        writer.request_stamp()
        await until(lambda: not node.zones.unstamped())
        stored = node.objects.find(ZONE_KEY)
        assert stored is not None
        assert stored.status is not None
        assert stored.status["contentHash"] == served.digest()

    node = run(use)
    assert rebuilt(node).views.digests() == node.views.digests()


def test_a_full_queue_is_busy_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_MAX", 2)

    async def use(node: Node, writer: Writer) -> None:
        waiting = [asyncio.ensure_future(writer.submit(a_change(host(i)))) for i in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await writer.submit(a_change(host(3)))
        await asyncio.gather(*waiting)
        assert writer.statistics().refused_full == 1

    assert run(use).log.head().seq == 2


def test_a_caller_that_went_away_gets_its_change_all_the_same() -> None:
    async def use(node: Node, writer: Writer) -> None:
        gone = asyncio.ensure_future(writer.submit(a_change(put(zone()))))
        stays = asyncio.ensure_future(writer.submit(a_change(put(www()))))
        await asyncio.sleep(0)
        gone.cancel()
        await stays
        assert node.objects.version(ZONE_KEY) > 0
        assert node.objects.version(WWW_KEY) == 1

    run(use)


def test_a_serial_of_a_dry_run_or_a_refused_import_is_not_given() -> None:
    async def use(node: Node, writer: Writer) -> None:
        await writer.submit(a_change(put(zone())))
        before = serial(node)
        imported = {"example.org": before + 1_000_000}
        await asyncio.gather(
            writer.submit(a_change(put(zone()), dry_run=True, imported_serials=imported)),
            writer.submit(a_change(put(zone(), "other"), imported_serials=imported)),
            writer.submit(a_change(put(www()))),
            return_exceptions=True,
        )
        writer.request_stamp()
        await until(lambda: not node.zones.unstamped())
        assert before < serial(node) < imported["example.org"]

    run(use)


def test_a_writer_that_stops_answers_whoever_waits_and_takes_nothing_more() -> None:
    async def scene() -> None:
        node = memory_node()
        writer = Writer(node)
        running = asyncio.create_task(writer.run())
        node.log.__class__ = GatedLog
        log = node.log
        assert isinstance(log, GatedLog)
        log.gate = threading.Event()
        first = asyncio.create_task(writer.submit(a_change(put(zone()))))
        await until(lambda: log.waiting == 1)
        second = asyncio.create_task(writer.submit(a_change(put(www()))))
        await asyncio.sleep(0)
        writer.stop()
        with pytest.raises(Busy, match="nothing was changed"):
            await writer.submit(a_change(host(1)))
        log.gate.set()
        await asyncio.wait_for(running, 60)
        assert [first.result().seq, second.result().seq] == [1, 3]

    asyncio.run(scene())


def test_a_caller_in_the_middle_of_a_write_that_is_cut_off_is_told_that_it_is_open() -> None:
    async def scene() -> None:
        node = memory_node()
        writer = Writer(node)
        running = asyncio.create_task(writer.run())
        node.log.__class__ = GatedLog
        log = node.log
        assert isinstance(log, GatedLog)
        log.gate = threading.Event()
        caller = asyncio.create_task(writer.submit(a_change(put(zone()))))
        await until(lambda: log.waiting == 1)
        behind = asyncio.create_task(writer.submit(a_change(host(1))))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(StorageBroken, match="open whether the change is there"):
            await caller
        with pytest.raises(Busy, match="nothing was changed"):
            await behind
        with pytest.raises(Busy, match="nothing was changed"):
            await writer.submit(a_change(host(2)))
        log.gate.set()

    asyncio.run(scene())
