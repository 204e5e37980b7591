"""The job of a server that has snapshots written: by a process that may fail, hang or be ended."""

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import open_data_dir
from kudurru.domain.errors import LogDamaged
from kudurru.entrypoints import snapshot_job
from kudurru.entrypoints.directory import open_log, open_service
from kudurru.entrypoints.service import ChangeRequest
from kudurru.entrypoints.snapshot_job import SnapshotJob
from kudurru.entrypoints.wiring import Node
from tests.nodes import TESTER, memory_node
from tests.objects import www, zone


@pytest.fixture(name="job")
def a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SnapshotJob]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    data = tmp_path / "data"
    with open_service(data, who=TESTER, write=True, on_damage=lambda damage: None) as service:
        service.change(ChangeRequest(apply=[zone(), www()]))
    directory = open_data_dir(data)
    with open_log(directory, create=False) as log:
        node = Node(log, SystemClock(), SystemEntropy())
        node.views.follower.catch_up(log)
        yield SnapshotJob(directory, node, 0)


def views(job: SnapshotJob) -> Path:
    return job._directory.views


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    caplog.clear()
    return found


def test_another_process_writes_what_is_due(job: SnapshotJob) -> None:
    asyncio.run(job.write_if_due())
    assert job.position == job._node.position
    assert [sample.value for sample in job.samples()] == [job.position]
    written = views(job).stat()
    asyncio.run(job.write_if_due())
    assert views(job).stat() == written, "nothing was due"


def test_a_process_that_fails_is_told_once_until_one_does_not(
    job: SnapshotJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(snapshot_job, "CHILD", "kudurru.no_such_module")
        asyncio.run(job.write_if_due())
        asyncio.run(job.write_if_due())
    (line,) = warned(caplog)
    assert "no snapshot of the views could be written" in line
    assert "no_such_module" in line
    assert job.position == 0
    asyncio.run(job.write_if_due())
    assert job.position
    assert warned(caplog) == []


def test_a_process_that_cannot_be_started_is_told(
    job: SnapshotJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    asyncio.run(job.write_if_due())
    assert "no process could be started" in warned(caplog)[0]


def test_a_process_that_hangs_is_ended(
    job: SnapshotJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(snapshot_job, "CHILD_S_MAX", 0)
    asyncio.run(job.write_if_due())
    assert "took more than 0 s" in warned(caplog)[0]
    assert not views(job).exists()


@pytest.mark.parametrize("end", ["stop", "forget"])
def test_who_needs_the_file_ends_the_process_and_is_told_nothing(
    job: SnapshotJob, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(job.write_if_due())
            await asyncio.sleep(0)  # the process is being started
            await getattr(job, end)()
            assert not views(job).exists()

    asyncio.run(run())
    assert warned(caplog) == []
    assert job.position == 0


def test_a_damaged_log_gets_no_snapshot(job: SnapshotJob) -> None:
    job._node.why_not_writable = LogDamaged("gap", 2, "row 2 is missing")
    asyncio.run(job.write_if_due())
    job.save_last()
    assert not views(job).exists()


def test_a_log_in_memory_gets_none_either(tmp_path: Path) -> None:
    async def run() -> None:
        directory = open_data_dir(tmp_path / "data", create=True)
        job = SnapshotJob(directory, memory_node(), 0.01)
        job.load()
        job.start()
        job.save_last()
        await job.stop()
        assert list(job.samples()) == []
        assert not views(job).exists()

    asyncio.run(run())
