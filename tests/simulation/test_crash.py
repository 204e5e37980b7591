"""Kill -9 at a random moment of starting, applying, batching, taking the -wal file in: many times,
with a light writer in a child process instead of a whole server (tests/blackbox/test_crash.py).

KUDURRU_CRASHES says how many times; `just crash` runs 1,000.
"""

import multiprocessing
import os
import random
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.saying import Say
from tests.simulation import workload
from tests.simulation.running import check_start, log_at

CRASHES = int(os.environ.get("KUDURRU_CRASHES", "300"))
FEW = 10
CRASHES_EACH_DIRECTORY = 15
"""Then a new one: a start reads the whole log, and the many first ones are worth more."""

CRASH_S_MAX = 10
"""On average. On two free cores one takes half a second: most of that is the start after it, with
every row verified twice. Several times as much where others work on the machine."""

ACKNOWLEDGED_MAX = 60
"""After so many at most the writer is killed; a run of one has four callers with 25 changes each,
so that some die while they stop, and start again."""

START_S_MAX = 0.05
"""A writer that is killed while it starts lives so long."""


def write_until_killed(data: Path, seed: int, acknowledged: Connection) -> None:
    """Runs in the child. Sends what it acknowledges, and 0 before it begins."""
    rng = random.Random(seed)
    workload.draw_limits(rng)
    acknowledged.send(0)
    while True:
        with log_at(data) as log:
            workload.run(data, log, rng, callers=4, each=25, acknowledge=acknowledged.send)


def crash(data: Path, rng: random.Random) -> int:
    """Start a writer on the directory and kill it. The newest position that it acknowledged."""
    context = multiprocessing.get_context("fork")  # nothing to import: a tenth of the time
    receiving, sending = context.Pipe(duplex=False)
    arguments = (data, rng.randrange(2**32), sending)
    writer = context.Process(target=write_until_killed, args=arguments)
    writer.start()
    sending.close()
    newest = 0
    try:
        wanted = rng.randrange(1, ACKNOWLEDGED_MAX) if rng.random() < 0.7 else 1
        for _ in range(wanted):
            newest = max(newest, receiving.recv())
        writer.join(rng.random() * START_S_MAX)
        assert writer.exitcode is None, "the writer ended by itself"
        writer.kill()
        while True:
            newest = max(newest, receiving.recv())
    except (EOFError, OSError):  # OSError: killed in the middle of sending
        return newest
    finally:
        writer.kill()
        writer.join()
        writer.close()
        receiving.close()


def crash_many(folder: Path, rng: random.Random, times: int) -> str:
    """What was seen, in a line."""
    acknowledging = more = 0
    for number in range(times):
        data = folder / str(number // CRASHES_EACH_DIRECTORY)
        newest = crash(data, rng)
        there = check_start(data, acknowledged=newest)
        if newest:
            acknowledging += 1
            more += there - newest
    assert acknowledging > times // 4, "killed too early to show anything"
    return (
        f"{times} crashes, {acknowledging} of writers that had acknowledged something; "
        f"{more} events were there that had not been"
    )


def test_nothing_acknowledged_is_lost_in_a_few_crashes(fast: Path, seed: int) -> None:
    crash_many(fast, random.Random(seed), FEW)


@pytest.mark.slow
@pytest.mark.timeout(CRASHES * CRASH_S_MAX)
def test_nothing_acknowledged_is_lost_in_many_crashes(fast: Path, seed: int, say: Say) -> None:
    seen = crash_many(fast, random.Random(seed), CRASHES)
    say(seen)
