"""Helm itself refuses values that nobody knows, before it asks a cluster for anything."""

from pathlib import Path
from typing import Any

import pytest

from kudurru.domain.settings import KEYS
from kudurru.domain.settings_docs import key_schema
from tests.kube.test_chart import CHART, program, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

__all__ = ["program"]  # a fixture

OF_THE_CHART = ("externalDNS.", "follow.", "kubernetes.", "store")
"""Keys that the chart sets from values of its own, and checks by hand."""


def test_helm_takes_every_setting(program: Path, tmp_path: Path) -> None:
    config = {
        path: key_schema(key)["default"]
        for path, key in KEYS.items()
        if not path.startswith(OF_THE_CHART)
    }
    done = run(program, "template", "k", str(CHART), values={"config": config}, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"config": {"cache": {"maxEntrys": 5}}}, "maxEntrys"),
        ({"config": {"cache.maxEntrys": 5}}, "cache.maxEntrys"),
        ({"config": {"log": {"level": "loud"}}}, "level"),
        ({"zones": {"home": {"zonename": "home.example"}}}, "zonename"),
        ({"blocklists": {"ads": {"sources": [{"uri": "https://lists.example/a"}]}}}, "uri"),
    ],
)
def test_helm_refuses_a_key_that_is_misspelt(
    program: Path, tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    done = run(program, "template", "k", str(CHART), values=values, folder=tmp_path)
    assert done.returncode != 0
    assert said in done.stderr
