"""What stores over a log promise beyond the conformance suite: exact resumption, whose name is
recorded, lists that are too old, changes that come in steps."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sealing import NodeKey
from kudurru.domain.errors import Conflict, Invalid, ManagedBy
from kudurru.domain.events import Who
from kudurru.domain.object_store import EPOCH_SHIFT, position_of, resource_version
from kudurru.domain.objects import key_of
from kudurru.domain.ports import Watch, WatchEvent
from kudurru.entrypoints import store as store_module
from kudurru.entrypoints.keyring import KeyRequest, Keyring
from kudurru.entrypoints.store import LogStore, opened
from kudurru.entrypoints.watches import LIVE_MAX
from tests.objects import Document, document

ME = Who(actor="user:1000", source="test")


def run(case: Callable[[LogStore, MemoryEventLog], Awaitable[None]]) -> None:
    async def main() -> None:
        log = MemoryEventLog(entropy=SystemEntropy(), clock=SystemClock())
        entropy = SystemEntropy()
        async with (
            asyncio.timeout(60),
            opened("memory", log, clock=SystemClock(), entropy=entropy, who=ME) as store,
        ):
            await case(store, log)

    asyncio.run(main())


def group(name: str, ip: str = "192.0.2.1") -> Document:
    return document("ClientGroup", name, {"clients": [{"ip": ip}]})


def key(name: str):
    return key_of("ClientGroup", "default", name)


async def first_part(watch: Watch) -> list[tuple[str, str]]:
    found = []
    async for event in watch:
        if event.type == "Bookmark":
            return found
        found.append((event.type, name_of(event)))
    raise AssertionError("no Bookmark")


def name_of(event: WatchEvent) -> str:
    assert event.object is not None
    return str(event.object["metadata"]["name"])


def test_a_watch_resumes_with_what_changed_since_and_nothing_else() -> None:
    async def case(store: LogStore, log: MemoryEventLog) -> None:
        for name in ("kept", "changed", "gone", "back"):
            await store.apply(group(name), "alice")
        seen = (await store.info()).resource_version
        await store.apply(group("changed", "198.51.100.1"), "alice")
        await store.delete(key("gone"))
        await store.delete(key("back"))
        await store.apply(group("back"), "bob")
        await store.apply(group("new"), "alice")
        await store.apply(group("brief"), "alice")
        await store.delete(key("brief"))
        watch = await store.watch("ClientGroup", None, seen)
        assert await first_part(watch) == [
            ("Added", "changed"),
            ("Deleted", "gone"),
            ("Added", "back"),
            ("Added", "new"),
            ("Deleted", "brief"),
        ]
        level = await store.watch("ClientGroup", None, (await store.info()).resource_version)
        assert await first_part(level) == []

    run(case)


@pytest.mark.parametrize(
    "version", ["", "0", "7", "text", str(2 << EPOCH_SHIFT), resource_version(1, 99)]
)
def test_a_version_of_another_epoch_or_of_the_future_begins_anew(version: str) -> None:
    async def case(store: LogStore, log: MemoryEventLog) -> None:
        await store.apply(group("a"), "alice")
        watch = await store.watch("ClientGroup", None, version)
        assert await first_part(watch) == [("Added", "a")]

    run(case)


def test_every_bookmark_and_event_is_a_place_to_resume_at() -> None:
    async def case(store: LogStore, log: MemoryEventLog) -> None:
        watch = await store.watch("ClientGroup")
        bookmark = await anext(watch)
        assert position_of(bookmark.resource_version, log.epoch) == 0
        for number in range(5):
            await store.apply(group(f"g{number}"), "alice")
        for number in range(5):
            event = await anext(watch)
            again = await store.watch("ClientGroup", None, event.resource_version)
            names = [name for _, name in await first_part(again)]
            assert names == [f"g{n}" for n in range(number + 1, 5)]

    run(case)


def test_live_events_are_each_delivered_up_to_the_bound() -> None:
    async def case(store: LogStore, log: MemoryEventLog) -> None:
        watch = await store.watch("ClientGroup")
        await anext(watch)
        for number in range(LIVE_MAX + 44):
            await store.apply(group("a", f"10.0.{number // 250}.{number % 250}"), "alice")
        events = [await anext(watch) for _ in range(LIVE_MAX + 1)]
        versions = [position_of(event.resource_version, log.epoch) for event in events]
        assert versions == [*range(1, LIVE_MAX + 1), LIVE_MAX + 44]
        assert [event.type for event in events[:3]] == ["Added", "Modified", "Modified"]
        await store.apply(group("b"), "alice")
        assert name_of(await anext(watch)) == "b"

    run(case)


def test_who_asked_is_recorded_and_the_reason() -> None:
    async def case(store: LogStore, log: MemoryEventLog) -> None:
        other = store.acting_for(Who(actor="token:ci", source="api 192.0.2.1"))
        await other.apply(group("a"), "alice", reason="ticket 7")
        await store.delete(key("a"), reason="over")
        found = [msgspec.json.decode(event.who or b"{}", type=Who) for event in log.read()]
        assert [(who.actor, who.source, who.reason) for who in found] == [
            ("token:ci", "api 192.0.2.1", "ticket 7"),
            ("user:1000", "test", "over"),
        ]

    run(case)


def test_a_safe_snapshot_has_no_internal_kinds(tmp_path: Path) -> None:
    async def case(store: LogStore, log: MemoryEventLog) -> None:
        box = NodeKey(tmp_path / "node.key", SystemEntropy())
        request = KeyRequest(name="xfr.example", algorithm="hmac-sha256", secret=bytes(32))
        change = Keyring(store._node, box).creation(request, ME, SystemEntropy())
        await store._writer.submit(change)
        await store.apply(group("a"), "alice")
        kinds = [
            [one["kind"] for one in (await store.snapshot(safe=is_safe)).objects]
            for is_safe in (False, True)
        ]
        assert kinds == [["ClientGroup", "TSIGKey"], ["ClientGroup"]]

    run(case)


def test_a_controller_may_use_the_name_that_others_may_not() -> None:
    async def case(store: LogStore, log: MemoryEventLog) -> None:
        await store.apply(group("a"), "kudurru-controller")
        with pytest.raises(ManagedBy):
            await store.apply(group("a"), "alice")

    run(case)


@pytest.mark.parametrize("status", [{"observedGeneration": "one"}, {"extra": 1.5}, {"x": 2**60}])
def test_a_status_that_is_none_is_refused(status: dict[str, object]) -> None:
    async def case(store: LogStore, log: MemoryEventLog) -> None:
        await store.apply(group("a"), "alice")
        found = await store.get(key("a"))
        with pytest.raises(Invalid):
            await store.update_status({**found, "status": status}, "carol")
        assert log.head().seq == 1

    run(case)


def test_a_list_that_began_too_long_ago_has_to_begin_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_module, "CHANGED_MAX", 3)

    async def case(store: LogStore, log: MemoryEventLog) -> None:
        for number in range(4):
            await store.apply(group(f"g{number}"), "alice")
        page = await store.list("ClientGroup", limit=2)
        for number in range(4):
            await store.apply(group("other", f"192.0.2.{number}"), "alice")
        with pytest.raises(Conflict, match="begin again"):
            await store.list("ClientGroup", limit=2, continue_=page.continue_)

    run(case)


def test_a_large_batch_is_seen_whole_or_not_at_all() -> None:
    async def case(store: LogStore, log: MemoryEventLog) -> None:
        batch = [group(f"g{number:04}") for number in range(2_000)]
        writing = asyncio.create_task(store.apply_many(batch, "alice"))
        sizes = set()
        while not writing.done():
            page = await store.list("ClientGroup", limit=500)
            sizes.add(len(page.items))
            watch = await store.watch("ClientGroup")
            assert len(await first_part(watch)) in (0, 2_000)
            await watch.stop()
            await asyncio.sleep(0)
        assert sizes <= {0, 500}
        snapshot = await store.snapshot()
        assert len(snapshot.objects) == 2_000

    run(case)
