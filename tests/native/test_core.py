"""The native engine's core under sanitizers, without Python: messages of all kinds, and threads."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.absent import absent

ROOT = Path(__file__).parents[2]
CORE = ROOT / "adapters" / "dns" / "native"
CORPUS = ROOT / "tests" / "fuzz" / "corpus" / "packet"
MEMORY, THREADS = "address,undefined", "thread"
FLAGS = ["-std=c11", "-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
FLAGS += [
    "-Wall",
    "-Wextra",
    "-pthread",
    "-DIN_BETWEEN=change_in_between",
    "-DSENDMMSG=sendmmsg_or_fail",
]

SEED = int(os.environ.get("KUDURRU_FUZZ_SEED", "20260"))
FEW = 200_000  # messages
MANY = int(os.environ.get("KUDURRU_FUZZ_MESSAGES", "10000000"))
ASKED = 60_000  # over loopback

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the core is for Linux")


@cache
def compiler() -> str:
    return shutil.which("cc") or absent("there is no C compiler (Debian: gcc, libc6-dev)")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The harness, with each sanitizer."""
    folder = tmp_path_factory.mktemp("native")
    # The harness has worker.c in itself, to answer without a socket; module*.c is for Python.
    others = {*CORE.glob("module*.c"), CORE / "worker.c"}
    sources = sorted({*CORE.glob("*.c")} - others)
    found = {}
    for sanitizer in (MEMORY, THREADS):
        found[sanitizer] = folder / f"harness-{sanitizer}"
        subprocess.run(
            [compiler(), *FLAGS, f"-fsanitize={sanitizer}", f"-I{CORE}", *sources,
             ROOT / "tests" / "native" / "harness.c", "-o", found[sanitizer]],
            check=True,
        )  # fmt: skip
    return found


def run(harness: Path, *given: object) -> str:
    """What it says. Its memory is where sanitizers want it, whatever the kernel would choose."""
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    command = [*fixed, str(harness), *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unexpected memory mapping" in done.stderr or "personality" in done.stderr:
        absent(f"sanitizers do not run on this machine: {done.stderr[:200]}")
    assert done.returncode == 0, f"{command[:6]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def corpus() -> list[Path]:
    return sorted(CORPUS.iterdir())


def test_messages_of_all_kinds_are_answered_counted_and_stay_in_their_bounds(
    built: dict[str, Path],
) -> None:
    print(run(built[MEMORY], "packets", SEED, FEW, *corpus()))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_million_messages_do_so_too(built: dict[str, Path]) -> None:
    print(run(built[MEMORY], "packets", SEED + 1, MANY, *corpus()))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sanitizer", [MEMORY, THREADS])
def test_threads_share_the_table_and_the_limits_and_give_nothing_old(
    built: dict[str, Path], sanitizer: str
) -> None:
    print(run(built[sanitizer], "threads", SEED, ASKED))


def test_answers_that_go_together_are_whole_and_counted_whatever_the_system_says(
    built: dict[str, Path],
) -> None:
    print(run(built[MEMORY], "answers", SEED, FEW))


def test_requests_over_http2_are_read_within_what_has_arrived(built: dict[str, Path]) -> None:
    print(run(built[MEMORY], "requests", SEED, FEW))
