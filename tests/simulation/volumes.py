"""Small file systems that can be filled, or lost, without harm to the machine.

Each is mounted in a mount namespace of its own, held by a process that does nothing, and goes with
it. Programs are started in there with `prefix`; this process looks in through /proc.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.absent import absent


class Volume(NamedTuple):
    path: Path
    """Where it is for what is started in there."""
    prefix: tuple[str, ...]
    """Of command lines of what is started in there."""
    view: Path
    """Where it is for this process."""

    def run(self, *command: str | Path) -> None:
        subprocess.run([*self.prefix, *command], check=True, capture_output=True)


@contextmanager
def memory_volume(folder: Path, size: str) -> Iterator[Volume]:
    """Of a size as tmpfs takes it. Skips where mounting is refused, but fails in CI."""
    with _mounted(folder, f"mount -t tmpfs -o size={size},mode=0700 none") as volume:
        yield volume


@contextmanager
def disk_volume(folder: Path, mebibytes: int) -> Iterator[Volume]:
    """An ext4 in a file. `mount_again` repairs and mounts it anew."""
    image = folder / "disk"
    with _mounted(folder, f"{_new_disk(image, mebibytes)} && mount -o loop {image}") as volume:
        yield volume


@contextmanager
def failing_disk_volume(folder: Path, mebibytes: int) -> Iterator[tuple[Volume, Path]]:
    """An ext4 whose disk is kept in memory of half its size, and the folder of that memory: once
    that is filled, every block that the disk was not written to yet gives an I/O error."""
    backing = folder / "backing"
    backing.mkdir()
    image = backing / "disk"
    memory = f"mount -t tmpfs -o size={mebibytes // 2}m none {backing}"
    make = f"{memory} && {_new_disk(image, mebibytes)} && mount -o loop {image}"
    with _mounted(folder, make) as volume:
        yield volume, volume.view.parent / "backing"


def _new_disk(image: Path, mebibytes: int) -> str:
    return f"truncate -s {mebibytes}M {image} && mkfs.ext4 -q {image}"


def mount_again(volume: Volume, image: Path) -> None:
    """What an administrator does with a disk that went read-only."""
    volume.run("umount", volume.path)
    # Its exit code is 1 when errors were corrected.
    volume.run("sh", "-c", f"e2fsck -f -y {image} || test $? = 1")
    volume.run("mount", "-o", "loop", image, volume.path)


@contextmanager
def _mounted(folder: Path, mount: str) -> Iterator[Volume]:
    place = folder / "volume"
    place.mkdir()
    script = f"({mount} {place}) >&2 && echo mounted && exec cat"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline() != "mounted\n":
                _refused(holder.stderr.read())
            namespace = f"--mount=/proc/{holder.pid}/ns/mnt"
            view = Path(f"/proc/{holder.pid}/root") / place.relative_to("/")
            yield Volume(place, ("nsenter", namespace), view)
        finally:
            holder.stdin.close()


def _refused(why: str) -> None:
    absent(f"mounting is refused: {why}")
