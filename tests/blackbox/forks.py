"""Processes of the program that are forked from one that has imported it.

A process of the command line takes a quarter of a second before it does anything, and a server half
a second: imports, which show nothing at the three-hundredth time. So there is one process that has
imported everything and does nothing. For each start it forks, and the child is the program from
`run` on: with its arguments, environment, folder and files, its own pid, and an exit of its own.

What differs from a process that is started: /proc/PID/cmdline, what is read from the environment
before the program begins (PYTHON..., the locale), modules that a command would not have imported,
and what a module draws when it is imported, which all have in common. Tests of these start the
program themselves, as do the slow ones.

Run as a program, this is the process that forks. It ends when nobody holds the other end of its
socket.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
REQUEST_OCTETS_MAX = 200_000
"""Of one message: less than a socket takes by itself, more than arguments and environment are."""

LOADED = (
    "apscheduler.schedulers.asyncio",
    "apscheduler.triggers.interval",
    "kudurru.adapters.sqlite.log",
    "kudurru.entrypoints.directory",
    "kudurru.entrypoints.front",
    "kudurru.entrypoints.live_settings",
    "kudurru.entrypoints.server",
    "rich.console",
    "rich.table",
    "typer.main",
    "typer._adapters",
)
"""What commands import when they are run, besides their own modules."""


class Forked:
    """A process of the program; as `subprocess.Popen`, as far as tests ask."""

    def __init__(self, pid: int, status: int, stdout: IO[str] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or the number of the signal that killed it, negative."""
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._status)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"kudurru, process {self.pid}", timeout or 0)
            said = os.read(self._status, 16)
            os.close(self._status)
            assert said, "the process that forks has ended"
            self.returncode = int(said)
        return self.returncode

    def send_signal(self, which: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, which)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forker:
    """The process that forks, from its first use to the end of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None

    def start(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        files: tuple[int, int, int],
        *,
        cwd: Path | None = None,
        stdout: IO[str] | None = None,
    ) -> Forked:
        """`files` become stdin, stdout and stderr; `stdout` is our end of the second, if any."""
        request = {"args": args, "env": dict(env), "cwd": str(cwd or Path.cwd())}
        message = json.dumps(request).encode()
        assert len(message) <= REQUEST_OCTETS_MAX, "start the program itself with as much"
        ours, theirs = os.pipe()
        try:
            with self._lock:
                channel = self._channel or self._begin()
                socket.send_fds(channel, [message], [*files, theirs])
                pid = channel.recv(16)
        finally:
            os.close(theirs)
        assert pid, "the process that forks has ended"
        return Forked(int(pid), ours, stdout)

    def _begin(self) -> socket.socket:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        with theirs:
            # A session of its own: ^C is for the tests, which then end what they have started.
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.blackbox.forks"],
                stdin=theirs,
                cwd=ROOT,
                env=env,
                start_new_session=True,
            )
        atexit.register(_end, self._channel, process)
        return self._channel


def _end(channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    channel.close()
    process.wait()


class Asked:
    """What the child is to be."""

    def __init__(self, message: bytes, files: list[int]) -> None:
        self.files = files
        request: dict[str, Any] = json.loads(message)
        self.args: list[str] = request["args"]
        self.env: dict[str, str] = request["env"]
        self.cwd: str = request["cwd"]

    def become(self) -> None:
        """Change this process, which was forked, into one that has just been started."""
        for number, file in enumerate(self.files):
            os.dup2(file, number)
            os.close(file)
        encoding = sys.stdout.encoding
        sys.stdin = sys.__stdin__ = os.fdopen(0, "r", encoding=encoding, closefd=False)
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding=encoding, closefd=False)
        sys.stderr = sys.__stderr__ = os.fdopen(
            2, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False
        )
        os.environ.clear()
        os.environ.update(self.env)
        time.tzset()
        os.chdir(self.cwd)
        sys.argv = [str(ROOT / "src/kudurru/__main__.py"), *self.args]


def next_child(channel: socket.socket) -> Asked | None:
    """Fork for each request. Returns in each child with what it is to be, and here with None when
    nobody will ask any more."""
    statuses: dict[int, int] = {}
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([channel, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            tell_ends(statuses)
        if channel in ready:
            message, files, _, _ = socket.recv_fds(channel, REQUEST_OCTETS_MAX, 4)
            if not message:
                return None
            status = files.pop()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for ours in (woken, wakes, status, *statuses.values(), channel.detach()):
                    os.close(ours)
                return Asked(message, files)
            statuses[pid] = status
            for file in files:
                os.close(file)
            channel.send(str(pid).encode())


def tell_ends(statuses: dict[int, int]) -> None:
    """To whoever waits for one of those that have ended."""
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = statuses.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(told)


def main() -> None:
    from kudurru.entrypoints.cli.main import COMMANDS, run

    commands = (f"kudurru.entrypoints.cli.{module}" for module, _ in COMMANDS.values())
    for name in (*LOADED, *commands):
        importlib.import_module(name)
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, "a child has one thread: nothing else may run when it is made"
    gc.collect()
    gc.freeze()
    asked = next_child(socket.socket(fileno=os.dup(0)))
    if asked is not None:
        asked.become()
        run()


if __name__ == "__main__":
    main()
