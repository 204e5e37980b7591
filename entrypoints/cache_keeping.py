"""Keeping the cache over a restart: read before the listeners answer, written now and then and at
the end.

DNS does not wait for a dump: references are copied a part of the cache at a time and become octets
in small steps, with the loop turning in between; compressing and writing happen in a thread, mostly
outside the interpreter.
"""

import asyncio
import logging
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NoReturn

from kudurru.adapters.cache_dump import PART, encode_part, read_dump, write_dump
from kudurru.domain.errors import KudurruError
from kudurru.domain.ports import Clock
from kudurru.projections.message_cache import MessageCache

log = logging.getLogger("kudurru")

LAST_DUMP_S = 5
"""At the end a dump may take so long; then the one before stays."""


class CacheKeeper:
    def __init__(self, cache: MessageCache, path: Path, clock: Clock) -> None:
        self._cache = cache
        self._path = path
        self._clock = clock
        self._is_writing = asyncio.Lock()
        self._interval_s = 0.0
        self._is_other = asyncio.Event()

    def configure(self, interval_s: float) -> None:
        """Time between dumps from now on; 0: there are none, also at the end."""
        if interval_s != self._interval_s:
            self._interval_s = interval_s
            self._is_other.set()

    def restore(self, max_age_us: int) -> int:
        """Fill the cache from disk; how many answers there were. Whatever is wrong with the dump
        is one line in the log, and the cache is empty."""
        now_us = self._clock.now_us()
        try:
            dump = read_dump(self._path, now_us, max_age_us)
        except (KudurruError, OSError) as fault:
            log.warning("the cache starts empty (%s): %s", type(fault).__name__, fault)
            return 0
        if dump is None:
            return 0
        clock_us = max(now_us, dump.written_us)  # a clock that went back makes nothing younger
        count = self._cache.restore(dump.answers, clock_us, self._clock.monotonic_us())
        age_s = max(0, now_us - dump.written_us) // 1_000_000
        log.info("the cache is back: %d answers, %d bytes, %d s old", count, dump.size, age_s)
        return count

    async def dump(self) -> None:
        """Write the cache down. A disk that refuses is one line in the log."""
        async with self._is_writing:
            written_us = self._clock.now_us()
            kept = self._cache.kept(written_us, self._clock.monotonic_us())
            parts = []
            while part := list(islice(kept, PART)):
                parts.append(encode_part(part))
                await asyncio.sleep(0)
            try:
                await asyncio.to_thread(write_dump, self._path, parts, written_us)
            except OSError as fault:
                log.warning("the cache could not be written down: %s", fault)

    async def dump_last(self) -> None:
        if not self._interval_s:
            return
        try:
            async with asyncio.timeout(LAST_DUMP_S):
                await self.dump()
        except TimeoutError:
            log.warning("writing the cache down took more than %d s and was given up", LAST_DUMP_S)

    async def keep_dumped(self) -> NoReturn:
        """Write it down now and then, until cancelled."""
        while True:
            self._is_other.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s or None):
                    await self._is_other.wait()
                continue
            await self.dump()
