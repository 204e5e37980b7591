"""Events are posted without waiting, counted where they repeat, and not lost to a short outage."""

import asyncio
from typing import Any

import pytest

from kudurru.adapters.kubernetes.answers import NotLeading
from kudurru.adapters.kubernetes.events import QUEUE_MAX, SERIES_MAX, About, EventRecorder
from kudurru.adapters.kubernetes.fakes.network import Response
from tests.adapters.kubernetes.worlds import World, in_world, running

ZONE = About("kudurru.io/v1alpha1", "DNSZone", "", "home", "uid-1")
RECORDS = About("kudurru.io/v1alpha1", "DNSRecordSet", "kube-system", "web", "uid-2")


def recorder(world: World) -> EventRecorder:
    return EventRecorder(world.client(), world.clock, "node-1")


def events(world: World) -> list[dict[str, Any]]:
    return list(world.api.objects("events").values())


def test_an_event_names_its_object_and_who_reports_it() -> None:
    async def case(world: World) -> None:
        found = recorder(world)
        found.post(ZONE, "Normal", "SerialBumped", "serial 7")
        found.post(RECORDS, "Warning", "Duplicated", "a second A")
        assert not events(world)  # nobody waited for anything
        async with running(found.run()):
            assert await found.close()
        zone, records = sorted(events(world), key=lambda one: one["involvedObject"]["name"])
        assert zone["metadata"]["namespace"] == "default"
        assert zone["metadata"]["name"].startswith("home.")
        assert zone["involvedObject"] == {
            "apiVersion": "kudurru.io/v1alpha1",
            "kind": "DNSZone",
            "name": "home",
            "uid": "uid-1",
        }
        assert "eventTime" not in zone
        assert zone["firstTimestamp"] == zone["lastTimestamp"] == "2023-11-14T22:13:20Z"
        assert zone["source"] == {"component": "kudurru", "host": "node-1"}
        assert (zone["reportingComponent"], zone["reportingInstance"]) == ("kudurru", "node-1")
        assert records["metadata"]["namespace"] == "kube-system"
        assert records["involvedObject"]["namespace"] == "kube-system"
        assert (found.written, found.dropped.total()) == (2, 0)

    in_world(case)


def test_a_repeat_within_ten_minutes_is_counted_and_a_later_one_is_new() -> None:
    async def case(world: World) -> None:
        found = recorder(world)
        async with running(found.run()):
            for wait_s in (0, 60, 500, 601):
                await asyncio.sleep(wait_s)
                found.post(ZONE, "Normal", "SerialBumped", "serial 7")
                await asyncio.sleep(1)
        assert sorted(one["count"] for one in events(world)) == [1, 3]
        (series,) = (one for one in events(world) if one["count"] == 3)
        assert series["firstTimestamp"] < series["lastTimestamp"]

    in_world(case)


def test_what_differs_in_anything_is_another_event() -> None:
    async def case(world: World) -> None:
        found = recorder(world)
        again = About("kudurru.io/v1alpha1", "DNSZone", "", "home", "uid-9")
        for about, reason, message in (
            (ZONE, "A", "a"), (again, "A", "a"), (ZONE, "B", "a"), (ZONE, "A", "b"),
        ):  # fmt: skip
            found.post(about, "Normal", reason, message)
        async with running(found.run()):
            assert await found.close()
        assert [one["count"] for one in events(world)] == [1, 1, 1, 1]

    in_world(case)


def test_an_event_that_the_server_forgot_begins_anew() -> None:
    async def case(world: World) -> None:
        found = recorder(world)
        async with running(found.run()):
            found.post(ZONE, "Normal", "A", "a")
            await asyncio.sleep(1)
            (name,) = world.api.objects("events")
            await world.people.request("DELETE", f"/api/v1/namespaces/default/events/{name[8:]}")
            found.post(ZONE, "Normal", "A", "a")
            await asyncio.sleep(1)
            assert [one["count"] for one in events(world)] == [1]
            await asyncio.sleep(3700)
            await world.people.get("/api/v1/namespaces/default/events", dict)
            assert not events(world)

    in_world(case)


def test_texts_are_cut_at_a_character() -> None:
    async def case(world: World) -> None:
        found = recorder(world)
        found.post(ZONE, "Normal", "R" * 200, "é" * 1000)
        async with running(found.run()):
            assert await found.close()
        (event,) = events(world)
        assert len(event["reason"].encode()) == 128
        assert 1020 <= len(event["message"].encode()) <= 1024
        assert event["message"].endswith("é…")

    in_world(case)


