import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.saying import Say

DIFFERS = tomllib.loads((Path(__file__).parent / "differs.toml").read_text())


@pytest.fixture
def report(say: Say) -> Callable[[str, dict[str, list[str]]], None]:
    """Prints how many cases of a suite hold, and fails with those that do not."""

    def check(suite: str, results: dict[str, list[str]]) -> None:
        differs = DIFFERS.get(suite, {})
        bad = {case: found for case, found in results.items() if found and case not in differs}
        healed = [case for case in differs if case in results and not results[case]]
        good = sum(not found for found in results.values())
        say(f"{suite}: {good} of {len(results)}, {len(differs)} differ on purpose")
        assert results
        assert not bad, json.dumps(bad, indent=1)
        assert not healed, f"differs.toml names cases that hold: {healed}"

    return check
