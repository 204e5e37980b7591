"""Each outside write fails once, before it takes effect and after it did: then the caller gets one
clear error, nothing that was acknowledged is lost, and the next start works."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from kudurru.adapters.data_dir import open_data_dir
from kudurru.domain.commands import Apply
from kudurru.domain.errors import KudurruError, Stop
from kudurru.entrypoints.command_socket import placed
from kudurru.entrypoints.rpc import RpcServer
from tests.objects import zone
from tests.simulation.faults import Faults, Moment, faults
from tests.simulation.running import (
    ZONE,
    an_apply,
    change,
    check_start,
    checkpointer_of,
    log_at,
    node_on,
    writer_of,
)

CHANGES = 4
STRIDE = 8
KINDS: list[tuple[Moment, bool]] = [("before", False), ("before", True), ("after", False)]
"""Of faults: when, and whether the disk is full. One that is full did not take the write."""


async def run(data: Path) -> tuple[int, list[Exception]]:
    """Start a node, change things, one after the other, and stop it. The newest position that was
    acknowledged, and what was refused."""
    newest, refused = 0, []
    rng = random.Random(1)
    with log_at(data) as log:
        directory = open_data_dir(data)
        node = node_on(log)
        with placed(directory) as path:
            server = RpcServer(path, _no_requests)
            await server.start()
            checkpointer = checkpointer_of(node, data)
            async with writer_of(node, checkpointer, coalesce_s=0) as writer:
                first = Apply(manifest=zone(ZONE), manager="kudurru")
                for command in (first, *(an_apply(f"r{n}", rng) for n in range(CHANGES))):
                    try:
                        newest = (await writer.submit(change(command))).seq
                    except KudurruError as error:
                        refused.append(error)
                with suppress(KudurruError):
                    newest = (await writer.checkpoint()).size
            await server.stop()
    return newest, refused


async def _no_requests(*_: object) -> None:
    raise AssertionError("nobody asks")


def run_with_fault(data: Path, at: int, moment: Moment, *, is_full: bool) -> tuple[Faults, int]:
    """Run with a fault at a point; it must show as errors of ours. What was acknowledged."""
    newest = 0
    with faults(at, moment, is_full=is_full) as found, suppress(Stop):
        newest, refused = asyncio.run(run(data))
        for error in refused:
            assert " - " in str(error) or ": " in str(error), f"no place or advice: {error}"
    return found, newest


def check_points(folder: Path, points: Iterator[int], moment: Moment, *, is_full: bool) -> int:
    """Run with a fault at each of the points that there are, and start again after it. How many."""
    for passed, at in enumerate(points):
        data = folder / str(at)
        found, acknowledged = run_with_fault(data, at, moment, is_full=is_full)
        if not found.has_failed:
            return passed  # there are no more points
        try:
            check_start(data, acknowledged=acknowledged)
        except Exception as error:
            error.add_note(f"point {at}, {found.points[at - 1]}")
            raise
    raise AssertionError("points have no end")


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "is_full"), KINDS)
def test_after_a_fault_at_any_point_nothing_acknowledged_is_lost(
    fast: Path, moment: Moment, is_full: bool
) -> None:
    assert check_points(fast, count(1), moment, is_full=is_full) > 80


@pytest.mark.parametrize(("moment", "is_full"), KINDS)
def test_after_a_fault_at_some_points_nothing_acknowledged_is_lost(
    fast: Path, moment: Moment, is_full: bool, seed: int
) -> None:
    """Other ones in each run."""
    assert check_points(fast, count(1 + seed % STRIDE, STRIDE), moment, is_full=is_full) > 8