@pytest.mark.parametrize(("failures", "written"), [(2, 1), (3, 0)])
def test_a_write_that_fails_is_tried_three_times_ten_seconds_apart(
    failures: int, written: int
) -> None:
    async def case(world: World) -> None:
        left = [failures]

        def interfere(verb: str, plural: str, name: str) -> Response | None:
            if not left[0]:
                return None
            left[0] -= 1
            return Response(503)

        world.api.interfere = interfere
        found = recorder(world)
        found.post(ZONE, "Normal", "A", "a")
        async with running(found.run()):
            await found._idle.wait()
        assert (found.written, found.dropped.total()) == (written, 1 - written)
        assert world.now_s == pytest.approx(20, abs=0.1)

    in_world(case)


def test_a_full_queue_drops_what_comes_and_counts_it() -> None:
    async def case(world: World) -> None:
        found = recorder(world)
        for number in range(QUEUE_MAX + 10):
            found.post(ZONE, "Normal", "A", str(number))
        assert found.dropped == {"full": 10}
        async with running(found.run()):
            assert await found.close()
        assert found.written == QUEUE_MAX

    in_world(case)


def test_series_that_are_remembered_have_a_limit() -> None:
    async def case(world: World) -> None:
        found = recorder(world)
        found.post(ZONE, "Normal", "A", "first")
        async with running(found.run()):
            await asyncio.sleep(1)
            written = next(iter(found._series.values()))
            for number in range(SERIES_MAX):
                series = next(iter(found._series))
                other = type(series)(ZONE, "Normal", "A", str(number))
                found._series[other] = written
            found.post(ZONE, "Normal", "A", "one more")
            await asyncio.sleep(1)
        assert len(found._series) == SERIES_MAX

    in_world(case)


def test_the_end_sends_what_is_queued_once_and_takes_no_more() -> None:
    async def case(world: World) -> None:
        world.api.interfere = lambda verb, plural, name: Response(503)
        found = recorder(world)
        found.post(ZONE, "Normal", "A", "a")
        async with running(found.run()):
            await asyncio.sleep(1)  # it waits for its second try
            found.post(ZONE, "Normal", "A", "b")
            begun = world.now_s
            assert await found.close()
            assert world.now_s - begun < 1
            found.post(ZONE, "Normal", "A", "c")
        assert (found.written, found.dropped.total()) == (0, 3)
        assert len(world.api.calls) == 2

    in_world(case)


def test_the_end_waits_five_seconds_at_most() -> None:
    async def case(world: World) -> None:
        world.api.late = lambda verb, plural: True
        found = recorder(world)
        found.post(ZONE, "Normal", "A", "a")
        found.post(ZONE, "Normal", "A", "b")
        async with running(found.run()):
            await asyncio.sleep(1)
            assert not await found.close()
            assert world.now_s == pytest.approx(6, abs=0.1)
        assert found.dropped == {"late": 2}

    in_world(case)


def test_the_end_of_a_term_sends_what_is_queued_and_the_next_goes_on() -> None:
    async def case(world: World) -> None:
        found = recorder(world)
        async with running(found.run()):
            found.post(ZONE, "Normal", "A", "a")
            assert await found.drain()
            found.post(ZONE, "Normal", "A", "b")
            assert await found.drain()
        assert sorted(event["message"] for event in events(world)) == ["a", "b"]
        assert (found.written, found.dropped.total()) == (2, 0)

    in_world(case)


def test_where_nobody_writes_any_more_the_end_waits_for_nothing() -> None:
    async def case(world: World) -> None:
        found = recorder(world)
        async with running(found.run()):
            await asyncio.sleep(1)
        found.post(ZONE, "Normal", "A", "a")
        begun = world.now_s
        assert await found.close()
        assert world.now_s == begun
        assert found.dropped == {"late": 1}

    in_world(case)


def test_who_does_not_lead_keeps_no_events() -> None:
    async def case(world: World) -> None:
        leads = False
        found = EventRecorder(world.client(), world.clock, "node-1", lambda: leads)
        async with running(found.run()):
            for number in range(2 * QUEUE_MAX):
                found.post(ZONE, "Normal", "A", str(number))
            assert found.dropped == {"not_leading": 2 * QUEUE_MAX}
            leads = True
            found.post(ZONE, "Normal", "A", "of this term")
            assert await found.drain()
        assert [event["message"] for event in events(world)] == ["of this term"]

    in_world(case)


def test_what_waits_when_the_lead_is_lost_is_dropped_at_once_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def case(world: World) -> None:
        def guard() -> None:
            raise NotLeading("another leads")

        client = world.client().with_guard(guard)
        found = EventRecorder(client, world.clock, "node-1")
        for number in range(10):
            found.post(ZONE, "Normal", "A", str(number))
        async with running(found.run()):
            await found._idle.wait()
        assert found.dropped == {"not_leading": 10}
        assert (world.now_s, world.api.calls) == (0, [])

    in_world(case)
    assert len(caplog.records) == 1
