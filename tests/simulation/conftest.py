"""What tests of bad days share: a seed that is printed, and a folder that costs no time."""

import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.saying import Say


@pytest.fixture
def seed(request: pytest.FixtureRequest, say: Say) -> int:
    seed = int(os.environ.get("KUDURRU_SEED") or secrets.randbits(32))
    say(f"seed {seed}: {request.node.name}")
    return seed


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: the images are the disks here, what holds them need
    not be one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room: the socket of a server in it is reached by a longer one,
    below /proc/PID/root, and sun_path holds 108 octets."""
    with tempfile.TemporaryDirectory(prefix="k") as name:
        yield Path(name)
