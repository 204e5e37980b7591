"""Power cuts, which kill -9 cannot show: what was not synced may be lost, in any order.

A run of a node is recorded at the system calls, the disk is rebuilt as it may be after a cut at any
step, and a node is started on it. The seed is printed; KUDURRU_SEED repeats a run, as far as its
threads take turns alike.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kudurru.domain.errors import KudurruError
from kudurru.domain.ports import LogRow
from tests.absent import absent
from tests.simulation import recording
from tests.simulation.disk import Disk, Image, Rename, Step
from tests.simulation.running import check_start, log_at
from tests.simulation.workload import DATA

IMAGES_EACH_CUT = 4


def recorded(
    folder: Path, seed: int, changes: int, *settings: str
) -> tuple[list[Step], list[LogRow]]:
    """The steps of a run, and what it recorded."""
    if not recording.is_available():
        absent("strace is missing or may not trace: install it, Debian's package has the name")
    root = folder / "recorded"
    root.mkdir()
    steps = recording.record("tests.simulation.workload", root, str(seed), str(changes), *settings)
    with log_at(root / DATA) as log:
        return steps, list(log.rows())


def images(steps: list[Step], rng: random.Random, count: int) -> Iterator[Image]:
    """Disks after a cut: some at every one of the steps that were drawn, half of them within a few
    steps of a name that comes or goes, which is rare beside writes."""
    names = [number for number, step in enumerate(steps) if isinstance(step, Rename)]
    cuts = count // IMAGES_EACH_CUT
    drawn = rng.choices(range(len(steps)), k=cuts // 2)
    drawn += [rng.choice(names) + rng.randrange(1, 5) for _ in range(cuts - len(drawn))]
    disk = Disk()
    taken = 0
    for number in sorted(drawn):
        for step in steps[taken:number]:
            disk.take(step)
        taken = number
        for _ in range(IMAGES_EACH_CUT):
            yield disk.cut(rng)


def start_on_each(images: Iterator[Image], folder: Path, history: list[LogRow]) -> None:
    for image in images:
        root = folder / "image"
        root.mkdir()
        try:
            image.lay_out(root)
            check_start(root / DATA, acknowledged=image.acknowledged, history=history)
        except Exception as error:
            error.add_note(f"{image.story}: {sorted((n, len(c)) for n, c in image.files.items())}")
            raise
        finally:
            shutil.rmtree(root)


def test_a_node_starts_after_any_of_50_power_cuts(fast: Path, seed: int) -> None:
    steps, history = recorded(fast, seed, 4)
    start_on_each(images(steps, random.Random(seed), 50), fast, history)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(5))
def test_a_node_starts_after_any_of_1000_power_cuts(fast: Path, seed: int, part: int) -> None:
    steps, history = recorded(fast, seed, 12)
    start_on_each(images(steps, random.Random(seed), 200), fast, history)


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
def test_a_log_that_does_not_sync_its_commits_loses_what_it_acknowledged(
    fast: Path, seed: int, synchronous: str
) -> None:
    """The test of the test: it must notice what kill -9 does not."""
    steps, history = recorded(fast, seed, 3, synchronous)
    # With OFF nothing at all is synced, and what is found may be no log any more; and with both the
    # checkpoint beside the log may know more than the log.
    with pytest.raises((AssertionError, KudurruError), match=r"was acknowledged|log\.db|position"):
        start_on_each(images(steps, random.Random(seed), 100), fast, history)
