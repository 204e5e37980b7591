"""The unit of systemd: systemd finds no fault in it, and it is as narrow as it says."""

import subprocess
from pathlib import Path

import pytest

from tests.blackbox.program import command
from tests.real_servers import need

UNIT = Path(__file__).parents[2] / "deploy/systemd/kudurru.service"
EXPOSURE_MAX = "25"
"""Of a hundred; a unit that protects nothing has 96."""

pytestmark = pytest.mark.slow


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """With a program that is there."""
    program = tmp_path / "kudurru"
    program.touch(0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/kudurru/bin/kudurru", str(program)))
    return copy


def analyze(*args: str | Path) -> None:
    done = subprocess.run(
        [need("systemd-analyze"), *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert UNIT.name not in done.stderr, done.stderr  # a key that it does not know is a line only


def test_systemd_finds_no_fault_in_the_unit(unit: Path) -> None:
    analyze("verify", "--man=no", unit)


def test_the_unit_exposes_little(unit: Path) -> None:
    analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", "--no-pager", unit)


def test_the_unit_starts_the_server_and_gives_it_the_time_to_end_that_it_may_take() -> None:
    found = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line)
    assert found["TimeoutStopSec"] == "70s"  # health.lameduck and a minute
    assert found["StartLimitIntervalSec"] == "0"  # never given up, whatever it waits for
    program, *arguments = found["ExecStart"].split()
    assert Path(program).name == "kudurru"
    assert command(*arguments, "--help").code == 0  # options that there are
