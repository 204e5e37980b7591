"""Fuzzes one target in this process: `python -m tests.fuzz.one NAME [options of libFuzzer]`."""

import sys
import time
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["kudurru", "h11", "h2"]):
    from tests.fuzz.targets import TARGETS

STALL_S = 5  # of the CPU, for one input: a machine that is busy or asleep makes no stall


def timed(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def run_in_time(octets: bytes) -> None:
        started_s = time.process_time()
        run(octets)
        took_s = time.process_time() - started_s
        assert took_s < STALL_S, f"a stall: one input took {took_s:.1f} s"

    return run_in_time


name = sys.argv.pop(1)
atheris.Setup(sys.argv, timed(TARGETS[name].make()))
atheris.Fuzz()
