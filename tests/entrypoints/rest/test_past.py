"""The past at length: differences between moments, the log exported, explanations of then."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, cast

import pytest

from kudurru.adapters.http_api import CutShort, Stream
from kudurru.domain.errors import LogDamaged
from kudurru.entrypoints.rest import past
from kudurru.entrypoints.rest.context import EXPORTS_MAX
from tests.api import Api, refused, serving
from tests.entrypoints.rest.shapes import record_set, zone


def on_api(ask: Callable[[Api], Awaitable[Any]]) -> Any:
    async def asked() -> Any:
        async with serving("viewer", "operator") as api:
            return await ask(api)

    return asyncio.run(asked())


async def filled(api: Api) -> int:
    """Two zones with a record set each in the namespaces red and blue. The position of that."""
    objects = [zone("a.example"), zone("b.example")]
    objects += [record_set("red-a", "a.example", "red"), record_set("blue-b", "b.example", "blue")]
    done = await api.ask("POST", "/batch", {"apply": objects})
    assert done.code == 200, done
    return int(api.node.log.head().seq)


async def collected(stream: Stream) -> list[bytes]:
    return [part async for part in stream.parts]


# --- differences ----------------------------------------------------------------------------


def test_objects_that_differ_are_told_with_what_changed() -> None:
    async def ask(api: Api) -> None:
        before = api.node.log.head().seq
        then = await filled(api)
        changed = {"spec": {"defaultTTL": 60}}
        assert (await api.ask("PATCH", "/dnszones/a.example", changed)).code == 200
        gone = await api.ask("DELETE", "/namespaces/blue/dnsrecordsets/blue-b")
        assert gone.code == 200
        found = (await api.ask("GET", f"/diff?from={then}", token="viewer")).json
        assert [(one["object"], one["verb"]) for one in found] == [
            ("dnsrecordset/blue/blue-b", "deleted"), ("dnszone/a.example", "changed"),
        ]  # fmt: skip
        [change] = found[1]["changes"]
        assert (change["field"], change["to"]) == ("spec.defaultTTL", 60)
        of_zone = (await api.ask("GET", f"/diff?from={before}&to={then}&zone=b.example")).json
        assert {one["verb"] for one in of_zone} == {"created"}
        refused(await api.ask("GET", f"/diff?from={then}&to={before}"), 422, "Invalid")
        refused(await api.ask("GET", "/diff"), 400, "BadRequest")
        refused(await api.ask("GET", "/diff?from=mark:none"), 404, "NotFound")

    on_api(ask)


def test_a_limited_token_sees_only_what_was_and_is_within_its_limits() -> None:
    async def ask(api: Api) -> dict[str, list[Any]]:
        await api.make_token("viewer", "red", namespaces=["red"])
        await api.make_token("viewer", "b", zones=["b.example"])
        before = api.node.log.head().seq
        then = await filled(api)
        moved = record_set("red-a", "b.example", "red")
        assert (await api.ask("PUT", "/namespaces/red/dnsrecordsets/red-a", moved)).code == 200
        found = {}
        for token in ("red", "b"):
            for first in (before, then):
                path = f"/diff?from={first}&to={api.node.log.head().seq}"
                answer = await api.ask("GET", path, token=token)
                found[f"{token} {'before' if first == before else 'then'}"] = answer.json
        return found

    found = on_api(ask)
    told = {name: [(o["object"], o["verb"]) for o in rows] for name, rows in found.items()}
    red, blue = "dnsrecordset/red/red-a", "dnsrecordset/blue/blue-b"
    zones = [("dnszone/a.example", "created"), ("dnszone/b.example", "created")]
    assert told == {
        "red before": [(red, "created"), *zones],
        "red then": [(red, "changed")],
        "b before": [(blue, "created"), (red, "created"), ("dnszone/b.example", "created")],
        # What it was elsewhere is not for this token to know.
        "b then": [(red, "created")],
    }
    assert "a.example" not in json.dumps(found["b then"])


def test_more_differences_than_there_is_room_for_are_refused_and_none_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(past, "DIFFERENCES_MAX", 3)

    async def ask(api: Api) -> None:
        before = api.node.log.head().seq
        then = await filled(api)
        status = refused(await api.ask("GET", f"/diff?from={before}&to={then}"), 422, "Invalid")
        assert "more than 3 objects" in status["message"]
        narrow = await api.ask("GET", f"/diff?from={before}&to={then}&zone=a.example")
        assert len(narrow.json) == 2

    on_api(ask)


# --- exports --------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["k8s", "cloudevents", "ocsf", "csv"])
def test_an_export_has_every_event_and_is_an_event_itself(format_: str) -> None:
    async def ask(api: Api) -> list[bytes]:
        await filled(api)
        until = api.node.log.head().seq
        stream = await api.watch(f"/events/export?format={format_}&until={until}")
        lines = b"".join(await collected(stream)).splitlines()
        assert len(lines) == until + (format_ == "csv")
        [acted] = await api.events("auth.acted.v1")
        assert acted["action"] == "audit.export"
        return lines

    assert any(b"red-a" in line for line in on_api(ask))


def test_an_export_that_no_checkpoint_proves_is_refused_before_it_begins() -> None:
    async def ask(api: Api) -> None:
        await filled(api)
        status = refused(await api.ask("GET", "/events/export"), 404, "NotFound")
        assert "kudurru audit checkpoint" in status["message"]
        for query in ("format=sqlite", "format=xml", "kind=nonsense", "since=mark:none"):
            answer = await api.ask("GET", f"/events/export?{query}")
            assert answer.code in (404, 422), query
        head = await api.ask("HEAD", "/events/export?format=csv")
        refused(head, 400, "BadRequest")
        assert await api.events("auth.acted.v1") == []

    on_api(ask)


def test_what_is_read_of_the_log_waits_for_who_takes_it() -> None:
    """However long the log is, a client that is slow costs one part."""
    lines = (b"%d\n" % i for i in itertools.count())
    first = past._part(lines)
    assert past.PART_BYTES <= len(first) < past.PART_BYTES + 16
    second = past._part(lines)
    assert int(second.split(b"\n")[0]) == first.count(b"\n")


def test_an_export_ends_early_and_shows_it_when_its_token_is_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(past, "PART_BYTES", 1)  # a line each

    async def ask(api: Api) -> None:
        await filled(api)
        await api.make_token("admin", "other")
        stream = await api.watch("/events/export?format=csv", token="other")
        parts = cast("AsyncGenerator[bytes]", stream.parts)
        await anext(parts)
        assert (await api.ask("DELETE", "/tokens/other")).code == 200
        with pytest.raises(CutShort):
            await anext(parts)

    on_api(ask)


def test_an_export_of_a_log_that_cannot_be_read_ends_early_and_shows_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        yield b"one\n"
        raise LogDamaged("gap", 2, "the row is missing")

    monkeypatch.setattr(past.exporting, "lines", broken)
    monkeypatch.setattr(past, "PART_BYTES", 1)

    async def ask(api: Api) -> None:
        stream = await api.watch("/events/export?format=csv")
        assert await anext(stream.parts) == b"one\n"
        with pytest.raises(CutShort):
            await anext(stream.parts)

    on_api(ask)
    assert "an export of the log ends early" in caplog.text


def test_there_are_only_so_many_exports_at_once_and_one_that_ends_makes_room() -> None:
    async def ask(api: Api) -> None:
        await filled(api)
        path = "/events/export?format=csv"
        open_ = [await api.watch(path) for _ in range(EXPORTS_MAX)]
        parts = [cast("AsyncGenerator[bytes]", stream.parts) for stream in open_]
        for one in parts:
            await anext(one)
        refused(await api.ask("GET", path), 503, "Busy")
        await parts[0].aclose()
        assert len(await collected(await api.watch(path))) == 1

    on_api(ask)


def test_the_past_of_a_log_in_memory_is_explained_to_nobody() -> None:
    async def ask(api: Api) -> None:
        then = await filled(api)
        path = f"/explain?name=red-a.a.example&at={then}"
        status = refused(await api.ask("GET", path), 404, "NotFound")
        assert "in the memory of its server" in status["message"]

    on_api(ask)
