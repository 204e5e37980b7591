"""Helm itself refuses values that nobody knows, before it asks a cluster for anything."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kudurru.domain.settings import KEYS, SECTIONS
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


DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
WANTED = {
    *("replicas", "image", "kubernetes", "store", "follow", "tls", "listen", "service"),
    *("externalDNS", "persistence", "lameduck", "terminationGracePeriodSeconds"),
    *("serviceAccount", "rbac", "podDisruptionBudget", "networkPolicy", "serviceMonitor"),
    "prometheusRule",
}


def test_a_value_that_is_named_and_not_given_is_wanted_in_words_all_at_once(
    program: Path, tmp_path: Path
) -> None:
    """Helm takes its default away, and the schema does not see it."""
    below = {"service": {"dns": None, "http": {"port": None}}, "persistence": {"size": None}}
    cases = [
        (dict.fromkeys(DEFAULTS), WANTED),
        (below, {"service.dns", "service.http.port", "persistence.size"}),
    ]
    for values, wanted in cases:
        done = run(program, "template", "k", str(CHART), values=values, folder=tmp_path)
        assert done.returncode != 0
        assert set(re.findall(r"^([\w.]+): nothing is given", done.stderr, re.M)) == wanted


def test_what_may_be_empty_may_be_named_and_not_given(program: Path, tmp_path: Path) -> None:
    empty = dict.fromkeys(DEFAULTS.keys() - WANTED)
    sections = {"config": dict.fromkeys(path.partition(".")[0] for path in SECTIONS)}
    del sections["config"]["listeners"]  # a list as well, and wants one
    for values in (empty, sections, {"tls": {"secretName": None}, "rbac": {"features": None}}):
        done = run(program, "template", "k", str(CHART), values=values, folder=tmp_path)
        assert done.returncode == 0, done.stderr
