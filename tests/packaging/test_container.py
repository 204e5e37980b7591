"""The Containerfile: without fault for its linter, and its steps give an image that serves.

The steps run in a chroot (tests/packaging/containers.py), since there is no engine in CI.
"""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.blackbox.program import AT_ONCE, PATIENCE_S, records, zone
from tests.packaging.containers import Container, Image, Step, build, running, steps

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy/Containerfile"


PROGRAMS = {"as", "c++", "cc", "gcc", "gcc-12", "ld", "make", "pip", "pip3", "pip3.11"}
BUILDERS = PROGRAMS | {"pip", "setuptools", "wheel", "Python.h"}
"""Names of programs, modules and headers that have no place in an image."""


def built(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that wants the image."""
    return pytest.mark.slow(pytest.mark.timeout(600)(test))


def test_the_linter_finds_no_fault_in_the_containerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, CONTAINERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_steps_are_joined_over_lines_and_comments() -> None:
    text = "FROM a AS b\n# no\nRUN one \\\n# inside\n && two\n\nUSER 1:1\n"
    assert steps(text) == [Step("FROM", "a AS b"), Step("RUN", "one  && two"), Step("USER", "1:1")]


def test_the_image_runs_as_the_user_of_the_chart() -> None:
    values = yaml.safe_load((ROOT / "deploy/chart/kudurru/values.yaml").read_text())
    context = values["podSecurityContext"]
    (user,) = (step.text for step in steps(CONTAINERFILE.read_text()) if step.name == "USER")
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    work = tmp_path_factory.mktemp("container")
    try:
        yield build(CONTAINERFILE, ROOT, work)
    finally:
        shutil.rmtree(work)  # a gigabyte


@pytest.fixture(scope="module")
def container(image: Image) -> Iterator[Container]:
    with running(image) as found:
        yield found


@built
def test_nothing_that_builds_is_in_the_image(image: Image) -> None:
    found = [
        str(path.relative_to(image.root))
        for place in ("usr/bin", "usr/sbin", "usr/lib", "usr/include", "usr/local", "opt")
        for path in (image.root / place).rglob("*")
        if path.name in BUILDERS
    ]
    assert found == []


@built
def test_no_cache_stays_in_the_image(image: Image) -> None:
    for place in ("root/.cache", "var/lib/apt/lists", "var/cache/apt", "build", "opt/pip"):
        held = image.root / place
        assert not held.exists() or not any(held.iterdir()), f"{place} is not empty"


@built
def test_its_user_owns_nothing_in_the_image_but_the_data_directory(image: Image) -> None:
    uid = int(image.user.partition(":")[0])
    owned = {
        Path(folder, name).relative_to(image.root)
        for folder, folders, files in os.walk(image.root)
        for name in (*folders, *files)
        if Path(folder, name).lstat().st_uid == uid
    }
    assert owned == {Path("var/lib/kudurru")}
    assert stat.S_IMODE((image.root / "var/lib/kudurru").stat().st_mode) == 0o700


@built
def test_the_image_serves_on_a_read_only_root_as_its_user(container: Container) -> None:
    manifests = [
        zone("home.example"),
        records("www", "home.example", ("www.home.example", "A", "192.0.2.1")),
    ]
    given = "\n---\n".join(map(json.dumps, manifests))
    done = container.run("kudurru", "apply", "-f", "-", stdin=given)
    assert done.returncode == 0, done.stderr
    asked = container.beside("dig", "@127.0.0.1", "+short", "www.home.example", "A")
    assert asked.strip() == "192.0.2.1"
    status = Path(f"/proc/{container.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert set(fields["Uid"].split()) == {container.image.user.partition(":")[0]}
    assert int(fields["CapEff"], 16) == 0
    assert container.run("sh", "-c", "echo > /opt/kudurru/x").returncode != 0


@built
def test_the_health_check_of_the_image_says_ready(container: Container) -> None:
    assert container.image.health, "there is no HEALTHCHECK"
    done = container.run(*container.image.health)
    assert (done.returncode, done.stdout.strip()) == (0, "ready"), done.stderr


@built
def test_the_image_ends_well_when_it_is_told_to(image: Image) -> None:
    quick = replace(image, environ=image.environ | {AT_ONCE: "0s"})
    with running(quick) as container:
        os.kill(container.pid, signal.SIGTERM)
        assert container.process.wait(PATIENCE_S) == 0
