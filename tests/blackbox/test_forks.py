"""A forked process of the program is one that was started."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.blackbox import program
from tests.blackbox.forks import Forker
from tests.blackbox.program import (
    PATIENCE_S,
    Done,
    command_line,
    environment,
    forked,
    serving,
    write_json,
    zone,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are of Linux only")


def started(*args: str | Path, stdin: str, cwd: Path, env: dict[str, str]) -> Done:
    done = subprocess.run(
        command_line(*args),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(**env),
        cwd=cwd,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "args",
    [
        ("version",),
        ("serve", "--help"),
        ("get", "zone", "--nothing-like-this"),
        ("get", "zone", "none.example"),
        ("get", "zone", "-o", "json"),
        ("diff", "-f", "-"),
        ("diff", "-f", "zones.json"),
        ("audit", "verify"),
        ("config", "show"),
    ],
    ids=" ".join,
)
def test_it_says_the_same_and_ends_the_same(args: tuple[str, ...], tmp_path: Path) -> None:
    """With its own stdin, folder and environment."""
    file = write_json(tmp_path / "zones.json", zone("grün.example"))
    env = {"KUDURRU_DATA": str(tmp_path / "data"), "COLUMNS": "70", "TZ": "Asia/Tokyo"}
    one = started(*args, stdin=file.read_text(), cwd=tmp_path, env=env)
    assert forked(*args, stdin=file.read_text(), cwd=tmp_path, env=env) == one


def test_what_one_was_given_no_other_has(tmp_path: Path) -> None:
    shown = ("config", "show", "-o", "json")
    before = forked(*shown, cwd=tmp_path)
    given = forked(*shown, cwd=tmp_path, env={"KUDURRU__DNS__ENGINE": "python"})
    assert given.out != before.out
    assert forked(*shown, cwd=tmp_path) == before


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it_as_it_ends_any(
    which: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUDURRU_TEST_FORKS", "1")
    with serving(tmp_path / "data") as server:
        assert server.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0)
        server.process.send_signal(which)
        code = server.process.wait(PATIENCE_S)
        assert code == (-which if which == signal.SIGKILL else 0)
        server.process.kill()  # which is no fault, and reaches nobody
        with pytest.raises(ProcessLookupError):
            os.kill(server.process.pid, 0)


def test_many_are_forked_at_once_and_each_has_its_own(tmp_path: Path) -> None:
    def asked(number: int) -> Done:
        return forked("get", "zone", f"z{number}.example", "--data", tmp_path / str(number))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(asked, range(8)))
    for number, done in enumerate(found):
        assert done.code == 1
        assert str(tmp_path / str(number)) in done.err


def test_who_reads_its_output_is_told_when_it_ends(tmp_path: Path) -> None:
    """Nobody else holds the file: not the process that forks, nor a child that it forks later."""
    ours, theirs = os.pipe()
    with Path(os.devnull).open() as nothing, os.fdopen(ours) as output:
        with os.fdopen(theirs, "w"):
            files = (nothing.fileno(), theirs, nothing.fileno())
            process = program.forker.start(["version"], environment(), files, cwd=tmp_path)
        with serving(tmp_path / "data"):
            assert output.read().startswith("kudurru ")
        assert process.wait(PATIENCE_S) == 0


def test_a_request_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(AssertionError, match="start the program itself"):
        Forker().start(["x" * 200_000], {}, (0, 1, 2))


def test_how_python_starts_is_not_forked() -> None:
    assert not program.may_fork((), {"PYTHONIOENCODING": "ascii"})
    assert not program.may_fork(("unshare",), None)
