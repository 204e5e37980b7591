"""The program as people run it: real processes, real sockets, no fixed ports.

`kudurru` starts the command line as a process. `command` runs the same `main` in this process: for
tables of many cases, where starting the interpreter would be most of the time.

In the fast suite `kudurru` and `serving` fork from a process that has imported the program
(forks.py). Tests of how it starts use `command_line`, or a prefix.
"""

import contextlib
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import dns.flags
import dns.message
import dns.query
import dns.rcode

from kudurru.entrypoints.cli.main import main
from tests.blackbox.forks import Forked, Forker

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 75.0
"""Before a process that does not do what is waited for fails the test. Nothing takes as long."""

ANY_PORT = "127.0.0.1:0"
AT_ONCE = "KUDURRU__HEALTH__LAMEDUCK"
"""How long a server that is to end waits for balancers to notice: in tests not at all."""

forker = Forker()
_READ_FIRST = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_")
"""Begins names of variables that are read before the program begins."""

CRASHES = ("Traceback (most recent call last)", "This is a fault of kudurru")


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def environment(**extra: str) -> dict[str, str]:
    """Of this process, without settings of ours. What is compiled is kept: to compile it anew would
    be a third of each command's time."""
    left_out = ("KUDURRU", "PYTHONDONTWRITEBYTECODE")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    return {**inherited, "PYTHONPATH": str(ROOT / "src"), **extra}


def command_line(*args: str | Path, prefix: Sequence[str] = ()) -> list[str]:
    return [*prefix, sys.executable, "-m", "kudurru", *map(str, args)]


