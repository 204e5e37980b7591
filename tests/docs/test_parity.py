"""The page of parity names tests that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [line for line in (ROOT / "docs/parity.md").read_text().splitlines() if line[:3] == "| P"]
NAMED = sorted({found for row in ROWS for found in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)})


def test_every_row_has_its_five_cells_and_an_id_of_its_own() -> None:
    ids = [row.split(" ")[1] for row in ROWS]
    assert len(set(ids)) == len(ids)
    assert [row for row in ROWS if len(re.split(r"(?<!\\) \| ", row.strip("| "))) != 5] == []


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_a_test_that_a_row_names_is_there(path: str) -> None:
    text = (ROOT / path).read_text()
    wanted = [name for named, name in NAMED if named == path]
    there = set(re.findall(r"^(?:async )?(?:def |class )?(\w+)", text, re.MULTILINE))
    assert [name for name in wanted if name not in there] == []
