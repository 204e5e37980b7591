"""A server without Kubernetes loads nothing of it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = """
import sys
import kudurru.entrypoints.cli.main, kudurru.entrypoints.server
wrong = [name for name in sys.modules if name.split(".")[0] in ("kubernetes", "httpcore", "anyio")]
wrong += [name for name in sys.modules if name.startswith("kudurru.adapters.kubernetes")]
print(*wrong)
"""


def test_nothing_of_it_is_imported_by_a_server() -> None:
    command = [sys.executable, "-c", CODE]
    found = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT / "src")}
    )
    assert found.stdout.split() == []
