"""What every store does with watches: nothing is missing, whoever is slow."""

import asyncio
from collections.abc import AsyncIterator

from kudurru.domain.objects import key_of
from kudurru.domain.ports import Store, Watch, WatchEvent
from tests.conformance.store.drivers import on_every_store
from tests.objects import Document, document

WRITERS = 8
WRITES = 1_500


def group(name: str, *, ip: str = "192.0.2.1", **metadata: object) -> Document:
    return document("ClientGroup", name, {"clients": [{"ip": ip}]}, **metadata)


def name_of(event: WatchEvent) -> str:
    assert event.object is not None
    return str(event.object["metadata"]["name"])


async def until_bookmark(watch: Watch) -> list[WatchEvent]:
    """The first part of a watch; the Bookmark itself is left out."""
    events = []
    async for event in watch:
        if event.type == "Bookmark":
            return events
        events.append(event)
    raise AssertionError("the stream ended before its Bookmark")


async def take(watch: Watch, count: int) -> list[WatchEvent]:
    return [await anext(watch) for _ in range(count)]


@on_every_store
async def test_a_watch_begins_with_what_is_there_and_goes_on_with_changes(store: Store) -> None:
    await store.apply(group("a"), "alice")
    await store.apply(group("b"), "alice")
    await store.apply(document("DNSZone", "example.org", {"zoneName": "example.org."}), "alice")
    watch = await store.watch("ClientGroup")
    first = await until_bookmark(watch)
    assert {(event.type, name_of(event)) for event in first} == {("Added", "a"), ("Added", "b")}
    for event in first:
        key = key_of("ClientGroup", "default", name_of(event))
        assert event.object == await store.get(key)
        assert event.resource_version == event.object["metadata"]["resourceVersion"]
    await store.apply(group("c"), "alice")
    await store.apply(group("a", ip="198.51.100.1"), "alice")
    changed = await store.get(key_of("ClientGroup", "default", "a"))
    await store.update_status({**changed, "status": {"observedGeneration": 2}}, "carol")
    with_status = await store.get(key_of("ClientGroup", "default", "a"))
    await store.delete(key_of("ClientGroup", "default", "b"))
    live = await take(watch, 4)
    assert [(event.type, name_of(event)) for event in live] == [
        ("Added", "c"),
        ("Modified", "a"),
        ("Modified", "a"),
        ("Deleted", "b"),
    ]
    assert [event.object for event in live[1:3]] == [changed, with_status]
    assert live[3].object is not None
    assert live[3].object["spec"] == group("b")["spec"]
    versions = [int(event.resource_version) for event in live]
    assert versions == sorted(set(versions))
    await watch.stop()


@on_every_store
async def test_a_write_that_was_done_before_is_in_the_first_part(store: Store) -> None:
    for number in range(20):
        await store.apply(group(f"g{number}"), "alice")
        watch = await store.watch("ClientGroup")
        assert len(await until_bookmark(watch)) == number + 1
        await watch.stop()


@on_every_store
async def test_an_empty_kind_has_only_a_bookmark(store: Store) -> None:
    watch = await store.watch("Policy", "default")
    assert await until_bookmark(watch) == []
    await watch.stop()


@on_every_store
async def test_a_kind_of_more_than_256_objects_can_be_watched(store: Store) -> None:
    names = {f"g{number}" for number in range(300)}
    await store.apply_many([group(name) for name in sorted(names)], "alice")
    watch = await store.watch("ClientGroup")
    assert {name_of(event) for event in await until_bookmark(watch)} == names
    await store.apply(group("last"), "alice")
    (event,) = await take(watch, 1)
    assert name_of(event) == "last"
    await watch.stop()


@on_every_store
async def test_a_namespace_is_honoured_live_too(store: Store) -> None:
    await store.apply(group("a", namespace="team"), "alice")
    await store.apply(group("b", namespace="teams"), "alice")
    watch = await store.watch("ClientGroup", "team")
    assert [name_of(event) for event in await until_bookmark(watch)] == ["a"]
    await store.apply(group("c", namespace="default"), "alice")
    await store.apply(group("d", namespace="teams"), "alice")
    await store.delete(key_of("ClientGroup", "teams", "b"))
    await store.apply(group("e", namespace="team"), "alice")
    await store.delete(key_of("ClientGroup", "team", "a"))
    live = await take(watch, 2)
    assert [(event.type, name_of(event)) for event in live] == [("Added", "e"), ("Deleted", "a")]
    await watch.stop()


