"""Builds and runs deploy/Containerfile without a container engine: its steps, in a chroot.

A stage is a folder that begins as Debian's smallest system, RUN and COPY happen in it, and what it
says of the image is kept beside it. `running` starts the image as an engine would: an own network,
process ids and mounts, a root that is read only, the image's user and no more rights than that has.
Needs root, and debootstrap.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.absent import absent
from tests.blackbox.program import PATIENCE_S, end, read_line, wait_until

MIRROR = "http://deb.debian.org/debian"
STEP_S = 300.0
APART = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "https_proxy", "http_proxy")


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction and the rest of its lines."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """What a stage comes to."""

    root: Path
    base: str
    environ: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    volumes: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: tuple[str, ...] = ()


def steps(text: str) -> list[Step]:
    """Instructions in order, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", "")
    return [Step(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def build(containerfile: Path, context: Path, work: Path) -> Image:
    """The last stage. Skips the test where stages cannot be built."""
    if os.geteuid() != 0 or not _may_mount():
        absent("the steps of a container need root, and the right to mount")
    stages: dict[str, Image] = {}
    image = None
    for step in steps(containerfile.read_text()):
        if step.name == "FROM":
            base, _, name = step.text.partition(" AS ")
            image = Image(work / f"stage{len(stages)}", base)
            _begin(image, work)
            stages[name or str(len(stages))] = image
            continue
        assert image is not None, "a Containerfile begins with FROM"
        taken = _taken(image, step, stages, context)
        stages = {name: taken if one is image else one for name, one in stages.items()}
        image = taken
    assert image is not None
    _forget_this_machine(image)
    return image


def _may_mount() -> bool:
    return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0


def _begin(image: Image, work: Path) -> None:
    """Debian of the release that the tag names: made once, copied for each stage."""
    name, _, tag = image.base.partition(":")
    assert name == "debian", f"{image.base}: only Debian's images can be made here"
    release = tag.removesuffix("-slim")
    base = work / f"debian-{release}"
    if not base.exists():
        program = shutil.which("debootstrap", path="/usr/sbin:/usr/bin")
        if program is None:
            absent("debootstrap is not installed")
        _run([program, "--variant=minbase", release, str(base), MIRROR], {})
    _run(["cp", "--archive", "--reflink=auto", str(base), str(image.root)], {})
    # What an engine lends to a build, and what this machine needs to reach package indexes.
    shutil.copy("/etc/resolv.conf", image.root / "etc/resolv.conf")
    if Path(CERTIFICATES).exists():
        shutil.copy(CERTIFICATES, image.root / "build-certificates.crt")


def _forget_this_machine(image: Image) -> None:
    (image.root / "build-certificates.crt").unlink(missing_ok=True)
    (image.root / "etc/resolv.conf").write_text("")


def _taken(image: Image, step: Step, stages: dict[str, Image], context: Path) -> Image:
    """The image after a step. Fails on an instruction that is not known here."""
    match step.name:
        case "RUN":
            _run(_inside(image, step.text), image.environ | _of_this_machine())
            return image
        case "COPY":
            _copy(image, shlex.split(step.text), stages, context)
            return image
        case "ENV":
            given = dict(part.split("=", 1) for part in shlex.split(step.text))
            return replace(image, environ=image.environ | given)
        case "WORKDIR":
            (image.root / step.text.lstrip("/")).mkdir(parents=True, exist_ok=True)
            return replace(image, folder=step.text)
        case "USER":
            return replace(image, user=step.text)
        case "VOLUME":
            return replace(image, volumes=(*image.volumes, step.text))
        case "ENTRYPOINT":
            return replace(image, entrypoint=tuple(json.loads(step.text)))
        case "CMD":
            return replace(image, command=tuple(json.loads(step.text)))
        case "HEALTHCHECK":
            return replace(image, health=tuple(json.loads(step.text.partition(" CMD ")[2])))
        case "LABEL" | "EXPOSE":
            return image
    raise AssertionError(f"{step.name} is not known to tests/packaging/containers.py")


def _inside(image: Image, script: str) -> list[str]:
    """A command of the shell in the chroot, with /proc and /dev of its own."""
    root = shlex.quote(str(image.root))
    folder = shlex.quote(f"cd {shlex.quote(image.folder)} && {script}")
    mounts = f"mount -t proc proc {root}/proc && mount --bind /dev {root}/dev"
    return [*APART, "sh", "-c", f"{mounts} && exec chroot {root} /bin/sh -c {folder}"]


def _of_this_machine() -> dict[str, str]:
    kept = {name: os.environ[name] for name in PIP if name in os.environ}
    return kept | {"PIP_CERT": "/build-certificates.crt", "DEBIAN_FRONTEND": "noninteractive"}


def _run(command: list[str], environ: dict[str, str]) -> None:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(
        command,
        env={"PATH": path} | environ,
        capture_output=True,
        text=True,
        timeout=STEP_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def _copy(image: Image, words: list[str], stages: dict[str, Image], context: Path) -> None:
    """As COPY has it: what is in a folder goes into the target, files go into or become it."""
    source = context
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].root
    *names, last = words
    target = image.root / os.path.normpath(f"{image.folder}/{last}").lstrip("/")
    if last.startswith("/"):
        target = image.root / last.lstrip("/")
    for name in names:
        path = source / name.lstrip("/")
        if path.is_dir():
            # Other tests run meanwhile, and Python writes there.
            unstable = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, target, symlinks=True, dirs_exist_ok=True, ignore=unstable)
        elif last.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        else:
            shutil.copy2(path, target)


class Container:
    """An image that runs."""

    def __init__(self, image: Image, process: subprocess.Popen[str], pid: int, ready: str) -> None:
        self.image = image
        self.process = process
        self.pid = pid  # of its first process, seen from outside
        self.ready = ready

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command inside, as the image's user: what engines call exec."""
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid"]
        return subprocess.run(
            [*enter, *_as_user(self.image), *command],
            input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            env=self.image.environ,
        )  # fmt: skip

    def beside(self, *command: str) -> str:
        """What a program of this machine says in the container's network."""
        enter = ["nsenter", f"--target={self.pid}", "--net"]
        done = subprocess.run(
            [*enter, *command], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        return done.stdout


def _as_user(image: Image) -> list[str]:
    return [
        "setpriv", "--no-new-privs",
        "chroot", f"--userspec={image.user}", "--groups=", str(image.root),
    ]  # fmt: skip


@contextmanager
def running(image: Image) -> Iterator[Container]:
    """From when the server is ready. Volumes are empty and the user's, /tmp is empty, and all else
    cannot be written."""
    root = shlex.quote(str(image.root))
    owner = image.user.replace(":", ",gid=")
    script = [
        "ip link set lo up",
        "echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start",
        f"mount --bind {root} {root}",
        f"mount -o remount,ro,bind {root}",
        f"mount -t proc proc {root}/proc",
        f"mount --bind /dev {root}/dev",
        f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp",
        *(f"mount -t tmpfs -o uid={owner},mode=0700 tmpfs {root}{at}" for at in image.volumes),
        f"exec {shlex.join([*_as_user(image), *image.entrypoint, *image.command])}",
    ]
    process = subprocess.Popen(
        [*APART, "--net", "sh", "-c", " && ".join(script)],
        env=image.environ, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    pid = 0
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: process.poll() is not None or children.read_text().strip())
        assert process.poll() is None, "it ended at once"
        pid = int(children.read_text())
        assert process.stdout is not None
        with process.stdout:
            ready = read_line(process)
            assert ready.startswith("ready "), f"not ready: {ready}"
            yield Container(image, process, pid, ready)
    finally:
        if process.poll() is None:
            # The first of its processes: --kill-child is forgotten when that takes another user.
            if pid:
                os.kill(pid, signal.SIGKILL)
            else:
                process.kill()
        end(process)
