"""The daily job that lets go rows of the log which are older than `audit.retention`.

Nothing brings a row back, so a clock that was set years ahead must not make all of them old. The
job knows time by what the log said when this process began, and by what has passed since: where the
node was off for a month, rows stay a month longer until something is written.
"""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

from kudurru.domain.errors import KudurruError, NotFound
from kudurru.domain.notation import duration_text
from kudurru.domain.ports import Timers
from kudurru.entrypoints.waiting import pause
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer

log = logging.getLogger("kudurru")

DAY_US = 86_400 * 1_000_000
RETRY_US = 3_600 * 1_000_000


class OldRows:
    """Made before anything is written in this run. `run` is leader-only."""

    def __init__(
        self, node: Node, writer: Writer, timers: Timers, retention: Callable[[], timedelta]
    ) -> None:
        self._node = node
        self._writer = writer
        self._timers = timers
        self._retention = retention
        self._begun_us = node.clock.monotonic_us()
        self._newest_us = node.log.head().ts or node.clock.now_us()

    async def run(self) -> NoReturn:
        while True:
            is_done = await self.prune()
            await pause(self._timers, DAY_US if is_done else RETRY_US)

    async def prune(self) -> bool:
        """Once; False to try again soon."""
        retention = self._retention()
        if not retention:
            return True
        if not self._node.views.clock.is_trusted:
            log.warning("old events stay: the clock was set ahead, so nobody knows their age")
            return True
        try:
            pruning = await self._writer.prune_old(retention, self._now_us())
        except NotFound as error:  # the key is on another node, or nowhere
            log.warning("events older than %s stay: %s", duration_text(retention), error)
            return True
        except KudurruError as error:
            log.warning("events older than %s stay: %s", duration_text(retention), error)
            return False
        if pruning is not None:
            log.info(
                "%d events up to position %d were older than %s and went; %d stay, as the state "
                "needs them",
                *(pruning.rows, pruning.anchor.upto, duration_text(retention), pruning.kept),
            )
        return True

    def _now_us(self) -> int:
        """What time it is at most, microseconds UTC."""
        clock = self._node.clock
        passed_us = clock.monotonic_us() - self._begun_us
        return min(clock.now_us(), self._newest_us + passed_us)
