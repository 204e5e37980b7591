"""Hands what was noted to the process that writes the query log, and keeps that process alive.

Nothing here waits for the disk: batches go into a pipe, and where the pipe is full, the notes are
dropped and counted.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

import kudurru
from kudurru.adapters.query_log.child import (
    LENGTH,
    Answer,
    Configure,
    Order,
    Purge,
    Report,
    Write,
    frame,
)
from kudurru.adapters.query_log.store import StoreStatistics
from kudurru.domain.errors import Busy, StorageFailed
from kudurru.domain.query_log import Privacy, Retention, Seen

log = logging.getLogger("kudurru")

_ROOT = os.pathsep.join(str(Path(folder).parent) for folder in kudurru.__path__)
"""Where this program is, for a child that is to be the same one."""

FLUSH_S = 0.25
PIPE_MAX = 8 << 20
"""Octets that may wait for the child: some seconds of a busy site."""
RESTART_S = 1.0
RESTART_MAX_S = 30.0
STOP_S = 5.0
"""For the child to write what it has, at the end."""
ANSWER_S = 60.0
"""For a purge of a large file."""
REPORT_S = 10.0


class QueryLogProcess:
    """`take` gives the notes of one batch, None when there are none; `lose` is told how many were
    dropped. `run` is the task that does it all, until it is cancelled; `close` comes after it.

    The child knows what engines repeat from the facts that it got. `forget` has the engines ask
    everything again: it is called when facts were lost, and the next ones will not be."""

    def __init__(
        self,
        path: Path,
        take: Callable[[], Seen | None],
        lose: Callable[[int], None],
        privacy: Privacy,
        retention: Retention,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._take = take
        self._lose = lose
        self._forget = forget
        self._has_lost = False
        self._has_given = False  # to this child, anything to write
        self._settings = Configure(privacy, retention)
        self._child: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()
        self._earlier = StoreStatistics()  # of children that ended, as far as they told
        self._told = StoreStatistics()  # of this one
        self.restarts = 0

    @property
    def statistics(self) -> StoreStatistics:
        """Of all children."""
        return self._earlier.plus(self._told)

    def configure(self, privacy: Privacy, retention: Retention) -> None:
        """Take new settings, at once."""
        self._settings = Configure(privacy, retention)
        self._send(self._settings)

    async def purge(self, before_us: int | None) -> int:
        """Delete queries from before a moment, None: all. Raises: Busy, StorageFailed."""
        self._flush()
        answer = await self._ask(Purge(before_us))
        if answer.error:
            raise StorageFailed(answer.error)
        return answer.deleted

    async def run(self) -> NoReturn:
        """Start the child, feed it, and start another when it ends. Whatever goes wrong here is
        the query log's loss and nobody else's."""
        pause_s = RESTART_S
        while True:
            started_at = asyncio.get_running_loop().time()
            try:
                await self._run_child()
                log.warning("the process that writes the query log ended; another is started")
            except Exception as error:
                log.error("the query log cannot be written: %s", error)
            if asyncio.get_running_loop().time() - started_at > RESTART_MAX_S:
                pause_s = RESTART_S
            self.restarts += 1
            self._has_lost = True  # what it knew, and what was on its way
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RESTART_MAX_S)

    async def _run_child(self) -> None:
        child = self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "kudurru.adapters.query_log.child",
            str(self._path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": _ROOT},
        )
        self._earlier, self._told = self.statistics, StoreStatistics()
        self._has_given = False
        self._send(self._settings)
        try:
            async with asyncio.TaskGroup() as tasks:
                feeding = [
                    tasks.create_task(self._keep_flushing(), name="query log"),
                    tasks.create_task(self._keep_reporting(), name="query log statistics"),
                ]
                await child.wait()
                for task in feeding:
                    task.cancel()
        except Exception:  # a cancellation leaves the child for `close`
            with suppress(ProcessLookupError):
                child.kill()  # or two would write, once another one is started
            await child.wait()
            raise

    async def _keep_flushing(self) -> None:
        while True:
            self._flush()
            await asyncio.sleep(FLUSH_S)

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            with suppress(Busy):
                await self._ask(Report())

    def _flush(self) -> None:
        if self._has_lost and self._has_room():
            self._has_lost = False
            self._forget()
        while (seen := self._take()) is not None:
            if self._send(Write(seen)):
                self._has_given = True
            else:
                self._lose(len(seen))
                self._has_lost = True

    def _send(self, order: Order) -> bool:
        """Put an order into the pipe; False where it does not go."""
        if self._child is None or self._child.stdin is None or not self._has_room():
            return False
        self._child.stdin.write(frame(order))
        return True

    def _has_room(self) -> bool:
        child = self._child
        if child is None or child.returncode is not None or child.stdin is None:
            return False
        transport = child.stdin.transport
        return not transport.is_closing() and transport.get_write_buffer_size() <= PIPE_MAX

    async def _ask(self, order: Order) -> Answer:
        async with self._asking:
            child = self._child
            if child is None or child.stdout is None or not self._send(order):
                raise Busy("the query log is not being written just now; try again")
            try:
                async with asyncio.timeout(ANSWER_S):
                    head = await child.stdout.readexactly(LENGTH.size)
                    body = await child.stdout.readexactly(LENGTH.unpack(head)[0])
            except (TimeoutError, asyncio.IncompleteReadError):
                child.kill()  # what it would answer later is no answer to the next question
                raise Busy("the query log did not answer; try again") from None
            answer = msgspec.msgpack.decode(body, type=Answer)
            self._told = answer.statistics
            return answer

    async def close(self) -> None:
        """Let the child write what there is, and end. After `run` was cancelled."""
        child = self._child
        if child is None or child.returncode is not None or child.stdin is None:
            return
        self._flush()
        if not self._has_given:
            # It may not be up yet, and on a busy machine it is the last to be: for nothing.
            child.kill()
            await child.wait()
            return
        child.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
