"""Each write of a snapshot fails once, before it takes effect and after it did: then the old
snapshot is there or the new one, and views are what the log says."""

import logging
from pathlib import Path

import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import open_data_dir
from kudurru.domain.errors import StorageFailed
from kudurru.entrypoints.directory import open_log, open_service
from kudurru.entrypoints.service import ChangeRequest
from kudurru.entrypoints.snapshots import load_snapshot, save_snapshot
from kudurru.entrypoints.wiring import Node
from tests.nodes import TESTER
from tests.objects import www, zone
from tests.simulation.faults import Faults, Moment, faults


def change(data: Path, *manifests: object) -> None:
    with open_service(data, who=TESTER, write=True, on_damage=lambda damage: None) as service:
        service.change(ChangeRequest(apply=list(manifests)))


def test_a_snapshot_that_cannot_be_written_hurts_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    change(data, zone(), www())
    save(data)
    change(data, www("192.0.2.2"))
    kinds: list[tuple[Moment, bool]] = [("before", False), ("before", True), ("after", False)]
    old, new = position(data), newest(data)
    assert old < new
    before = open_data_dir(data).views.read_bytes()
    for moment, is_full in kinds:
        at, has_failed = 1, True
        while has_failed:
            open_data_dir(data).views.write_bytes(before)
            has_failed = save(data, at, moment, is_full=is_full).has_failed
            assert position(data) in ((old, new) if has_failed else (new,))
            names = sorted(path.name for path in data.glob("views*"))
            assert names == ["views.db"]
            at += 1
        assert at > 10, "there are more writes than that"
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING], "nothing was damaged"


def save(data: Path, at: int = 0, moment: Moment = "before", *, is_full: bool = False) -> Faults:
    """Save the views, with a fault at a point: then it is told."""
    directory = open_data_dir(data)
    with open_log(directory, create=False) as log:
        node = Node(log, SystemClock(), SystemEntropy())
        node.views.follower.catch_up(log)
        with faults(at, moment, is_full=is_full) as found:
            try:
                save_snapshot(directory, node)
            except StorageFailed as error:
                told = str(error)
            else:
                told = ""
    assert bool(told) == found.has_failed, found.points
    assert not told or str(directory.views) in told, "the place is missing"
    return found


def position(data: Path) -> int:
    """Of the snapshot that is there; the views that it leads to are those of the log."""
    directory = open_data_dir(data)
    with open_log(directory, create=False) as log:
        begun, rebuilt = (Node(log, SystemClock(), SystemEntropy()) for _ in range(2))
        found = load_snapshot(directory, begun)
        for node in (begun, rebuilt):
            node.views.follower.catch_up(log)
        assert begun.views.digests() == rebuilt.views.digests()
        return int(found)


def newest(data: Path) -> int:
    with open_log(open_data_dir(data), create=False) as log:
        return int(log.head().seq)
