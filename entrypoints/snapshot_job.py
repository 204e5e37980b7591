"""The snapshots of a running server: one now and then, and one when it stops.

The one now and then is written by another process (see `entrypoints.snapshot_child`). In this one
it would be either a thread, which takes the interpreter from DNS for as long as a million objects
take to encode, or steps, between which the views must not change.
"""

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from kudurru.adapters.data_dir import DataDir
from kudurru.adapters.metrics import Sample
from kudurru.domain.errors import KudurruError
from kudurru.domain.events import Position
from kudurru.entrypoints.directory import nothing_collected
from kudurru.entrypoints.snapshots import (
    can_have_snapshots,
    forget_snapshot,
    is_due,
    load_snapshot,
    try_to_save,
)
from kudurru.entrypoints.wiring import Node

if TYPE_CHECKING:
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

log = logging.getLogger("kudurru.snapshots")

CHILD = "kudurru.entrypoints.snapshot_child"

CHILD_S_MAX = 3_600
"""A log of tens of millions of events takes a while, niced."""

STDERR_SHOWN = 500


class SnapshotJob:
    """Of the process that holds the directory. On one event loop."""

    def __init__(self, directory: DataDir, node: Node, interval_s: float) -> None:
        """`interval_s` 0: only when the server stops."""
        self._directory = directory
        self._node = node
        self._interval_s = interval_s
        self._scheduler: AsyncIOScheduler | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._busy = asyncio.Lock()  # while the file is looked after
        self._has_failed = False
        self._is_ending = False  # the child is not wanted any more
        self.position = 0
        """Of the newest snapshot."""

    def load(self, upto: Position | None = None) -> None:
        """Bring empty views to the newest snapshot. One of no use is removed: what it was not to
        hold any more may be in it."""
        with nothing_collected():
            self.position = load_snapshot(self._directory, self._node, upto)
        if not self.position and self._directory.views.exists():
            with suppress(KudurruError):
                forget_snapshot(self._directory)

    def samples(self) -> Iterator[Sample]:
        if can_have_snapshots(self._node):
            yield Sample("views_snapshot_sequence", (), self.position)

    def start(self) -> None:
        if not self._interval_s or not can_have_snapshots(self._node):
            return
        # Here, as it takes a tenth of a second that commands can do without.
        from apscheduler.schedulers.asyncio import AsyncIOScheduler

        scheduler = AsyncIOScheduler(timezone="UTC")
        scheduler.add_job(self.write_if_due, "interval", seconds=self._interval_s, coalesce=True)
        scheduler.start()
        self._scheduler = scheduler

    async def stop(self) -> None:
        """Nothing is written when this returns. Idempotent."""
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None
        self._end_child()
        async with self._busy:
            pass

    async def write_if_due(self) -> None:
        """A snapshot that fails costs time at the next start: it is told once and tried again."""
        if self._busy.locked() or self._node.why_not_whole is not None:
            return
        if not is_due(self._node.position, self.position):
            return
        async with self._busy:
            position, why = await self._run_child()
        if position:
            self.position, self._has_failed = position, False
        elif why and not self._has_failed:
            self._has_failed = True
            log.warning("no snapshot of the views could be written: %s", why)

    async def _run_child(self) -> tuple[int, str]:
        """Position of the snapshot, 0 when there is none; then why, or "" when it was ended."""
        self._is_ending = False
        try:
            async with asyncio.timeout(CHILD_S_MAX):
                code, out, err = await self._child_result()
        except TimeoutError:
            return 0, f"it took more than {CHILD_S_MAX} s"
        except OSError as error:
            return 0, f"no process could be started: {error.strerror}"
        if code == 0 and out.strip().isdigit():
            return int(out), ""
        if self._is_ending:
            return 0, ""
        return 0, err.decode(errors="replace").strip()[-STDERR_SHOWN:] or f"it ended with {code}"

    async def _child_result(self) -> tuple[int | None, bytes, bytes]:
        """Exit code, output and errors. Raises: OSError."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", CHILD, str(self._directory.path.absolute()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Control-C is for the server, which ends this then
        )  # fmt: skip
        self._child = child
        try:
            if self._is_ending:
                self._kill_child()
            out, err = await child.communicate()
        finally:
            self._kill_child()
            self._child = None
        return child.returncode, out, err

    def _end_child(self) -> None:
        self._is_ending = True
        self._kill_child()

    def _kill_child(self) -> None:
        if self._child is not None and self._child.returncode is None:
            with suppress(ProcessLookupError):
                self._child.kill()

    async def forget(self) -> None:
        """After a redaction: what was erased may be in the snapshot, or in one that is being
        written. Raises: StorageFailed."""
        self._end_child()
        async with self._busy:
            self.position = 0
            forget_snapshot(self._directory)

    def save_last(self) -> None:
        """When the server stops, and nobody waits for an answer any more."""
        if self._node.why_not_whole is None and self._node.position != self.position:
            try_to_save(self._directory, self._node)
