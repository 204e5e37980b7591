"""Watches over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kudurru.adapters.http_api import Stream
from kudurru.adapters.memory.clock import ManualClock
from kudurru.entrypoints.rest import watching
from kudurru.entrypoints.rest.watching import JSON_LINES, SSE
from tests.api import Api, refused, serving
from tests.entrypoints.rest.shapes import record_set, zone


def on_api(ask: Callable[[Api], Awaitable[Any]], **how: Any) -> Any:
    async def asked() -> Any:
        async with serving("viewer", **how) as api:
            objects = [zone("a.example"), zone("b.example")]
            objects += [
                record_set("one", "a.example", "red"),
                record_set("two", "b.example", "red"),
            ]
            assert (await api.ask("POST", "/batch", {"apply": objects})).code == 200
            return await ask(api)

    return asyncio.run(asked())


async def told(stream: Stream, count: int) -> list[tuple[str, str]]:
    """Type and name of the next so many events."""
    return [shown(await anext(stream.parts)) for _ in range(count)]


def shown(part: bytes) -> tuple[str, str]:
    event = json.loads(part.removeprefix(b"data: "))
    return event["type"], event["object"]["metadata"].get("name", "")


async def closed(stream: Stream) -> None:
    parts: Any = stream.parts
    await parts.aclose()


def test_a_watch_tells_what_is_there_then_what_comes() -> None:
    async def ask(api: Api) -> list[tuple[str, str]]:
        stream = await api.watch("/dnsrecordsets?watch=true", token="viewer")
        assert stream.content_type == JSON_LINES
        seen = await told(stream, 3)
        path = "/namespaces/red/dnsrecordsets"
        await api.ask("PUT", f"{path}/one", record_set("one", "a.example", "red", "192.0.2.9"))
        await api.ask("PUT", f"{path}/new", record_set("new", "a.example", "red"))
        await api.ask("DELETE", f"{path}/two")
        seen += await told(stream, 3)
        await closed(stream)
        assert api.context.watches.total() == 0
        return seen

    assert on_api(ask) == [
        ("ADDED", "one"), ("ADDED", "two"), ("BOOKMARK", ""),
        ("MODIFIED", "one"), ("ADDED", "new"), ("DELETED", "two"),
    ]  # fmt: skip


def test_a_watch_goes_on_after_a_version() -> None:
    async def ask(api: Api) -> list[tuple[str, str]]:
        listed = (await api.ask("GET", "/dnsrecordsets")).json["metadata"]["resourceVersion"]
        path = "/namespaces/red/dnsrecordsets/new"
        await api.ask("PUT", path, record_set("new", "a.example", "red"))
        stream = await api.watch(f"/dnsrecordsets?watch=true&resourceVersion={listed}")
        seen = await told(stream, 2)
        await closed(stream)
        return seen

    assert sorted(on_api(ask)) == [("ADDED", "new"), ("BOOKMARK", "")]


def test_server_sent_events_where_those_are_accepted() -> None:
    async def ask(api: Api) -> tuple[str, bytes]:
        stream = await api.watch("/dnszones?watch=true", accept=SSE)
        part = await anext(stream.parts)
        await closed(stream)
        return stream.content_type, part

    kind, part = on_api(ask)
    assert kind == SSE
    assert part.startswith(b"data: {")
    assert part.endswith(b"}\n\n")


def test_a_limited_watch_tells_of_what_its_token_may_see_and_of_what_leaves_it() -> None:
    async def ask(api: Api) -> list[tuple[str, str]]:
        await api.make_token("viewer", "a", zones=["a.example"])
        stream = await api.watch("/dnsrecordsets?watch=true", token="a")
        seen = await told(stream, 2)
        path = "/namespaces/red/dnsrecordsets"
        await api.ask("DELETE", f"{path}/two")
        await api.ask("PUT", f"{path}/one", record_set("one", "b.example", "red"))
        await api.ask("PUT", f"{path}/one", record_set("one", "b.example", "red", "192.0.2.7"))
        await api.ask("PUT", f"{path}/one", record_set("one", "a.example", "red"))
        seen += await told(stream, 2)
        await closed(stream)
        return seen

    assert on_api(ask) == [
        ("ADDED", "one"), ("BOOKMARK", ""), ("DELETED", "one"), ("MODIFIED", "one"),
    ]  # fmt: skip


@pytest.mark.parametrize("is_deleted", [False, True], ids=["moved", "moved and deleted"])
def test_a_limited_watch_that_goes_on_is_told_what_left_it_meanwhile(is_deleted: bool) -> None:
    async def ask(api: Api) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        await api.make_token("viewer", "a", zones=["a.example"])
        listed = (await api.ask("GET", "/dnsrecordsets", token="a")).json
        assert [item["metadata"]["name"] for item in listed["items"]] == ["one"]
        path = "/namespaces/red/dnsrecordsets"
        await api.ask("PUT", f"{path}/two", record_set("two", "b.example", "red", "192.0.2.8"))
        await api.ask("PUT", f"{path}/one", record_set("one", "b.example", "red"))
        await api.ask("PUT", f"{path}/one", record_set("one", "b.example", "red", "192.0.2.7"))
        if is_deleted:
            await api.ask("DELETE", f"{path}/one")
        version = listed["metadata"]["resourceVersion"]
        stream = await api.watch(f"/dnsrecordsets?watch=true&resourceVersion={version}", token="a")
        first = [json.loads(await anext(stream.parts)) for _ in range(2)]
        # What it may not see stays so.
        await api.ask("PUT", f"{path}/two", record_set("two", "b.example", "red", "192.0.2.7"))
        await api.ask("PUT", f"{path}/new", record_set("new", "a.example", "red"))
        rest = await told(stream, 1)
        await closed(stream)
        return first, rest

    first, rest = on_api(ask)
    assert sorted(event["type"] for event in first) == ["BOOKMARK", "DELETED"]
    (gone,) = (event["object"] for event in first if event["type"] == "DELETED")
    assert gone["metadata"]["name"] == "one"
    assert "spec" not in gone
    assert rest == [("ADDED", "new")]


def test_a_watch_ends_when_its_token_is_revoked() -> None:
    async def ask(api: Api) -> list[bytes]:
        stream = await api.watch("/dnszones?watch=true", token="viewer")
        await told(stream, 3)
        await api.ask("DELETE", "/tokens/viewer")
        await api.ask("DELETE", "/dnszones/b.example")  # wakes it; it does not say that
        return [part async for part in _at_most(stream, 3)]

    assert on_api(ask) == []


def test_a_watch_ends_when_its_token_is_revoked_while_it_waits() -> None:
    async def ask(api: Api) -> list[bytes]:
        stream = await api.watch("/dnszones?watch=true", token="viewer")
        await told(stream, 3)
        rest = asyncio.create_task(_all_of(_at_most(stream, 3)))
        await asyncio.sleep(0)  # it waits
        await api.ask("DELETE", "/tokens/viewer")
        await api.ask("DELETE", "/dnszones/b.example")
        return await rest

    assert on_api(ask) == []


def test_a_watch_does_not_go_on_for_another_token_of_the_same_name_and_rights() -> None:
    async def ask(api: Api) -> list[bytes]:
        stream = await api.watch("/dnszones?watch=true", token="viewer")
        await told(stream, 3)
        await api.ask("DELETE", "/tokens/viewer")
        await api.make_token("viewer")
        await api.ask("DELETE", "/dnszones/b.example")
        return [part async for part in _at_most(stream, 3)]

    assert on_api(ask) == []


async def _all_of(parts: AsyncIterator[bytes]) -> list[bytes]:
    return [part async for part in parts]


async def _at_most(stream: Stream, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        try:
            yield await anext(stream.parts)
        except StopAsyncIteration:
            return
    raise AssertionError("it goes on")


def test_a_quiet_watch_says_where_to_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BOOKMARK_S", 0.01)

    async def ask(api: Api) -> tuple[list[tuple[str, str]], bool]:
        stream = await api.watch("/policies?watch=true")
        first = await anext(stream.parts)
        await api.ask("DELETE", "/dnszones/b.example")  # nothing of a policy
        later = await anext(stream.parts)
        while b'"BOOKMARK"' in later and later == first:
            later = await anext(stream.parts)
        await closed(stream)
        return [shown(first), shown(later)], first != later

    seen, has_moved = on_api(ask)
    assert seen == [("BOOKMARK", "")] * 2
    assert has_moved


def test_more_watches_than_there_may_be_are_refused() -> None:
    async def ask(api: Api) -> None:
        api.context.watches.update({f"token-{i}": 1 for i in range(watching.WATCHES_MAX)})
        refused(await api.ask("GET", "/dnszones?watch=true"), 503, "Busy")

    on_api(ask, clock=ManualClock())


def test_one_token_has_a_share_of_the_watches_and_leaves_the_others_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "WATCHES_PER_TOKEN_MAX", 2)

    async def ask(api: Api) -> None:
        path = "/dnszones?watch=true"
        late = await api.watch(path)  # while there was room
        streams = [await api.watch(path) for _ in range(2)]
        for stream in streams:
            await told(stream, 1)
        refused(await api.ask("GET", path), 429, "TooManyRequests")
        assert [part async for part in late.parts] == []
        other = await api.watch(path, token="viewer")
        await told(other, 1)
        await closed(streams.pop())
        streams += [other, await api.watch(path)]
        await told(streams[-1], 1)
        for stream in streams:
            await closed(stream)
        assert not api.context.watches

    on_api(ask)


def test_a_stream_that_nobody_begins_to_read_holds_nothing_open() -> None:
    """Closing a generator that never ran runs nothing of it."""

    async def ask(api: Api) -> None:
        hub: Any = api.node.observer
        stream = await api.watch("/dnszones?watch=true")
        await closed(stream)
        assert hub.statistics().watchers == 0
        assert not api.context.watches

    on_api(ask)


def test_a_head_opens_no_watch() -> None:
    async def ask(api: Api) -> None:
        refused(await api.ask("HEAD", "/dnszones?watch=true"), 400, "BadRequest")
        assert (await api.ask("HEAD", "/dnszones")).code == 200

    on_api(ask)
