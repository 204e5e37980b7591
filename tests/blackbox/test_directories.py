"""Data directories as they are found: missing, read-only, full, in use, of a newer version."""

import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.sqlite.lock import DirectoryLock
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.events import ChangeSet, Event, Who
from kudurru.domain.objects import key_of
from tests.absent import absent
from tests.blackbox.program import (
    ANY_PORT,
    AT_ONCE,
    PATIENCE_S,
    Done,
    command,
    command_line,
    copy_of,
    environment,
    kudurru,
    records,
    serve_arguments,
    serving,
    wait_until,
    write_json,
    zone,
)

SERVE = ("serve", "--dns", ANY_PORT, "--http", ANY_PORT, "--ops", ANY_PORT, "--metrics", ANY_PORT)
READS = [("get", "zone"), ("history",), ("audit", "verify"), ("query", "home.arpa")]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    www = records("www.home.arpa", "home.arpa", ("www.home.arpa", "A", "192.0.2.1"))
    return write_json(tmp_path / "home.json", zone("home.arpa"), www)


@pytest.fixture
def node(tmp_path: Path, manifest: Path) -> Path:
    data = tmp_path / "data"
    assert command("apply", "-f", manifest, "--data", data).code == 0
    return data


def assert_refused(done: Done, *messages: str) -> None:
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) == 1
    for message in messages:
        assert message in done.err


