"""The recipe of a release, deploy/wheels.py: its wheels are for old systems and any CPython from
3.11, the same bytes each time, and what they install serves by the native engine."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from email import message_from_bytes
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.absent import absent
from tests.blackbox.program import AT_ONCE, PATIENCE_S, end, read_line

ROOT = Path(__file__).parents[2]
MACHINES = {"x86_64": 62, "aarch64": 183}
"""As ELF numbers them."""
EPOCH = 1_700_000_000
BUILD_S = 400.0
SHARED = Path("/dev/shm")
SCRATCH_BYTES = 1 << 30
"""More than a build takes beside what it makes."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def release(to: Path, machines: Sequence[str], umask: int, **environ: str) -> None:
    options = [word for machine in machines for word in ("--machine", machine)]
    done = subprocess.run(
        [sys.executable, ROOT / "deploy/wheels.py", "--to", to, *options],
        cwd=to.parent, env=os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH)} | environ, umask=umask,
        capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the commit that is checked out."""
    for name in ("auditwheel", "ziglang"):
        if importlib.util.find_spec(name) is None:
            absent(f"the extra wheels is not installed: there is no {name}")
    folder = tmp_path_factory.mktemp("release") / "dist"
    release(folder, list(MACHINES), 0o022)
    return folder


def wheel_for(released: Path, machine: str) -> Path:
    (found,) = released.glob(f"*_{machine}.whl")
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_a_wheel_is_for_old_systems_and_every_cpython_from_3_11(
    released: Path, machine: str
) -> None:
    path = wheel_for(released, machine)
    old = [f"manylinux2014_{machine}", f"manylinux_2_17_{machine}"]
    assert path.stem.endswith(f"-cp311-abi3-{'.'.join(old)}")
    with zipfile.ZipFile(path) as wheel:
        (name,) = (one for one in wheel.namelist() if one.endswith(".dist-info/WHEEL"))
        tags = message_from_bytes(wheel.read(name)).get_all("Tag", [])
        assert sorted(tags) == [f"cp311-abi3-{one}" for one in old]
        assert {one.date_time[:3] for one in wheel.infolist()} == {(2023, 11, 14)}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_engine_in_a_wheel_is_for_its_machine_and_wants_the_c_library_alone(
    released: Path, tmp_path: Path, machine: str
) -> None:
    from elftools.elf.elffile import ELFFile  # comes with auditwheel

    with zipfile.ZipFile(wheel_for(released, machine)) as wheel:
        found = [one for one in wheel.namelist() if one.endswith(".so")]
        assert found == ["kudurru/adapters/dns/_engine.abi3.so"]
        extracted = wheel.extract(found[0], tmp_path)
        text = wheel.read(found[0])
    with Path(extracted).open("rb") as file:
        elf = ELFFile(file)
        assert elf.header.e_machine in (MACHINES[machine], f"EM_{machine.upper()}")
        entries = list(elf.get_section_by_name(".dynamic").iter_tags())
        assert {one.needed for one in entries if one.entry.d_tag == "DT_NEEDED"} <= {
            "libc.so.6", "libpthread.so.0",
        }  # fmt: skip
        assert not {one.entry.d_tag for one in entries} & {"DT_RPATH", "DT_RUNPATH"}
        assert elf.get_section_by_name(".debug_info") is None
    for folder in (sys.prefix, sys.base_prefix, str(ROOT)):
        assert folder.encode() not in text, "it tells where it was built"


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """On another file system than what is built, where there is one with room: as /tmp may be."""
    with TemporaryDirectory(dir=SHARED if is_other(SHARED, tmp_path) else tmp_path) as name:
        yield Path(name)


def is_other(path: Path, than: Path) -> bool:
    if not os.access(path, os.W_OK) or path.stat().st_dev == than.stat().st_dev:
        return False
    return shutil.disk_usage(path).free >= SCRATCH_BYTES


def test_the_same_commit_gives_the_same_bytes_elsewhere(
    released: Path, tmp_path: Path, scratch: Path
) -> None:
    other = tmp_path / "a" / "longer path"
    other.parent.mkdir()
    release(other, ["x86_64"], 0o077, TMPDIR=str(scratch), CFLAGS="-O0", TZ="Asia/Tokyo")
    for path in (*other.glob("*.whl"), *other.glob("*.tar.gz")):
        assert path.read_bytes() == (released / path.name).read_bytes()


def test_sums_are_of_all_files_as_sha256sum_reads_them(released: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=released, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert said == {path.name for path in released.iterdir()} - {"SHA256SUMS"}
    assert len(said) == 1 + len(MACHINES)


def test_the_sdist_tells_nothing_of_who_packed_it(released: Path) -> None:
    (path,) = released.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        members = sdist.getmembers()
    assert {(one.mtime, one.uid, one.gid, one.uname, one.gname) for one in members} == {
        (EPOCH, 0, 0, "", "")
    }
    assert [one.name for one in members] == sorted(one.name for one in members)


@pytest.mark.skipif(os.uname().machine not in MACHINES, reason="there is no wheel for this machine")
def test_what_a_wheel_installs_serves_by_the_native_engine(released: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "KUDURRU"))}

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    wheel = wheel_for(released, os.uname().machine)
    run(programs / "python", "-m", "pip", "install", "--quiet", wheel)
    assert "engine native)" in run(programs / "kudurru", "version")
    at = ["--dns", "--http", "--ops", "--metrics"]
    server = subprocess.Popen(
        [
            programs / "kudurru", "serve", "--demo", "--engine", "native",
            *(word for option in at for word in (option, "127.0.0.1:0")),
        ],
        cwd=tmp_path, env=environ | {AT_ONCE: "0s"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        with server.stdout:
            assert read_line(server).startswith("ready ")
        server.terminate()
        assert server.wait(PATIENCE_S) == 0
    finally:
        server.kill()
        end(server)