def kudurru(
    *args: str | Path,
    stdin: str = "",
    prefix: Sequence[str] = (),
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> Done:
    """Run a command to its end. It must never show the inside of the program."""
    if may_fork(prefix, env):
        return _checked(forked(*args, stdin=stdin, cwd=cwd, env=env))
    done = subprocess.run(
        command_line(*args, prefix=prefix),
        input=stdin.encode(),
        capture_output=True,
        timeout=PATIENCE_S,
        env=environment(**(env or {})),
        cwd=cwd,
        check=False,
    )
    return _checked(Done(done.returncode, done.stdout.decode(), done.stderr.decode()))


def may_fork(prefix: Sequence[str], env: dict[str, str] | None) -> bool:
    wanted = sys.platform == "linux" and os.environ.get("KUDURRU_TEST_FORKS", "0") != "0"
    return wanted and not prefix and not any(name.startswith(_READ_FIRST) for name in env or ())


def forked(
    *args: str | Path,
    stdin: str = "",
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> Done:
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        given.write(stdin.encode())
        given.seek(0)
        files = (given.fileno(), out.fileno(), err.fileno())
        process = forker.start([*map(str, args)], environment(**(env or {})), files, cwd=cwd)
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return Done(code, out.read().decode(), err.read().decode())


def on_a_terminal(*args: str | Path) -> tuple[str, str]:
    """What a command writes to stdout, and what somebody sees whose terminal is its stderr. It has
    to end well."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            command_line(*args),
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=PATIENCE_S,
            env=environment(),
            check=True,
        )
    finally:
        os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as terminal:
        while some := terminal.read(4096):  # it ends with an error
            shown += some
    return done.stdout.decode(), shown.decode()


def command(*args: str | Path) -> Done:
    """Run a command in this process."""
    written, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(written, encoding="utf-8", newline="", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(arg) for arg in args])
    return _checked(Done(code, written.getvalue().decode(), err.getvalue()))


def _checked(done: Done) -> Done:
    for crash in CRASHES:
        assert crash not in done.err, done.err
    return done


class Serving:
    """A server that has said that it is ready."""

    def __init__(self, process: subprocess.Popen[str] | Forked, ready: str, err: Any) -> None:
        self.process = process
        self.ready = ready
        self._err = err
        self.addresses = dict(part.split("=", 1) for part in ready.split()[1:])
        host, _, port = self.addresses["dns"].split(",")[0].rpartition(":")
        self.host, self.port = host.strip("[]"), int(port)

    def ask(
        self, name: str, rtype: str = "A", *, tcp: bool = False, patience_s: float = PATIENCE_S
    ) -> dns.message.Message:
        query = dns.message.make_query(name, rtype)
        send = dns.query.tcp if tcp else dns.query.udp
        return send(query, self.host, port=self.port, timeout=patience_s)

    def texts(self, name: str, rtype: str = "A") -> list[str]:
        """Data of the answer, or its code where it is none of success."""
        answer = self.ask(name, rtype)
        if answer.rcode() != dns.rcode.NOERROR:
            return [dns.rcode.to_text(answer.rcode())]
        return sorted(rdata.to_text() for rrset in answer.answer for rdata in rrset)

    def stderr(self) -> str:
        """What it has written so far."""
        return os.pread(self._err.fileno(), 1 << 20, 0).decode()

    def stop(self) -> int:
        """Ask it to end; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def serve_arguments(data: Path, *options: str, dns_at: str | None = ANY_PORT) -> list[str]:
    """Of a server on ports of its own."""
    args = ["serve", "--data", str(data), *options]
    if dns_at is not None:
        args += ["--dns", dns_at]
    for listener in ("http", "ops", "metrics"):
        args += [f"--{listener}", ANY_PORT]
    return args


@contextmanager
def serving(
    data: Path,
    *options: str,
    dns_at: str | None = ANY_PORT,
    env: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[Serving]:
    """`kudurru serve`, from when it is ready until the end of the block. Its stderr must not show
    the inside of the program."""
    args = serve_arguments(data, *options, dns_at=dns_at)
    with tempfile.TemporaryFile("w+") as err:
        process = _started(args, {AT_ONCE: "0s", **(env or {})}, err, prefix)
        assert process.stdout is not None
        try:
            with process.stdout:
                ready = read_line(process)
                assert ready.startswith("ready "), _text(err)
                yield Serving(process, ready, err)
        finally:
            if process.poll() is None:
                process.terminate()
                end(process)
        _checked(Done(process.returncode, "", _text(err)))


def _started(
    args: list[str], env: dict[str, str], err: Any, prefix: Sequence[str]
) -> subprocess.Popen[str] | Forked:
    """A process whose stdout is read here."""
    if not may_fork(prefix, env):
        return subprocess.Popen(
            command_line(*args, prefix=prefix),
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env=environment(**env),
        )
    ours, theirs = os.pipe()
    with Path(os.devnull).open() as nothing, os.fdopen(theirs, "w"):
        files = (nothing.fileno(), theirs, err.fileno())
        return forker.start(args, environment(**env), files, stdout=os.fdopen(ours))


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read())


def read_line(process: subprocess.Popen[str] | Forked) -> str:
    """The next line that a process prints, "" when it ends first. It is killed when it neither
    prints nor ends."""
    assert process.stdout is not None
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    try:
        return process.stdout.readline()
    finally:
        watchdog.cancel()
        watchdog.join()


def end(process: subprocess.Popen[Any] | Forked) -> None:
    """Wait for a process, and no longer than patience allows."""
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], Any]) -> Any:
    """The first result of `condition` that is true. Fails when none comes."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


def files_in(folder: Path) -> dict[Path, bytes]:
    """What a folder holds now. Journals of a running server come and go while it is read."""
    found = {}
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found[path] = path.read_bytes()
    return found


def copy_of(data: Path, to: Path) -> Path:
    """Of a data directory whose server may run: without the query log, which it writes any time."""
    return Path(shutil.copytree(data, to, ignore=shutil.ignore_patterns("querylog*")))


def zone(name: str, **spec: Any) -> dict[str, Any]:
    """Manifest of a DNSZone named like its zone."""
    return _manifest("DNSZone", name, {"zoneName": name, **spec})


def records(name: str, zone_name: str, *endpoints: tuple[str, str, str]) -> dict[str, Any]:
    """Manifest of a DNSRecordSet; endpoints are (owner, type, target)."""
    spec = {
        "zoneRef": {"name": zone_name},
        "endpoints": [
            {"dnsName": owner, "recordType": rtype, "targets": [target]}
            for owner, rtype, target in endpoints
        ],
    }
    return _manifest("DNSRecordSet", name, spec)


def _manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kudurru.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def write_json(path: Path, *documents: dict[str, Any]) -> Path:
    """A file of manifests, one JSON document after the other."""
    path.write_text("\n".join(map(json.dumps, documents)))
    return path