@pytest.mark.parametrize("args", READS, ids=" ".join)
def test_reading_from_a_directory_that_is_not_there_makes_none(
    args: tuple[str, ...], tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    done = command(*args, "--data", missing)
    assert_refused(done, f"there is no data directory at {missing}", "give --data or KUDURRU_DATA")
    assert not missing.exists()


def test_a_refused_manifest_makes_no_directory(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: nope\n")
    assert command("apply", "-f", bad, "--data", tmp_path / "missing").code == 1
    assert not (tmp_path / "missing").exists()


def test_the_first_change_makes_a_private_directory(node: Path) -> None:
    assert stat.S_IMODE(node.stat().st_mode) == 0o700
    assert stat.S_IMODE((node / "log.db").stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_server_leaves_no_core_for_others_to_find_keys_in(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    # As many as may be: where the machine allows none, the server does not either.
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        with serving(tmp_path / "data") as server:
            limits = Path(f"/proc/{server.process.pid}/limits").read_text().splitlines()
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    (core,) = (line.split()[4] for line in limits if line.startswith("Max core file size"))
    assert core == "0"


def test_a_directory_whose_name_is_no_utf8_holds_a_log_too(tmp_path: Path, manifest: Path) -> None:
    data = tmp_path / os.fsdecode(b"d\xff")
    assert command("apply", "-f", manifest, "--data", data).code == 0
    assert command("audit", "verify", "--data", data).code == 0


def test_a_file_is_no_data_directory(tmp_path: Path, manifest: Path) -> None:
    for args in (("get", "zone"), ("apply", "-f", str(manifest)), SERVE):
        done = command(*args, "--data", manifest)
        assert_refused(done, f"{manifest} cannot be the data directory: it is not a directory")


# Root may write anywhere: a process without that right is like everybody else.
AS_ANYBODY = (
    ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
    if os.geteuid() == 0
    else ()
)


@pytest.mark.parametrize("verb", ["get", "apply", "serve"])
def test_a_directory_that_cannot_be_written_is_refused(
    verb: str, node: Path, manifest: Path
) -> None:
    before = (node / "log.db").read_bytes()
    args = {"get": ("get", "zone"), "apply": ("apply", "-f", str(manifest)), "serve": SERVE}[verb]
    node.chmod(0o500)
    try:
        done = kudurru(*args, "--data", node, prefix=AS_ANYBODY)
    finally:
        node.chmod(0o700)
    assert_refused(done, f"{node} cannot be the data directory", "mend its rights")
    assert (node / "log.db").read_bytes() == before


@pytest.mark.parametrize("args", [("get", "zone"), ("audit", "verify"), ("doctor",), SERVE])
def test_a_directory_of_somebody_else_is_refused(args: tuple[str, ...], node: Path) -> None:
    node.chmod(0)
    try:
        done = kudurru(*args, "--data", node, prefix=AS_ANYBODY)
    finally:
        node.chmod(0o700)
    assert_refused(done, f"{node} cannot be the data directory", "may not read", "mend its rights")


@pytest.mark.parametrize(
    "args",
    [("apply", "-f"), ("zone", "check"), ("zone", "import"), ("log", "import"),
     ("config", "validate", "--config")],
    ids=" ".join,
)  # fmt: skip
def test_a_file_that_may_not_be_read_is_told_with_the_reason(
    args: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("kind: DNSZone")
    file.chmod(0)
    place = () if args[:1] == ("config",) else ("--data", tmp_path / "data")
    done = kudurru(*args, file, *place, prefix=AS_ANYBODY)
    assert (done.code, "Usage" in done.err) == (1, False), done.err
    assert f"{file}" in done.err
    assert "Permission denied" in done.err or "may not be read" in done.err


@pytest.mark.parametrize("verb", ["apply", "serve"])
def test_a_directory_that_cannot_be_made_is_refused(
    verb: str, tmp_path: Path, manifest: Path
) -> None:
    tmp_path.chmod(0o500)
    args = {"apply": ("apply", "-f", str(manifest)), "serve": SERVE}[verb]
    try:
        done = kudurru(*args, "--data", tmp_path / "new", prefix=AS_ANYBODY)
    finally:
        tmp_path.chmod(0o700)
    assert_refused(done, f"{tmp_path / 'new'} cannot be the data directory", "Permission denied")


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of 1 MiB: all that a node keeps fits three times, `BIG` does not. Skips where
    this user may not mount one."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        absent(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 1024)
        except OSError:
            return filler


BIG = "\n".join(
    [
        "$ORIGIN big.example.",
        "@ 5 SOA ns hostmaster 1 2 3 4 5",
        "@ 5 NS ns",
        "ns 5 A 192.0.2.1",
        *(f"h{i} 5 A 192.0.2.1" for i in range(8_000)),
    ]
)


def test_a_full_disk_refuses_changes_and_loses_nothing(tmp_path: Path, manifest: Path) -> None:
    big = tmp_path / "big.zone"
    big.write_text(BIG)
    with small_disk(tmp_path / "disk") as disk:
        data = disk / "data"
        assert command("apply", "-f", manifest, "--data", data).code == 0
        done = command("zone", "import", big, "--data", data)
        assert_refused(done, str(data / "log.db"), "full", "free space on that disk")
        assert command("audit", "verify", "--level", "state", "--data", data).code == 0

        filler = fill(disk)
        for args in (("get", "zone"), ("apply", "-f", str(manifest)), SERVE):
            assert_refused(command(*args, "--data", data), str(data), "free space on that disk")
        assert_refused(command(*SERVE, "--data", disk / "new"), "free space on that disk")

        filler.unlink()
        assert "www.home.arpa" in command("get", "rs", "--data", data).out
        assert command("audit", "verify", "--level", "state", "--data", data).code == 0


def test_a_server_on_a_full_disk_answers_on_and_takes_changes_when_there_is_room(
    tmp_path: Path, manifest: Path
) -> None:
    big = tmp_path / "big.zone"
    big.write_text(BIG)
    with small_disk(tmp_path / "disk") as disk, serving(disk / "data") as server:
        data = disk / "data"
        assert command("apply", "-f", manifest, "--data", data).code == 0
        assert_refused(command("zone", "import", big, "--data", data), "full")
        assert shutil.disk_usage(disk).free > 512 << 10, "what was refused holds the disk"
        assert server.texts("www.home.arpa") == ["192.0.2.1"]
        other = write_json(tmp_path / "other.json", zone("other.example"))
        assert command("apply", "-f", other, "--data", data).code == 0
        assert server.ask("other.example", "SOA").answer
        assert command("audit", "verify", "--level", "state", "--data", data).code == 0


def test_a_directory_in_use_by_a_process_that_does_not_answer_is_refused(
    node: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kudurru.entrypoints.directory.LOCK_PATIENCE_S", 0.1)
    with DirectoryLock.acquire(node / "lock", now_us=0):
        for args in (("apply", "-f", str(manifest)), SERVE):
            done = command(*args, "--data", node)
            assert_refused(done, f"{node} is in use by process {os.getpid()}", "end it first")
        assert command("get", "zone", "--data", node).code == 0


def test_two_servers_cannot_hold_one_directory(node: Path) -> None:
    with serving(node) as server:
        done = kudurru(*SERVE, "--data", node)
        assert_refused(done, f"{node} is in use by process {server.process.pid}")
        assert server.texts("www.home.arpa") == ["192.0.2.1"]


def test_a_port_that_is_taken_is_named_with_who_has_it(node: Path, tmp_path: Path) -> None:
    with serving(node) as server:
        args = ["serve", "--dns", server.addresses["dns"], "--data", str(tmp_path / "other")]
        done = kudurru(*args)
        assert_refused(done, f"{server.addresses['dns']} is taken by", "listen on another port")


@pytest.mark.parametrize("args", [*READS, ("serve", "--dns", ANY_PORT)], ids=" ".join)
def test_a_log_of_a_newer_version_is_refused(args: tuple[str, ...], node: Path) -> None:
    with sqlite3.connect(node / "log.db") as db:
        db.execute("UPDATE meta SET schema = 99")
    db.close()
    before = (node / "log.db").read_bytes()
    done = command(*args, "--data", node)
    assert_refused(done, f"{node / 'log.db'} has schema 99", "use that or a later one")
    assert (node / "log.db").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"not a database" * 100, "this is no SQLite database"), (b"", "is empty, there is no log")],
)
def test_a_file_that_is_no_log_is_refused(content: bytes, message: str, node: Path) -> None:
    (node / "log.db").write_bytes(content)
    assert_refused(command("get", "zone", "--data", node), str(node / "log.db"), message)
    assert (node / "log.db").read_bytes() == content


def test_events_of_a_newer_version_stop_writing_and_not_answering(
    node: Path, manifest: Path
) -> None:
    """Served is what is before them; readiness says why nothing is written."""
    log = SQLiteEventLog.open(node / "log.db", entropy=SystemEntropy(), clock=SystemClock())
    with closing(log):
        event = Event("obj.renamed.v1", key_of("DNSZone", "", "new.example"), 1, "/", "m", b"{}")
        log.append([ChangeSet((event,), Who(actor="newer"))], SystemClock().now_us())
        head = log.head()
    with serving(node) as server:
        assert server.texts("www.home.arpa") == ["192.0.2.1"]
        with pytest.raises(HTTPError) as refused:
            urlopen(f"http://{server.addresses['ops']}/readyz")
        with closing(refused.value) as answer:
            assert (answer.code, b"LogNewer" in answer.read()) == (503, True)
        done = command("apply", "-f", manifest, "--data", node)
        assert (done.code, "upgrade kudurru" in done.err) == (1, True)
    with closing(
        SQLiteEventLog.open(node / "log.db", entropy=SystemEntropy(), clock=SystemClock())
    ) as log:
        assert log.head() == head


def test_sigterm_ends_the_server_with_0(node: Path) -> None:
    with serving(node) as server:
        assert (node / "kudurru.sock").exists()
        assert server.stop() == 0
    assert not (node / "kudurru.sock").exists()


def test_a_server_that_is_to_end_answers_until_balancers_had_time_to_notice(node: Path) -> None:
    with serving(node, env={AT_ONCE: "1h"}) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.texts("www.home.arpa") == ["192.0.2.1"]
        # Who presses Control-C waits for no balancer.
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE_S) == 0


def test_sigterm_while_the_server_starts_ends_it_with_0(node: Path) -> None:
    process = subprocess.Popen(
        command_line(*serve_arguments(node)),
        stdout=subprocess.DEVNULL,
        env=environment(**{AT_ONCE: "0s"}),
    )
    wait_until(lambda: f'"pid":{process.pid},' in (node / "lock").read_text())
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def test_a_pid_file_is_there_while_the_server_runs(node: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with serving(node, "--pid-file", str(pid_file)) as server:
        assert pid_file.read_text() == f"{server.process.pid}\n"
    assert not pid_file.exists()


def test_the_socket_is_for_its_owner_only(node: Path) -> None:
    with serving(node):
        assert stat.S_IMODE((node / "kudurru.sock").stat().st_mode) == 0o600


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A folder with a path that is short whatever the folder of the test."""
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        yield Path(folder)


def test_the_socket_of_a_long_path_is_elsewhere_and_found(
    tmp_path: Path, runtime: Path, manifest: Path
) -> None:
    data = tmp_path / ("d" * 100)
    with serving(data, env={"XDG_RUNTIME_DIR": str(runtime)}) as server:
        socket = Path((data / "socket").read_text().strip())
        assert socket.parent == runtime / "kudurru"
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        assert command("apply", "-f", manifest, "--data", data).code == 0
        (made,) = command("history", "rs/www.home.arpa", "--data", data, "-o", "json").json()
        assert made["source"] == "socket"
        assert server.texts("www.home.arpa") == ["192.0.2.1"]
        # A copy is another node: it must not be reached through the socket of this one.
        copy = copy_of(data, tmp_path / ("c" * 100))
        assert command("delete", "rs", "www.home.arpa", "--data", copy).code == 0
        assert server.texts("www.home.arpa") == ["192.0.2.1"]
    assert not socket.exists()
    assert not (data / "socket").exists()


def test_a_folder_that_others_can_write_holds_no_socket(tmp_path: Path, runtime: Path) -> None:
    (runtime / "kudurru").mkdir(parents=True)
    (runtime / "kudurru").chmod(0o777)
    data = tmp_path / ("d" * 100)
    done = kudurru(*SERVE, "--data", data, prefix=("env", f"XDG_RUNTIME_DIR={runtime}"))
    assert_refused(done, f"{runtime / 'kudurru'} cannot hold the command socket", "mode 0700")


def test_a_stale_socket_is_no_server(node: Path, manifest: Path) -> None:
    with serving(node) as server:
        server.process.kill()
        server.process.wait(PATIENCE_S)
    assert (node / "kudurru.sock").exists()
    assert command("apply", "-f", manifest, "--data", node).code == 0
    with serving(node) as server:
        assert server.texts("www.home.arpa") == ["192.0.2.1"]
