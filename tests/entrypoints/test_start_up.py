"""What a command loads before it does anything: it is what a person waits for each time."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from kudurru.entrypoints.cli.main import main
sys.stdout = sys.stderr
main(sys.argv[1:])
print(*sys.modules, file=sys.__stdout__)
"""
HEAVY = ("asyncio", "typer", "pydantic", "rich", "yaml", "sqlite3", "eventsourcing", "dns")
OURS = ("kudurru.projections", "kudurru.entrypoints.directory", "kudurru.entrypoints.wiring")
OF_A_SERVER = (
    *("kudurru.projections.pipeline.pipeline", "kudurru.entrypoints.server", "h11", "httptools"),
    *("kudurru.entrypoints.rest", "uvicorn", "litestar", "kubernetes", "http.client", "h2"),
)


def loaded_by(*args: str) -> set[str]:
    """Names of modules that are loaded when a command is done."""
    found = subprocess.run(
        [sys.executable, "-c", CODE, *args],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    return set(found.stdout.split())


@pytest.mark.parametrize("args", [("version",), ("--help",), ("--version",)])
def test_what_needs_no_log_loads_no_part_of_a_node(args: tuple[str, ...]) -> None:
    loaded = loaded_by(*args)
    assert "kudurru.entrypoints.cli.main" in loaded
    assert not loaded.intersection((*HEAVY, *OURS, *OF_A_SERVER))


@pytest.mark.parametrize("command", ["get zone", "history"])
def test_a_command_that_reads_a_log_loads_no_server(command: str, tmp_path: Path) -> None:
    loaded = loaded_by(*command.split(), "--data", str(tmp_path))
    assert "kudurru.entrypoints.directory" in loaded
    assert not loaded.intersection(OF_A_SERVER)
