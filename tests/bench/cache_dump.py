"""The cache on disk: how long a dump of many answers takes, how long the loop stands still for it,
and how long a restore takes. Prints figures, asserts nothing.

    python -m tests.bench.cache_dump [--entries 200000]
"""

import argparse
import asyncio
import gc
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from kudurru.adapters.clock import SystemClock
from kudurru.domain.dns.responses import Message
from kudurru.domain.settings import Bytes, CacheSettings
from kudurru.entrypoints.cache_keeping import CacheKeeper
from kudurru.entrypoints.server import COLLECT_AFTER
from kudurru.projections.message_cache import MessageCache

SETTINGS = CacheSettings(max_entries=1_000_000, max_bytes=Bytes(1 << 30))
DAY_US = timedelta(days=1) // timedelta(microseconds=1)


def filled(count: int, clock: SystemClock) -> MessageCache:
    cache = MessageCache(SETTINGS)
    now_us = clock.monotonic_us()
    for i in range(count):
        host = b"host%d" % i
        name = bytes((len(host),)) + host + b"\7example\3net\0"
        body = b"\xc0\x0c\0\1\0\1\0\0\x01\x2c\0\4" + i.to_bytes(4, "big")
        message = Message(0, (1, 0, 0), body, (6,), 300)
        cache.put(name + b"\0\1\0\1\0default-", message, now_us, 300_000_000, "192.0.2.1")
    return cache


async def measure(count: int, path: Path) -> None:
    gc.set_threshold(COLLECT_AFTER)  # as the server has it
    clock = SystemClock()
    cache = filled(count, clock)
    keeper = CacheKeeper(cache, path, clock)
    longest_s = 0.0
    began = time.perf_counter()
    last = time.thread_time()
    dumping = asyncio.create_task(keeper.dump())
    while not dumping.done():
        await asyncio.sleep(0)
        now = time.thread_time()  # other processes do not count
        longest_s, last = max(longest_s, now - last), now
    dumped_s = time.perf_counter() - began
    restored = MessageCache(SETTINGS)
    began = time.perf_counter()
    found = CacheKeeper(restored, path, clock).restore(DAY_US)
    print(
        f"{count} answers: dump {dumped_s * 1e3:.0f} ms, the loop stood still for "
        f"{longest_s * 1e3:.1f} ms at most, {path.stat().st_size / count:.0f} octets each on disk; "
        f"restore of {found} {(time.perf_counter() - began) * 1e3:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=200_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(given.entries, Path(folder) / "cache.dump"))


if __name__ == "__main__":
    main()
