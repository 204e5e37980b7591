"""Stored specs are read by any later version, whatever the rules have become."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain import codec
from kudurru.domain.kinds.registry import KINDS
from kudurru.domain.kinds.stored import read_record_set, read_zone, reader_of

SAMPLES = [
    ("DNSZone", {"zoneName": "example.org", "soa": {"refresh": 60}, "nameservers": ["ns.example"]}),
    (
        "DNSZone",
        {"zoneName": "example.org", "allowedNamespaces": ["a"], "transfer": {"notify": []}},
    ),
    (
        "DNSZone",
        {
            "zoneName": "example.org",
            "type": "Secondary",
            "secondary": {"primaries": [{"address": "192.0.2.1"}]},
        },
    ),
    (
        "DNSRecordSet",
        {
            "zoneRef": {"name": "z"},
            "endpoints": [{"dnsName": "a.", "recordType": "A", "targets": ["192.0.2.1"]}] * 2,
        },
    ),
    ("BlockList", {"sources": [{"inline": ["ads.example"]}]}),
    ("ClientGroup", {}),
    ("Policy", {}),
]


def test_what_today_allows_is_read_as_today_reads_it() -> None:
    for kind, spec in SAMPLES:
        octets = codec.canonical(spec)
        assert reader_of(KINDS[kind].spec)(octets) == msgspec.json.decode(
            octets, type=KINDS[kind].spec
        )


@given(st.sampled_from(SAMPLES), st.integers() | st.text() | st.none() | st.lists(st.booleans()))
def test_a_field_that_is_gone_is_passed_over_wherever_it_stood(sample, value) -> None:
    kind, spec = sample
    read = reader_of(KINDS[kind].spec)
    assert read(codec.canonical(with_more(spec, value))) == read(codec.canonical(spec))


def with_more(value, more):
    """A value with a field that nobody knows in each object that is part of a spec."""
    if isinstance(value, dict):
        return {"goneSince": more} | {key: with_more(item, more) for key, item in value.items()}
    if isinstance(value, list):
        return [with_more(item, more) for item in value]
    return value


@pytest.mark.parametrize("ttl", [2**31, 2**32 - 1])
def test_a_bound_that_is_tighter_today_does_not_count(ttl: int) -> None:
    zone = read_zone(codec.canonical({"zoneName": "example.org", "defaultTTL": ttl, "soa": {}}))
    assert (zone.default_ttl, zone.zone_name, zone.soa.refresh) == (ttl, "example.org", 7200)
    endpoint = {"dnsName": "www.example.org", "recordType": "A", "targets": [], "recordTTL": ttl}
    spec = read_record_set(codec.canonical({"zoneRef": {"name": "z"}, "endpoints": [endpoint]}))
    assert spec.zone_ref.name == "z"
    assert (spec.endpoints[0].targets, spec.endpoints[0].record_ttl) == ([], ttl)
