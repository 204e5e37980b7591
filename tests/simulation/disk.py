"""A disk that loses what was not synced, and no more than that.

The model is what POSIX promises, not what one file system does today. Content is durable after
fsync or fdatasync of the file; a name (made, removed, renamed) after fsync of its folder. Whatever
was asked for since then may be there or not, in any order. Of a write, any of its sectors may be
there: a sector is old or new, never a mixture.
"""

import random
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

SECTOR = 512
"""Octets that a disk writes whole. Disks with larger ones tear less."""

FOLDER = -1
"""What a name stands for when it is no file."""


class Write(NamedTuple):
    file: int
    offset: int
    data: bytes


class Resize(NamedTuple):
    file: int
    size: int


class Rename(NamedTuple):
    """What names stand for from now on: a file, FOLDER, or None when they go. One step: all of
    them or none."""

    names: dict[str, int | None]


class Sync(NamedTuple):
    """The content of a file, or the names in a folder, as of step `since`, are durable."""

    what: int | str
    since: int


class Acknowledge(NamedTuple):
    """A caller may now have been told that everything up to this position is durable."""

    seq: int


Change = Write | Resize | Rename
Step = Change | Sync | Acknowledge


class Image(NamedTuple):
    """What a disk holds after a cut: folders, and files with their content."""

    folders: list[str]
    files: dict[str, bytes]
    acknowledged: int
    story: str

    def lay_out(self, root: Path) -> None:
        """Write it to an empty folder."""
        for name in self.folders:
            (root / name).mkdir(mode=0o700)
        for name, content in self.files.items():
            path = root / name
            path.write_bytes(content)
            path.chmod(0o600)


class Disk:
    """Takes steps in order; may lose power after each."""

    def __init__(self) -> None:
        self._taken = 0
        self._acknowledged = 0
        self._names: dict[str, int] = {}
        self._files: dict[int, bytearray] = {}
        self._unsynced: list[tuple[int, Change]] = []  # with the number of the step

    def take(self, step: Step) -> None:
        if isinstance(step, Acknowledge):
            self._acknowledged = max(self._acknowledged, step.seq)
        elif isinstance(step, Sync):
            self._sync(step)
        else:
            self._unsynced.append((self._taken, step))
        self._taken += 1

    def _sync(self, sync: Sync) -> None:
        waiting: list[tuple[int, Change]] = []
        for number, change in self._unsynced:
            if number >= sync.since or not _is_of(change, sync.what):
                waiting.append((number, change))
            else:
                _apply(change, self._names, self._files)
        self._unsynced = waiting

    def cut(self, rng: random.Random) -> Image:
        """What may be found after losing power now."""
        names = dict(self._names)
        files = {number: bytearray(content) for number, content in self._files.items()}
        changes = [change for _, change in self._unsynced]
        fate = rng.choice(FATES)
        lost: set[str] = set()  # names that a lost change was about: later ones build on it
        whole = 0
        for change, effects in zip(changes, fate(changes, rng), strict=True):
            about = set(change.names) if isinstance(change, Rename) else set()
            if not effects or about & lost:
                lost |= about
                continue
            whole += effects == [change]
            for effect in effects:
                _apply(effect, names, files)
        story = (
            f"after step {self._taken}, position {self._acknowledged} acknowledged, "
            f"{whole} of {len(changes)} unsynced changes kept whole ({fate.__name__})"
        )
        return self._image(names, files, rng, story)

    def _image(
        self, names: dict[str, int], files: dict[int, bytearray], rng: random.Random, story: str
    ) -> Image:
        folders: list[str] = []
        contents: dict[str, bytes] = {}
        for name in sorted(names):  # a folder before what is in it
            parent = str(PurePosixPath(name).parent)
            if parent not in (".", *folders):
                continue  # its folder is lost
            if names[name] == FOLDER:
                folders.append(name)
                continue
            contents[name] = bytes(files.get(names[name], b""))
            if name.endswith("-shm") and rng.random() < 0.5:
                # Written through a mapping, which nobody saw: it may hold anything.
                contents[name] = rng.randbytes(len(contents[name]))
        return Image(folders, contents, self._acknowledged, story)


# What becomes of unsynced changes: of each, what is found of it on the disk; nothing if it is lost.


def all_lost(changes: list[Change], rng: random.Random) -> list[list[Change]]:
    return [[] for _ in changes]


def all_kept(changes: list[Change], rng: random.Random) -> list[list[Change]]:
    return [[change] for change in changes]


def some_kept(changes: list[Change], rng: random.Random) -> list[list[Change]]:
    share = rng.random()
    return [[change] if rng.random() < share else [] for change in changes]


def some_torn(changes: list[Change], rng: random.Random) -> list[list[Change]]:
    """Of each write any of its sectors."""
    share = rng.random()
    return [[part for part in _sectors(c) if rng.random() < share] for c in changes]


def a_beginning_kept(changes: list[Change], rng: random.Random) -> list[list[Change]]:
    """In order up to some point, and the write at that point is cut short."""
    end = rng.randrange(len(changes) + 1)
    found: list[list[Change]] = [[change] for change in changes[:end]]
    if end < len(changes):
        sectors = _sectors(changes[end])
        found.append(sectors[: rng.randrange(len(sectors))])
    return found + [[] for _ in changes[end + 1 :]]


def an_end_kept(changes: list[Change], rng: random.Random) -> list[list[Change]]:
    """Later changes overtook earlier ones."""
    begin = rng.randrange(len(changes) + 1)
    return [[change] if i >= begin else [] for i, change in enumerate(changes)]


FATES: list[Callable[[list[Change], random.Random], list[list[Change]]]] = [
    all_lost,
    all_kept,
    some_kept,
    some_kept,
    some_torn,
    some_torn,
    a_beginning_kept,
    an_end_kept,
]


def _sectors(change: Change) -> list[Change]:
    """A write cut where the file's sectors end. Other changes are one part."""
    if not isinstance(change, Write):
        return [change]
    found: list[Change] = []
    at, write = 0, change
    while at < len(write.data):
        size = SECTOR - (write.offset + at) % SECTOR
        found.append(Write(write.file, write.offset + at, write.data[at : at + size]))
        at += size
    return found


def _is_of(change: Change, what: int | str) -> bool:
    if isinstance(change, Rename):
        return any(str(PurePosixPath(name).parent) == what for name in change.names)
    return change.file == what


def _apply(change: Change, names: dict[str, int], files: dict[int, bytearray]) -> None:
    if isinstance(change, Rename):
        for name, stands_for in change.names.items():
            if stands_for is None:
                names.pop(name, None)
            else:
                names[name] = stands_for
        return
    content = files.setdefault(change.file, bytearray())
    if isinstance(change, Resize):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    end = change.offset + len(change.data)
    content.extend(bytes(max(0, end - len(content))))
    content[change.offset : end] = change.data
