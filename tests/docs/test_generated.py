"""What is generated and committed is what the code means."""

from pathlib import Path

import pytest

from kudurru.entrypoints.schemas import generated

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(generated(ROOT)))
def test_a_generated_file_is_as_the_code_makes_it(name: str) -> None:
    path = ROOT / name
    assert path.exists(), f"{name} is missing: run `just schemas`"
    assert path.read_text() == generated(ROOT)[name], f"{name} is old: run `just schemas`"


def test_no_schema_lies_around_that_nothing_generates() -> None:
    made = {name for name in generated(ROOT) if name.startswith("schemas/")}
    found = {path for path in (ROOT / "schemas").rglob("*") if path.is_file()}
    assert {str(path.relative_to(ROOT)) for path in found} == made
