"""What the chart says of its values before anything reaches a cluster."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from kudurru.domain.documents import read_documents
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.settings import KEYS, SECTIONS
from kudurru.domain.settings_docs import key_schema
from kudurru.domain.settings_layers import given_by_document, resolve

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "deploy/chart/kudurru/values.schema.json"
CHECK = jsonschema_rs.Draft7Validator(json.loads(SCHEMA.read_text()))
TOPS = {path.partition(".")[0] for path in KEYS}


def faults(**values: Any) -> list[str]:
    return [error.message for error in CHECK.iter_errors(values)]


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def settings_in_the_guides() -> Iterator[Any]:
    for page in sorted((ROOT / "docs").glob("*.md")):
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.S | re.M):
            for found in yaml.safe_load_all(block):
                if isinstance(found, dict) and found.keys() & TOPS:
                    yield pytest.param(found, id=f"{page.name}-{next(iter(found))}")


def test_the_values_of_the_chart_are_as_its_schema_says() -> None:
    assert not faults(**yaml.safe_load((SCHEMA.parent / "values.yaml").read_text()))


@pytest.mark.parametrize("path", KEYS)
def test_every_setting_is_taken_and_one_letter_more_is_not(path: str) -> None:
    value = key_schema(KEYS[path])["default"]
    assert not faults(config={path: value})
    assert not faults(config=nested(path, value))
    assert faults(config={f"{path}x": value})
    assert faults(config=nested(f"{path}x", value))


def mixtures(path: str, value: Any) -> Iterator[Any]:
    """A key in every mixture of nested and flat."""
    parts = path.split(".")
    for cuts in itertools.product(".:", repeat=len(parts) - 1):
        mixed = parts[0] + "".join(map("".join, zip(cuts, parts[1:], strict=True)))
        found = value
        for name in reversed(mixed.split(":")):
            found = {name: found}
        yield found


def is_taken_by_the_program(config: Any) -> bool:
    read: list[Cause] = []
    (document,) = read_documents(yaml.safe_dump(config).encode(), what="node.yaml")
    try:
        resolve(given_by_document(document, "node file", read), read)
    except Invalid:
        return False
    return True


@pytest.mark.parametrize("path", sorted(SECTIONS | KEYS.keys()))
def test_what_is_nested_here_and_flat_there_is_taken_where_the_program_takes_it(path: str) -> None:
    """With its default, with nothing, and a section with what none is."""
    values = [key_schema(KEYS[path])["default"] if path in KEYS else {}, None]
    if path in SECTIONS:
        values.append("no section")
    if path in KEYS and KEYS[path].is_map:
        values += [{"24": 100}, {"home.arpa": ["192.0.2.1"]}, {"24": None}]
    for value in values:
        for config in mixtures(path, value):
            assert (not faults(config=config)) is is_taken_by_the_program(config), config


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("upstreams.groups.default", ["192.0.2.1"]),
        ("upstreams.groups.default", "192.0.2.1"),
        ("upstreams.conditional.home", ["192.0.2.1"]),
        ("ratelimit.ipv4.24", 100),
        ("ratelimit.ipv4.24", "many"),
        ("ratelimit.ipv5.24", 100),
    ],
)
def test_entries_of_maps_are_taken_nested_here_and_flat_there(path: str, value: Any) -> None:
    for config in mixtures(path, value):
        assert (not faults(config=config)) is is_taken_by_the_program(config), config


@pytest.mark.parametrize("settings", [*settings_in_the_guides()])
def test_settings_that_a_guide_shows_are_taken(settings: Any) -> None:
    assert not faults(config=settings)


@pytest.mark.parametrize(
    "text",
    [
        "listeners: [{proto: udp, address: '[::]:53', proxyProtocol: [192.0.2.0/24]}]",
        "listeners: {sockets: 4}",
        "listeners.sockets: 4",
        "ratelimit.ipv4.24: 100",
        "ratelimit: {ipv4: {32: 100}}",
        "upstreams.groups.default: [192.0.2.1]",
        "upstreams: {conditional: {home.arpa: [192.0.2.1]}}",
        "cache: {maxBytes: 64MiB}",
        "cache.maxBytes: 1048576",
        "audit: {retention: 2w}",
        "audit.retention: 1h30m",
        "audit.retention: 0",
        "audit: {retention: '0'}",
        "tls: {cert: 'file:/a', key: /b}",
        "listeners: {internal: off}",
    ],
)
def test_values_of_settings_are_taken_as_the_program_takes_them(text: str) -> None:
    read: list[Cause] = []
    (document,) = read_documents(text.encode(), what="node.yaml")
    given = given_by_document(document, "node file", read)
    resolve(given, read)
    assert not faults(config=document.value)


@pytest.mark.parametrize(
    "config",
    [
        {"cache": {"maxEntries": "many"}},
        {"cache.maxEntries": -1},
        {"log": {"level": "loud"}},
        {"upstreams": {"groups": {"default": "192.0.2.1"}}},
        {"listeners": [{"proto": "udp"}]},
        {"audit": {"retention": 400}},
        {"nodes": {}},
    ],
)
def test_a_setting_that_is_none_is_refused(config: dict[str, Any]) -> None:
    assert faults(config=config)


@pytest.mark.parametrize(
    ("kind", "spec", "is_right"),
    [
        ("zones", {"zoneName": "home.example"}, True),
        ("zones", {"zoneName": "home.example", "defaultTTL": 300}, True),
        ("zones", {"zonename": "home.example"}, False),
        ("zones", {}, False),
        ("zones", {"zoneName": "home.example", "groups": [{"nane": "@"}]}, False),
        ("blocklists", {"sources": [{"url": "https://lists.example/a"}], "format": "hosts"}, True),
        ("blocklists", {"sources": [{"uri": "https://lists.example/a"}]}, False),
        ("blocklists", {"sources": []}, False),
    ],
)
def test_objects_of_a_release_are_checked_before_the_api_server_sees_them(
    kind: str, spec: dict[str, Any], is_right: bool
) -> None:
    assert bool(faults(**{kind: {"one": spec}})) is not is_right
