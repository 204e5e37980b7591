"""The lock of a data directory."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.sqlite.lock import DirectoryLock, Holder, read_holder
from kudurru.domain.errors import Busy, StorageFailed

NOW_US = 1_760_000_000_500_000

HOLD = """
import sys
from pathlib import Path
from kudurru.adapters.sqlite.lock import DirectoryLock
lock = DirectoryLock.acquire(Path(sys.argv[1]), now_us=1_760_000_000_500_000)
print("held", flush=True)
sys.stdin.readline()
"""


def test_the_second_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with DirectoryLock.acquire(path, now_us=NOW_US), pytest.raises(Busy) as caught:
        DirectoryLock.acquire(path, now_us=NOW_US)
    assert str(caught.value) == (
        f"{tmp_path} is in use by process {os.getpid()} on {socket.gethostname()} since "
        "2025-10-09T08:53:20Z: use that server through its socket, or end it first"
    )
    DirectoryLock.acquire(path, now_us=NOW_US).close()


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    source = str(Path(__file__).resolve().parents[2] / "src")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": source},
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(Busy, match=f"process {holder.pid} on "):
        DirectoryLock.acquire(path, now_us=NOW_US)
    holder.kill()
    holder.communicate()
    DirectoryLock.acquire(path, now_us=NOW_US).close()


@pytest.mark.parametrize("content", [b"", b'{"pid":1', b"\xff" * 5000, b'{"pid":"x"}'])
def test_what_stands_in_the_file_decides_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lock"
    path.write_bytes(content)
    assert read_holder(path) is None
    with DirectoryLock.acquire(path, now_us=NOW_US):
        assert read_holder(path) == Holder(
            os.getpid(), socket.gethostname(), "2025-10-09T08:53:20Z"
        )
        path.write_bytes(content)
        with pytest.raises(Busy, match="another process"):
            DirectoryLock.acquire(path, now_us=NOW_US)


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    lock = DirectoryLock.acquire(tmp_path / "lock", now_us=NOW_US)
    lock.close()
    lock.close()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_a_child_that_lives_on_does_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = DirectoryLock.acquire(path, now_us=NOW_US)
    copy = os.dup(lock._descriptor)  # what a forked child has
    lock.close()
    DirectoryLock.acquire(path, now_us=NOW_US).close()
    os.close(copy)


def test_a_place_that_cannot_be_locked_is_named(
    tmp_path: Path, unprivileged: Callable[..., Any]
) -> None:
    with pytest.raises(StorageFailed, match="cannot be locked: No such file"):
        DirectoryLock.acquire(tmp_path / "absent" / "lock", now_us=NOW_US)
    refused = pytest.raises(StorageFailed, match="lock cannot be locked: Permission denied")
    with unprivileged(tmp_path, mode=0o555), refused:
        DirectoryLock.acquire(tmp_path / "lock", now_us=NOW_US)
