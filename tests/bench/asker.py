"""A generator of questions in C, which costs a fraction of what answering does (`asker.c`)."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.absent import absent
from tests.blackbox.program import read_line

SOURCES = Path(__file__).parent
ENGINE = SOURCES.parents[1] / "adapters" / "dns" / "native"
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra"]


class Figures(msgspec.Struct, frozen=True):
    """What a run found; those of other ways of asking are 0. Without answers times are -1."""

    seconds: float
    sent: int = 0
    answered: int = 0
    lost: int = 0
    wrong: int = 0
    changing: int = 0
    refused: int = 0
    p50_ms: float = 0
    p99_ms: float = 0
    max_ms: float = 0
    cpu_s: float = 0

    @property
    def per_s(self) -> float:
        return self.answered / self.seconds


def built(source: Path, folder: Path, *parts: Path) -> Path:
    """The program of a source file and parts of the engine, built in `folder` unless there."""
    compiler = shutil.which("cc") or absent("there is no C compiler (Debian: gcc, libc6-dev)")
    program = folder / source.stem
    if not program.exists():
        subprocess.run(
            [compiler, *FLAGS, f"-I{ENGINE}", str(source), *map(str, parts), "-o", str(program)],
            check=True,
        )
    return program


def floor(folder: Path) -> Path:
    """What answers without looking."""
    return built(SOURCES / "floor.c", folder, ENGINE / "sending.c", ENGINE / "message.c")


class Asker:
    def __init__(self, folder: Path, *, prefix: Sequence[str] = ()) -> None:
        """Built in `folder`; `prefix` is a command that runs it, in a namespace say."""
        self.program = built(SOURCES / "asker.c", folder)
        self._prefix = list(prefix)

    def full(
        self,
        where: tuple[str, int],
        seconds: float,
        names: Path,
        *,
        sockets: int = 16,
        window: int = 64,
    ) -> Figures:
        """As fast as answers come."""
        return self._run("full", where, seconds, sockets, window, names=names)

    def pour(
        self, where: tuple[str, int], seconds: float, names: Path, *, sockets: int = 16
    ) -> Figures:
        """More than is answered; what is, the server counts."""
        return self._run("pour", where, seconds, sockets, names=names)

    def paced(self, where: tuple[str, int], seconds: float, rate: float, names: Path) -> Figures:
        """So many a second, and how long an answer took, by the kernel's clock."""
        return self._run("paced", where, seconds, rate, names=names)

    def checked(self, where: tuple[str, int], count: int, state: Path, names: Path) -> Figures:
        """Every answer is compared with what `state` permits; some that are wrong go to stderr."""
        return self._run("checked", where, count, state, names=names)

    @contextmanager
    def flooding(
        self, where: tuple[str, int], seconds: float, rate: float, through: tuple[str, str, str]
    ) -> Iterator["subprocess.Popen[str]"]:
        """A flood during the block; `through` an interface, to a link address, of a zone's names.
        Figures are what it prints in the end: `figures_of`."""
        command = self._command("flood", where, seconds, rate, *through)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def echoing(self, address: str) -> Iterator[tuple[str, int]]:
        """The least that answers: where it listens during the block."""
        command = [*self._prefix, str(self.program), "echo", address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield address, int(read_line(process))
            finally:
                process.kill()

    def _command(self, way: str, where: tuple[str, int], *given: object) -> list[str]:
        host, port = where
        return [*self._prefix, str(self.program), way, host, str(port), *map(str, given)]

    def _run(self, way: str, where: tuple[str, int], *given: object, names: Path) -> Figures:
        with names.open() as file:
            done = subprocess.run(
                self._command(way, where, *given),
                stdin=file, stdout=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
        assert done.stdout, f"the asker ended with {done.returncode} and no figures"
        return figures_of(done.stdout)


def figures_of(line: str) -> Figures:
    return msgspec.convert(json.loads(line), Figures)