@on_every_store
async def test_a_slow_watcher_is_closed_or_caught_up_and_never_short(store: Store) -> None:
    watch = await store.watch("ClientGroup")
    await until_bookmark(watch)

    async def write(writer: int) -> None:
        for number in range(writer, WRITES, WRITERS):
            await store.apply(group(f"g{number}"), f"writer-{writer}")

    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    await store.apply(group("last"), "alice")
    wanted = {*(f"g{number}" for number in range(WRITES)), "last"}
    seen: set[str] = set()
    async for event in watch:
        seen.add(name_of(event))
        if seen == wanted:
            break
    how = "caught up"
    if seen != wanted:
        how = "closed"
        again = await store.watch("ClientGroup")
        assert {name_of(event) for event in await until_bookmark(again)} == wanted
        await again.stop()
    await watch.stop()
    print(f"slow watcher of {(await store.info()).driver}: {how}, {len(seen)} objects")


@on_every_store
async def test_a_slow_watcher_learns_of_deletions_and_last_states(store: Store) -> None:
    await store.apply(group("a"), "alice")
    watch = await store.watch("ClientGroup")
    await until_bookmark(watch)
    await store.apply_many([group(f"g{number}") for number in range(400)], "alice")
    await store.delete(key_of("ClientGroup", "default", "a"))
    await store.delete(key_of("ClientGroup", "default", "g300"))
    await store.apply(group("g7", ip="198.51.100.7"), "alice")
    await store.apply(group("last"), "alice")
    state: dict[str, object] = {"a": None}
    async for event in watch:
        if event.type == "Deleted":
            state.pop(name_of(event), None)
        else:
            state[name_of(event)] = event.object
        if "last" in state and len(state) == 400:
            break
    else:
        state = {name_of(event): event.object async for event in _anew(store)}
    page = await store.list("ClientGroup")
    assert state == {item["metadata"]["name"]: item for item in page.items}
    await watch.stop()


async def _anew(store: Store) -> AsyncIterator[WatchEvent]:
    watch = await store.watch("ClientGroup")
    for event in await until_bookmark(watch):
        yield event
    await watch.stop()


@on_every_store
async def test_a_watch_that_resumes_misses_nothing(store: Store) -> None:
    await store.apply(group("a"), "alice")
    watch = await store.watch("ClientGroup")
    (event,) = await until_bookmark(watch)
    await store.apply(group("b"), "alice")
    (seen,) = await take(watch, 1)
    await watch.stop()
    await store.apply(group("a", ip="198.51.100.1"), "alice")
    await store.apply(group("c"), "alice")
    for hint in (seen.resource_version, event.resource_version, "1", "nonsense", "9" * 18):
        again = await store.watch("ClientGroup", None, hint)
        names = {name_of(event) for event in await until_bookmark(again)}
        assert {"a", "c"} <= names <= {"a", "b", "c"}, hint
        await again.stop()


@on_every_store
async def test_a_stopped_watch_has_ended_however_often_it_is_stopped(store: Store) -> None:
    await store.apply(group("a"), "alice")
    unread, waited_for = await store.watch("ClientGroup"), await store.watch("ClientGroup")
    await until_bookmark(waited_for)
    waiting = asyncio.create_task(anext(waited_for, None))
    for watch in (unread, waited_for):
        await watch.stop()
        await watch.stop()
        assert [event async for event in watch] == []
    assert await waiting is None
    await store.apply(group("b"), "alice")
    assert [event async for event in waited_for] == []


@on_every_store
async def test_watchers_do_not_hold_each_other_up(store: Store) -> None:
    slow, quick = await store.watch("ClientGroup"), await store.watch("ClientGroup")
    await until_bookmark(quick)
    for number in range(300):
        await store.apply(group("a", ip=f"192.0.{number // 250}.{number % 250}"), "alice")
        (event,) = await take(quick, 1)
        assert name_of(event) == "a"
    await slow.stop()
    await quick.stop()
