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

from tests.simulation import workload
from tests.simulation.running import check_start, log_at

CRASHES = int(os.environ.get("KUDURRU_CRASHES", "300"))
FEW = 10
CRASHES_EACH_DIRECTORY = 25
"""Then a new one: a start reads the whole log, and the many first ones are worth more."""

LIFE_S_MAX = 0.25
"""How long a writer may live: twice what it takes to start on a log of some size."""


def write_until_killed(data: Path, seed: int, acknowledged: Connection) -> None:
    """Runs in the child. Sends what it acknowledges."""
    rng = random.Random(seed)
    workload.draw_limits(rng)
    while True:
        with log_at(data) as log:
            workload.run(data, log, rng, callers=4, each=25, acknowledge=acknowledged.send)


def crash(data: Path, rng: random.Random) -> int:
    """Start a writer on the directory and kill it. The newest position that it acknowledged."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.simulation.test_crash"])
    receiving, sending = context.Pipe(duplex=False)
    arguments = (data, rng.randrange(2**32), sending)
    writer = context.Process(target=write_until_killed, args=arguments)
    writer.start()
    sending.close()
    writer.join(rng.random() * LIFE_S_MAX)
    assert writer.exitcode is None, "the writer ended by itself"
    writer.kill()
    writer.join()
    newest = 0
    try:
        while True:
            newest = receiving.recv()
    except (EOFError, OSError):  # OSError: killed in the middle of sending
        receiving.close()
    writer.close()
    return newest


def crash_many(folder: Path, rng: random.Random, times: int) -> str:
    """What was seen, in a line."""
    acknowledging = more = 0
    for number in range(times):
        data = folder / str(number // CRASHES_EACH_DIRECTORY)
        newest = crash(data, rng)
        there = check_start(data, acknowledged=newest)
        acknowledging += newest > 0
        more += newest > 0 and there - newest
    return (
        f"{times} crashes, {acknowledging} of writers that had acknowledged something; "
        f"{more} events were there without"
    )


def test_nothing_acknowledged_is_lost_in_a_few_crashes(fast: Path, seed: int) -> None:
    crash_many(fast, random.Random(seed), FEW)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_nothing_acknowledged_is_lost_in_many_crashes(
    fast: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = crash_many(fast, random.Random(seed), CRASHES)
    with capsys.disabled():
        print(seen)
