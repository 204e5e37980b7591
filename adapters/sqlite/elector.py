"""One leader per name among those who use a log file, by a lock beside it.

The lock of the data directory lets one process in, so a campaign is won at once there; this is for
who opens the file without it. The kernel lets go of a lock when its holder dies.
"""

import asyncio
import logging
from pathlib import Path

from kudurru.adapters.sqlite.lock import DirectoryLock
from kudurru.domain.errors import Busy, KudurruError
from kudurru.domain.ports import Clock

log = logging.getLogger("kudurru")

RETRY_S = 0.2


class FileElector:
    """See `Elector`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock: DirectoryLock | None = None
        self._resigned = asyncio.Event()
        self._has_complained = False

    async def campaign(self) -> None:
        while self._lock is None and not self._try():
            await asyncio.sleep(RETRY_S)
        self._resigned.clear()

    async def lost(self) -> None:
        if self._lock is not None:
            await self._resigned.wait()

    async def resign(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()
        self._resigned.set()

    def _try(self) -> bool:
        try:
            self._lock = DirectoryLock.acquire(self._path, now_us=self._clock.now_us())
        except Busy:
            return False
        except KudurruError as error:  # a full disk is mended some day
            if not self._has_complained:
                log.warning("nobody can be elected: %s", error)
            self._has_complained = True
            return False
        self._has_complained = False
        return True
