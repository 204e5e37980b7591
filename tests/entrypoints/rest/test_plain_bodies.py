"""The short way to read an object: what it takes is what the long way makes of it, or it is not
taken."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.errors import Invalid
from kudurru.domain.kinds.registry import DNS_RECORD_SET, KINDS
from kudurru.domain.kinds.validation import (
    PLAIN_BYTES_MAX,
    Manifest,
    parse_manifest,
    plain_manifest,
)
from kudurru.entrypoints.rest.calls import read_json
from tests.objects import Document, document, endpoint

SPEC = {
    "zoneRef": {"name": "example.org"},
    "endpoints": [endpoint("www.example.org", "A", "192.0.2.1")],
}
WWW = document("DNSRecordSet", "www", SPEC, namespace="default")


def short(octets: bytes) -> Manifest | None:
    return plain_manifest(octets, DNS_RECORD_SET, "default", "www")


def at_length(octets: bytes) -> Manifest | None:
    """None where it is refused, or about something else."""
    try:
        found = parse_manifest(read_json(octets), what="test", default_namespace="default")
    except Invalid:
        return None
    return found if found.key == "DNSRecordSet/default/www" else None


def test_a_plain_object_is_read_the_short_way_however_it_is_spaced() -> None:
    labelled = document("DNSRecordSet", "www", SPEC, namespace="default", labels={"team": "blue"})
    for octets in (json.dumps(labelled), json.dumps(labelled, indent=4)):
        found = short(octets.encode())
        assert found is not None
        assert found == at_length(octets.encode())


OTHERS = (
    ("", document("DNSZone", "example.org", {"zoneName": "example.org", "defaultTTL": 60})),
    (
        "default",
        document("Policy", "all", {"priority": 7, "deny": ["ads.example"]}, namespace="default"),
    ),
    (
        "default",
        document(
            "BlockList",
            "ads",
            {"sources": [{"url": "https://lists.example/ads"}], "maxBytes": 7},
            namespace="default",
        ),
    ),
)


SMALLEST = document("DNSZone", "z", {"zoneName": "z"})
IDS = [one["kind"] for _, one in OTHERS]


@pytest.mark.parametrize(("namespace", "wanted"), OTHERS, ids=IDS)
def test_other_kinds_are_read_the_same_both_ways(namespace: str, wanted: Document) -> None:
    octets = json.dumps(wanted).encode()
    found = plain_manifest(octets, KINDS[wanted["kind"]], namespace, wanted["metadata"]["name"])
    assert found == parse_manifest(wanted, what="test", default_namespace="default")


UNPLACED = json.dumps({**WWW, "metadata": {"name": "www"}})


def doubled(value: Any) -> Iterator[str]:
    """The JSON of a document with one of its keys given twice, for each of them."""
    if isinstance(value, dict):
        written = {key: f"{json.dumps(key)}:{json.dumps(part)}" for key, part in value.items()}
        for key, part in value.items():
            yield "{" + ",".join([written[key], *written.values()]) + "}"
            for inner in doubled(part):
                yield "{" + ",".join((written | {key: f"{json.dumps(key)}:{inner}"}).values()) + "}"
    elif isinstance(value, list):
        written_items = [json.dumps(part) for part in value]
        for i, part in enumerate(value):
            for inner in doubled(part):
                yield "[" + ",".join([*written_items[:i], inner, *written_items[i + 1 :]]) + "]"


@pytest.mark.parametrize(
    ("namespace", "wanted"),
    [("default", WWW), ("", SMALLEST), *OTHERS],
    ids=["DNSRecordSet", "the smallest", *IDS],
)
def test_no_key_of_any_kind_may_be_there_twice(namespace: str, wanted: Document) -> None:
    kind, name = KINDS[wanted["kind"]], wanted["metadata"]["name"]
    assert plain_manifest(json.dumps(wanted).encode(), kind, namespace, name) is not None
    found = list(doubled(wanted))
    assert len(found) >= 6
    for octets in found:
        assert plain_manifest(octets.encode(), kind, namespace, name) is None, octets


def text(*changes: tuple[str, str]) -> bytes:
    found = json.dumps(WWW)
    for before, after in changes:
        assert before in found
        found = found.replace(before, after, 1)
    return found.encode()


def with_field(field: str) -> bytes:
    return text(('"recordType"', f'{field}, "recordType"'))


FAULTS = {
    "a kind twice": text(('"kind"', '"kind": "DNSZone", "kind"')),
    "a name twice": text(('"name": "www"', '"name": "www", "name": "www"')),
    "a field of an endpoint twice": with_field('"recordTTL": 5, "recordTTL": 6'),
    "a label twice": text(('"name": "www"', '"name": "www", "labels": {"a": "b", "a": "c"}')),
    "a key twice with a default": with_field('"disabled": true, "disabled": false'),
    "an escape": text(("192.0.2.1", "192.0.2\\u002e1")),
    "a fraction": with_field('"recordTTL": 300.0'),
    "an exponent": with_field('"recordTTL": 3e2'),
    "a status": text(('"spec"', '"status": {}, "spec"')),
    "an unknown field": text(('"spec"', '"colour": "red", "spec"')),
    "an unknown field within": with_field('"ttl": 5'),
    "a record that is none": text(("192.0.2.1", "192.0.2.256")),
    "a label that is none": text(('"name": "www"', '"name": "www", "labels": {"a b": ""}')),
    "another name": text(('"name": "www"', '"name": "web"')),
    "another namespace": text(("default", "other")),
    "another kind": text(("DNSRecordSet", "DNSZone")),
    "another version": text(("v1alpha1", "v1")),
    "half a surrogate pair": text(("192.0.2.1", "\\ud800")),
    "octets that are no UTF-8": text().replace(b"192.0.2.1", b"\xff"),
    "more after it": text() + b"{}",
    "nothing": b"",
    "a list": b"[]",
    "too large": text(("{", "{" + " " * PLAIN_BYTES_MAX)),
}  # fmt: skip


@pytest.mark.parametrize("octets", FAULTS.values(), ids=FAULTS)
def test_what_needs_a_closer_look_is_not_taken(octets: bytes) -> None:
    assert short(octets) is None


def test_a_namespace_that_is_left_to_the_path_is_that_of_the_path() -> None:
    octets = json.dumps({**WWW, "metadata": {"name": "www"}}).encode()
    assert short(octets) == at_length(octets) == short(json.dumps(WWW).encode())
    elsewhere = plain_manifest(octets, DNS_RECORD_SET, "other", "www")
    assert elsewhere is not None
    assert elsewhere.key == "DNSRecordSet/other/www"


def test_what_else_a_request_leaves_to_its_path_is_read_at_length() -> None:
    for left_out in ("kind", "apiVersion", "metadata"):
        unsaid = {name: part for name, part in WWW.items() if name != left_out}
        assert short(json.dumps(unsaid).encode()) is None
    for metadata in ({"namespace": "default"}, {"name": "www", "namespace": ""}):
        assert short(json.dumps({**WWW, "metadata": metadata}).encode()) is None


KEYS = (
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    "name",
    "labels",
    "zoneRef",
    "endpoints",
    "dnsName",
)
SCRAPS = [*(f'"{key}"' for key in KEYS), ",", ":", "{", "}", "[", "]", "1", "0", ".", "e", "-", " "]


CUTS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 12), st.sampled_from(SCRAPS)), max_size=4
)


@given(st.sampled_from((text().decode(), UNPLACED)), CUTS)
def test_the_short_way_and_the_long_way_agree(
    octets: str, cuts: list[tuple[int, int, str]]
) -> None:
    for at, size, put in cuts:
        octets = octets[:at] + put + octets[at + size :]
    found = short(octets.encode())
    assert found is None or found == at_length(octets.encode())
