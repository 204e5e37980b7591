"""Records what a program asks of the disk, with strace, as steps for `disk.Disk`.

strace sees what the kernel is asked, whoever asks: SQLite, Python, a library. It follows threads;
a step counts when its call has returned, and a sync covers what had returned before it was called.
A call that could change a file in a way that the model does not know fails the recording. What is
written through a shared mapping is not seen: only -shm files may be written so, which SQLite
rebuilds.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.blackbox.program import ROOT, environment
from tests.simulation.disk import FOLDER, Acknowledge, Rename, Resize, Step, Sync, Write

_FOLLOWED = (
    "openat,open,creat,close,dup,dup2,dup3,lseek,write,pwrite64,fsync,fdatasync,ftruncate,"
    "rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,mmap"
)
_REFUSED = (
    "writev,pwritev,pwritev2,truncate,fallocate,link,linkat,symlink,symlinkat,copy_file_range,"
    "sendfile,splice,sync_file_range,msync,io_uring_setup"
)
"""Calls that the model does not know. None is used so far."""

_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>)?(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|0x[0-9a-f]+)\b")
_OCTETS_MAX = 1 << 24


def is_available() -> bool:
    """Whether strace is here and may trace."""
    strace = shutil.which("strace")
    if strace is None:
        return False
    done = subprocess.run([strace, "-qq", "-e", "trace=none", "true"], capture_output=True)
    return done.returncode == 0


def record(module: str, root: Path, *arguments: str) -> list[Step]:
    """Run `python -m module root …` and return what it did below the folder `root`. What it
    prints must be numbers, one a line: positions that it acknowledges."""
    trace = root.with_name(f"{root.name}.trace")
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-xx", "-s", str(_OCTETS_MAX)]
    program = [sys.executable, "-m", module, str(root), *arguments]
    subprocess.run(
        [*strace, "-o", str(trace), "-e", f"trace={_FOLLOWED},{_REFUSED}", *program],
        stdout=subprocess.DEVNULL,
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        cwd=ROOT,
        check=True,
    )
    with trace.open() as lines:
        steps = list(_Reader(root).steps(lines))
    trace.unlink()
    return steps


class _Open(NamedTuple):
    """What a descriptor is open on: a file, with a name and where writing goes on, or a folder."""

    file: int
    name: str
    position: list[int]
    appends: bool


class _Reader:
    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._descriptors: dict[int, _Open] = {}
        self._names: dict[str, int] = {}
        self._sizes: dict[int, int] = {}
        self._steps = 0
        self._printed = b""

    def steps(self, lines: Iterator[str]) -> Iterator[Step]:
        begun: dict[str, tuple[str, int]] = {}
        for line in lines:
            found = _LINE.match(line)
            assert found, line[:200]
            thread, resumed, rest = found.groups()
            if rest.endswith("<unfinished ...>"):
                begun[thread] = rest.removesuffix(" <unfinished ...>"), self._steps
                continue
            since = self._steps
            if resumed:
                beginning, since = begun.pop(thread)
                rest = beginning + rest
            for step in self._step(rest, since):
                self._steps += 1
                yield step

    def _step(self, line: str, since: int) -> list[Step]:
        found = _CALL.match(line)
        if not found or found[3] == "-1":
            return []  # failed, or the end of a thread
        call, arguments, result = found[1], found[2].split(", "), int(found[3], 0)
        if call in _REFUSED.split(","):
            raise AssertionError(f"the model of the disk does not know this: {line[:300]}")
        return getattr(self, f"_{call}")(arguments, result, since)  # type: ignore[no-any-return]

    def _name(self, argument: str) -> str | None:
        """Below the root, "." for itself; None for what is elsewhere. The program runs in another
        folder, so a relative path is elsewhere too."""
        path = os.fsdecode(_octets(argument))
        if path == self._root:
            return "."
        if not path.startswith(f"{self._root}/"):
            return None
        return path.removeprefix(f"{self._root}/")

    # --- names --------------------------------------------------------------------------

    def _openat(self, arguments: list[str], result: int, since: int) -> list[Step]:
        return self._open(arguments[1:], result, since)

    def _open(self, arguments: list[str], result: int, _: int) -> list[Step]:
        flags = arguments[1].split("|")
        name = self._name(arguments[0])
        if name is None:
            return []
        steps: list[Step] = []
        if name != "." and name not in self._names:
            assert "O_CREAT" in flags, f"{name} was there before the recording"
            self._names[name] = file = len(self._sizes)
            self._sizes[file] = 0
            steps.append(Rename({name: file}))
        file = FOLDER if name == "." else self._names[name]
        if "O_TRUNC" in flags and self._sizes.get(file):
            self._sizes[file] = 0
            steps.append(Resize(file, 0))
        self._descriptors[result] = _Open(file, name, [0], "O_APPEND" in flags)
        return steps

    def _mkdir(self, arguments: list[str], *_: int) -> list[Step]:
        return self._rename_to({arguments[0]: FOLDER})

    def _mkdirat(self, arguments: list[str], *_: int) -> list[Step]:
        return self._mkdir(arguments[1:])

    def _unlink(self, arguments: list[str], *_: int) -> list[Step]:
        return self._rename_to({arguments[0]: None})

    def _unlinkat(self, arguments: list[str], *_: int) -> list[Step]:
        return self._unlink(arguments[1:])

    _rmdir = _unlink

    def _rename(self, arguments: list[str], *_: int) -> list[Step]:
        name = self._name(arguments[0])
        if name is None:
            return []
        return self._rename_to({arguments[1]: self._names[name], arguments[0]: None})

    def _renameat(self, arguments: list[str], *_: int) -> list[Step]:
        return self._rename([arguments[1], arguments[3]])

    _renameat2 = _renameat

    def _rename_to(self, wanted: dict[str, int | None]) -> list[Step]:
        names = {name: what for path, what in wanted.items() if (name := self._name(path))}
        for name, what in names.items():
            if what is None:
                self._names.pop(name, None)
            else:
                self._names[name] = what
        return [Rename(names)] if names else []

    # --- descriptors --------------------------------------------------------------------

    def _close(self, arguments: list[str], *_: int) -> list[Step]:
        self._descriptors.pop(int(arguments[0]), None)
        return []

    def _dup(self, arguments: list[str], result: int, _: int) -> list[Step]:
        if (found := self._descriptors.get(int(arguments[0]))) is not None:
            self._descriptors[result] = found
        return []

    _dup2 = _dup3 = _dup

    def _lseek(self, arguments: list[str], result: int, _: int) -> list[Step]:
        if (found := self._descriptors.get(int(arguments[0]))) is not None:
            found.position[0] = result
        return []

    # --- content ------------------------------------------------------------------------

    def _write(self, arguments: list[str], result: int, _: int) -> list[Step]:
        data = arguments[1]
        if arguments[0] == "1":
            return self._acknowledge(_octets(data))
        found = self._descriptors.get(int(arguments[0]))
        if found is None:
            return []
        offset = self._sizes[found.file] if found.appends else found.position[0]
        found.position[0] = offset + result
        return [self._write_at(found.file, offset, _octets(data)[:result])]

    def _pwrite64(self, arguments: list[str], result: int, _: int) -> list[Step]:
        found = self._descriptors.get(int(arguments[0]))
        if found is None:
            return []
        return [self._write_at(found.file, int(arguments[3]), _octets(arguments[1])[:result])]

    def _write_at(self, file: int, offset: int, data: bytes) -> Write:
        self._sizes[file] = max(self._sizes[file], offset + len(data))
        return Write(file, offset, data)

    def _ftruncate(self, arguments: list[str], *_: int) -> list[Step]:
        found = self._descriptors.get(int(arguments[0]))
        if found is None:
            return []
        self._sizes[found.file] = int(arguments[1])
        return [Resize(found.file, int(arguments[1]))]

    def _fsync(self, arguments: list[str], _: int, since: int) -> list[Step]:
        found = self._descriptors.get(int(arguments[0]))
        if found is None:
            return []
        return [Sync(found.name if found.file == FOLDER else found.file, since)]

    _fdatasync = _fsync

    def _mmap(self, arguments: list[str], *_: int) -> list[Step]:
        found = self._descriptors.get(int(arguments[4]))
        if found is not None and "PROT_WRITE" in arguments[2] and "MAP_SHARED" in arguments[3]:
            assert found.name.endswith("-shm"), f"{found.name} is written through a mapping"
        return []

    def _acknowledge(self, printed: bytes) -> list[Step]:
        *lines, self._printed = (self._printed + printed).split(b"\n")
        return [Acknowledge(int(line)) for line in lines]


def _octets(argument: str) -> bytes:
    """Of a string as strace prints it with -xx."""
    assert argument[0] == argument[-1] == '"', f"not the whole string: {argument[-40:]}"
    return bytes.fromhex(argument[1:-1].replace("\\x", ""))
