"""Coverage-guided fuzzing (atheris): no octets make an exception, a stall or a connection that
stays.

    python -m tests.fuzz [NAME ...] [--scale 1.0]    `just fuzz`

Each target runs in a process of its own, one per CPU at a time, for as many executions as it says,
times the scale. It starts from tests/fuzz/corpus/NAME, where the inputs that once broke something
are kept too.
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
ROOT = Path(__file__).parents[2]
HANG_S = 60  # for one input that never ends; what only takes long is found by tests.fuzz.one
IS_CI = bool(os.environ.get("CI"))
ADDR_NO_RANDOMIZE = 0x0040000  # sys/personality.h


def run(name: str, executions: int, seed: int) -> bool:
    """Fuzz one target; whether all went well."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as found:
        command = [
            sys.executable, "-m", "tests.fuzz.one", name, found,
            *([str(CORPUS / name)] if (CORPUS / name).is_dir() else []),
            f"-runs={executions}", f"-seed={seed}", f"-timeout={HANG_S}", "-max_len=4096",
            "-rss_limit_mb=1024", f"-artifact_prefix={found}/",
            "-reload=0",  # what others found meanwhile: there are none, and it goes by the clock
        ]  # fmt: skip
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
        if IS_CI:
            # Where strings hash to something else in every process, sets are gone through in
            # another order and other edges are reached: then one seed makes other inputs each time.
            environment["PYTHONHASHSEED"] = "0"
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        crashes = [
            path for path in Path(found).iterdir() if re.match(r"(crash|timeout|oom)-", path.name)
        ]
        for path in crashes:
            sys.stderr.write(f"{name}: keep this in corpus/{name}: {path.read_bytes().hex()}\n")
    took = time.monotonic() - started
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr[-8000:])
    reached = re.findall(r"cov: (\d+)", done.stderr)
    print(
        f"suite fuzz/{name}: {executions} executions in {took:.0f} s, seed {seed}, "
        f"{reached[-1] if reached else '?'} edges, {'fine' if done.returncode == 0 else 'FAILED'}",
        flush=True,
    )
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TARGETS))
    parser.add_argument("--scale", type=float, default=1.0)
    # In CI the same every time, as the property tests are (tests/conftest.py); elsewhere a new one.
    # The keys of QUIC are new in any case.
    chance = 1 if IS_CI else int.from_bytes(os.urandom(3), "big") + 1
    parser.add_argument("--seed", type=int, default=chance)
    given = parser.parse_args()
    names = given.names or list(TARGETS)
    if IS_CI:
        # Of the processes started from here: what lies where shows in what the fuzzer tries next.
        # Some containers do not allow it; then a seed says less.
        ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
    with ThreadPoolExecutor(os.cpu_count()) as running:
        results = list(
            running.map(
                lambda name: run(name, int(TARGETS[name].executions * given.scale), given.seed),
                names,
            )
        )
    executions = sum(int(TARGETS[name].executions * given.scale) for name in names)
    print(f"suite fuzz: {executions} executions, {results.count(False)} targets failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
