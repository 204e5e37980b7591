"""The folders at the root are the packages; src/kudurru links to them so that there is one name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kudurru import __version__

ROOT = Path(__file__).parents[2]
LAYERS = ["adapters", "domain", "entrypoints", "projections"]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_a_real_folder_with_a_relative_link(layer: str) -> None:
    link = ROOT / "src" / "kudurru" / layer
    assert not (ROOT / layer).is_symlink()
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", layer), "make the link relative: any clone has it"
    assert link.resolve() == (ROOT / layer).resolve()


def test_src_holds_links_and_the_package_itself_only() -> None:
    held = {
        path.name for path in (ROOT / "src" / "kudurru").iterdir() if path.name != "__pycache__"
    }
    assert held == {*LAYERS, "__init__.py", "__main__.py", "py.typed"}


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    lacking = [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()]
    assert lacking == [], "add an __init__.py: setuptools leaves the folder out of the wheel"


def test_no_module_imports_a_layer_by_its_bare_name() -> None:
    starts = tuple(f"{word} {layer}" for word in ("from", "import") for layer in LAYERS)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for layer in [*LAYERS, "tests"]
        for path in (ROOT / layer).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.strip().startswith(starts) and line.split()[1].split(".")[0] in LAYERS
    ]
    assert found == [], "import from kudurru.…: under a second name every class exists twice"


def test_with_a_safe_path_the_bare_name_cannot_be_imported() -> None:
    environ = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT / "src")}
    names = ["kudurru", "domain"]
    code = f"import importlib.util as u; print([u.find_spec(n) is not None for n in {names}])"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environ,
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == "[True, False]"


def test_the_chart_is_of_the_version_of_the_program() -> None:
    chart = yaml.safe_load((ROOT / "deploy/chart/kudurru/Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
