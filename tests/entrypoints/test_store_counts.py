"""What a store counts of its calls."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.domain.errors import KudurruError
from kudurru.domain.events import Who
from kudurru.domain.objects import key_of
from kudurru.entrypoints.health import store_samples
from kudurru.entrypoints.store import LogStore, opened
from kudurru.entrypoints.watches import WatchStatistics
from tests.logs import memory_log
from tests.objects import document

ZONE = document("DNSZone", "example.org", {"zoneName": "example.org."})
KEY = key_of("DNSZone", "", "example.org")


def counted(act: Callable[[LogStore], Awaitable[object]]) -> dict[tuple[str, str], int]:
    """What calls came to, by operation and result."""

    async def whole() -> dict[tuple[str, str], int]:
        clock, who = ManualClock(), Who(actor="system", source="test")
        async with opened(
            "memory", memory_log(), clock=clock, entropy=SeededEntropy(1), who=who
        ) as store:
            with suppress(KudurruError, asyncio.CancelledError):
                await act(store)
            return store.counts.statistics().operations

    return asyncio.run(whole())


async def another_manager(store: LogStore) -> None:
    await store.apply(ZONE, "alice")
    await store.apply({**ZONE, "spec": {"zoneName": "example.org.", "defaultTTL": 60}}, "bob")


async def stale(store: LogStore) -> None:
    await store.apply(ZONE, "alice", expected_resource_version="1")


async def closed(store: LogStore) -> None:
    await store.close()
    await store.get(KEY)


async def canceled(store: LogStore) -> None:
    task = asyncio.create_task(store.apply(ZONE, "alice"))
    await asyncio.sleep(0)
    task.cancel()
    await task


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda store: store.apply(ZONE, "alice"), {("apply", "ok"): 1}),
        (lambda store: store.get(KEY), {("get", "not_found"): 1}),
        (lambda store: store.delete(KEY), {("delete", "not_found"): 1}),
        (lambda store: store.list("nonsense"), {("list", "invalid"): 1}),
        (lambda store: store.snapshot(), {("snapshot", "ok"): 1}),
        (another_manager, {("apply", "ok"): 1, ("apply", "managed_by"): 1}),
        (stale, {("apply", "conflict"): 1}),
        (closed, {("get", "closed"): 1}),
        (canceled, {("apply", "canceled"): 1}),
    ],
)
def test_each_call_is_counted_by_how_it_ended(
    act: Callable[[LogStore], Awaitable[object]], expected: dict[tuple[str, str], int]
) -> None:
    assert counted(act) == expected


def test_a_watch_that_resumes_is_no_resync_and_one_that_begins_anew_is() -> None:
    async def act(store: LogStore) -> None:
        await store.apply(ZONE, "alice")
        version = (await store.list("DNSZone")).resource_version
        for start in ("", version, "nonsense"):
            await (await store.watch("DNSZone", resource_version=start)).stop()
        assert store.counts.statistics().relists == {"DNSZone": 2}

    assert counted(act)["watch", "ok"] == 3


def test_a_store_that_acts_for_another_counts_in_the_same_place() -> None:
    async def act(store: LogStore) -> None:
        await store.acting_for(Who(actor="user:1000")).apply(ZONE, "alice")

    assert counted(act) == {("apply", "ok"): 1}


def test_samples_have_the_sum_and_the_number_of_calls() -> None:
    async def act(store: LogStore) -> None:
        await store.apply(ZONE, "alice")
        seen = list(store_samples(store.counts.statistics(), WatchStatistics(2, {"Policy": 1})))
        assert [(sample.name, sample.labels, sample.value) for sample in seen] == [
            ("store_operations_total", ("apply", "ok"), 1),
            ("store_operation_duration_seconds_sum", ("apply",), 0),
            ("store_operation_duration_seconds_count", ("apply",), 1),
            ("store_watchers", (), 2),
            ("store_watch_catchups_total", ("Policy",), 1),
        ]

    assert counted(act) == {("apply", "ok"): 1}
