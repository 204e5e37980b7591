"""What is recorded: a directory from nothing, three runs of a node on it, changes all the time.

`python -m tests.simulation.workload ROOT SEED CHANGES [SYNCHRONOUS]` prints each position that is
acknowledged; CHANGES are those of each caller. Limits of the log are small and drawn by chance, so
that a short run takes the -wal file in many times, spills, and cuts files. They change when things
happen, never what is synced before what.
"""

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

import kudurru.adapters.sqlite.log as sqlite_log
from kudurru.adapters.sqlite.log import SQLiteEventLog
from tests.simulation.running import change_things, checkpointer_of, log_at, node_on

DATA = "var/lib/kudurru"
"""Below the root: several folders have to be made for it, and each is a name to lose."""

RUNS = 3
CALLERS = 6


def acknowledge(seq: int) -> None:
    os.write(1, b"%d\n" % seq)


def draw_limits(rng: random.Random) -> None:
    sqlite_log.WAL_PAGES = rng.choice([30, 100, 4_096])
    sqlite_log.SPILL_PAGES = rng.choice([10, 100, 4_096])
    sqlite_log.WAL_SIZE_MAX = rng.choice([0, 100_000, 64 * 1024 * 1024])


def run(data: Path, log: SQLiteEventLog, rng: random.Random, **how: Any) -> None:
    """A node on a log, from its start until everything is changed: see `change_things`."""
    node = node_on(log)
    asyncio.run(change_things(node, checkpointer_of(node, data), rng, **how))


def main() -> None:
    root, seed, each = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    for _ in range(RUNS):
        draw_limits(rng)
        with log_at(root / DATA) as log:
            if len(sys.argv) > 4:
                log._writer.execute(f"PRAGMA synchronous = {sys.argv[4]}")
            run(root / DATA, log, rng, callers=CALLERS, each=each, acknowledge=acknowledge)


if __name__ == "__main__":
    main()
