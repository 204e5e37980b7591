"""What is built and installed. Needs a package index: pip fetches the build backend.

The native engine is in the wheels where this machine has a C compiler and Python's headers.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ["adapters", "domain", "entrypoints", "projections"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    """Standard output; when the command fails, everything it said."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=clean | environ, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a clone has, so that building leaves nothing in the real one."""
    copy = tmp_path_factory.mktemp("tree") / "kudurru"
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in names.split("\0"):
        source, target = ROOT / name, copy / name
        if name and os.path.lexists(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def built(tree: Path) -> dict[str, Path]:
    """The sdist, a wheel made from the tree, and one made from the sdist."""
    both, alone = tree.parent / "both", tree.parent / "alone"
    # Without options `build` makes the wheel from the sdist that it made first.
    run(sys.executable, "-m", "build", "--outdir", both, cwd=tree)
    shutil.rmtree(tree / "build", ignore_errors=True)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", alone, cwd=tree)
    return {
        "sdist": next(both.glob("*.tar.gz")),
        "from the sdist": next(both.glob("*.whl")),
        "from the tree": next(alone.glob("*.whl")),
    }


def modules() -> set[str]:
    """Every module of the tree, as the wheel should hold it."""
    found = {"kudurru/__init__.py", "kudurru/__main__.py"}
    for layer in LAYERS:
        found |= {f"kudurru/{path.relative_to(ROOT)}" for path in (ROOT / layer).rglob("*.py")}
    return found


def page_files() -> set[str]:
    """Files of the web page, and the module that serves them."""
    found = (ROOT / "entrypoints" / "dashboard").rglob("*.*")
    return {f"kudurru/{path.relative_to(ROOT)}" for path in found if path.suffix != ".pyc"}


@pytest.mark.parametrize("origin", ["from the tree", "from the sdist"])
def test_a_wheel_holds_every_module_once_and_nothing_beside(
    built: dict[str, Path], origin: str
) -> None:
    with zipfile.ZipFile(built[origin]) as wheel:
        names = wheel.namelist()
        tops = {name.split("/")[0] for name in names}
        info = next(top for top in tops if top.endswith(".dist-info"))
        assert tops == {"kudurru", info}
        assert [name for name, times in Counter(names).items() if times > 1] == []
        assert {name for name in names if name.endswith(".py")} == modules()
        assert "kudurru/py.typed" in names
        assert {name for name in names if "/dashboard/" in name} == page_files()
        assert f"{info}/licenses/LICENSE" in names
        assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        for name in modules() - {"kudurru/__init__.py", "kudurru/__main__.py"}:
            assert wheel.read(name) == (ROOT / name.removeprefix("kudurru/")).read_bytes()


def test_both_wheels_are_the_same(built: dict[str, Path]) -> None:
    contents = []
    for origin in ("from the tree", "from the sdist"):
        with zipfile.ZipFile(built[origin]) as wheel:
            contents.append(
                {n: wheel.read(n) for n in wheel.namelist() if n.startswith("kudurru/")}
            )
    assert contents[0].keys() == contents[1].keys()
    assert [name for name in contents[0] if contents[0][name] != contents[1][name]] == []


@pytest.mark.parametrize("origin", ["from the tree", "from the sdist"])
def test_a_wheel_holds_the_native_engine_where_there_is_a_compiler_for_it(
    built: dict[str, Path], origin: str
) -> None:
    with zipfile.ZipFile(built[origin]) as wheel:
        found = {name for name in wheel.namelist() if not name.endswith((".py", ".pyi"))}
    is_there = "kudurru/adapters/dns/_engine.abi3.so" in found
    assert is_there == can_build_extensions(), "setup.py says on stderr why it left it out"
    assert not any("/native/" in name for name in found), "its source belongs to the sdist alone"


def test_the_sdist_holds_the_source_of_the_native_engine(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    native = ROOT / "adapters" / "dns" / "native"
    wanted = {f"src/kudurru/adapters/dns/native/{path.name}" for path in native.iterdir()}
    assert wanted <= names


def can_build_extensions() -> bool:
    """Whether this machine has a C compiler and Python's headers."""
    include = sysconfig.get_path("include")
    return (
        sys.platform == "linux"
        and shutil.which(sysconfig.get_config_var("CC").split()[0]) is not None
        and Path(include, "Python.h").exists()
    )


def test_the_sdist_holds_no_module_twice_either(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    held = [name for name in names if name.endswith(".py") and not name.startswith("tests/")]
    assert sorted(held) == sorted(["setup.py", *(f"src/{name}" for name in modules())])
    assert {"LICENSE", "README.md", "pyproject.toml", "src/kudurru/py.typed"} <= set(names)


ENGINE = "from kudurru.adapters.dns import engine_native; print(engine_native.is_available())"


def test_pip_install_works_without_a_compiler(tree: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    shutil.rmtree(tree / "build", ignore_errors=True)  # of the wheels, with what they compiled
    run(python, "-m", "pip", "install", "--quiet", tree, cwd=tmp_path, CC="/bin/false")
    assert run(python, "-c", ENGINE, cwd=tmp_path).strip() == "False"
    said = run(tmp_path / "venv" / "bin" / "kudurru", "version", cwd=tmp_path)
    assert "0.1.0" in said
    specs = "import importlib.util as u; print([u.find_spec(n) for n in {!r}])"
    found = run(python, "-c", specs.format(LAYERS), cwd=tmp_path)
    assert found.strip() == str([None] * len(LAYERS)), "a layer was installed under a bare name"
    where = "import kudurru.domain.errors as m; print(m.__name__, m.__file__)"
    name, file = run(python, "-c", where, cwd=tmp_path).split()
    assert name == "kudurru.domain.errors"
    assert Path(file).is_relative_to(tmp_path)


def test_pip_install_with_a_compiler_builds_the_native_engine(
    built: dict[str, Path], tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    wheel = built["from the sdist"]
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    assert run(python, "-c", ENGINE, cwd=tmp_path).strip() == str(can_build_extensions())
    if can_build_extensions():
        assert "-cp311-abi3-" in wheel.name
