"""From master files to objects, and back to a master file that says the same."""

import re
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.domain import zone_export
from kudurru.domain.dns import master_file, names, records
from kudurru.domain.dns.master_file import Record
from kudurru.domain.dns.names import Name, from_text
from kudurru.domain.dns.record_types import SOA, type_from_text
from kudurru.domain.dns.soa import Soa
from kudurru.domain.errors import Invalid
from kudurru.domain.kinds.meta import is_dns_subdomain
from kudurru.domain.kinds.recordset import DNSRecordSetSpec
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.kinds.zone import DNSZoneSpec, Transfer
from kudurru.domain.zone_import import (
    OBJECT_NAME_MAX,
    Present,
    group_by_owner,
    manifests,
    may_share_names,
    record_set_name,
    zone_object_name,
)
from tests.nodes import a_change, memory_node
from tests.objects import manifest, parse, put

APEX = from_text("example.org.")
ZONE_SOA = Soa(
    mname=from_text("ns.example.org."),
    rname=from_text("host.example.org."),
    refresh=7200,
    retry=900,
    expire=1209600,
    minimum=300,
    ttl=300,
)

Row = tuple[str, str, int, str]  # owner, type, TTL, data


def wire(row: Row, origin: Name = APEX) -> tuple[Name, int, int, bytes]:
    owner, rtype, ttl, text = row
    number = type_from_text(rtype)
    return from_text(owner, origin), number, ttl, records.rdata_from_text(number, text, origin)


def objects(*rows: Row, apex: Name = APEX, soa_ttl: int = 300, **how: Any) -> list[Manifest]:
    owners = group_by_owner(wire(row, apex) for row in rows)
    how.setdefault("namespace", "default")
    return manifests(owners, apex, soa=(soa_ttl, ZONE_SOA), **how)


def zone_spec(found: list[Manifest]) -> DNSZoneSpec:
    spec = found[0].spec
    assert isinstance(spec, DNSZoneSpec)
    return spec


def endpoints(found: Manifest) -> list[tuple[str, str, list[str], int | None]]:
    assert isinstance(found.spec, DNSRecordSetSpec)
    return [(e.dns_name, e.record_type, e.targets, e.record_ttl) for e in found.spec.endpoints]


# Names of objects


def hashed(stem: str, owner: str) -> str:
    wire_form = names.key(from_text(owner))
    return f"{stem}-{sha256(wire_form).hexdigest()[:10]}"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("www.example.org.", "www.example.org"),
        ("WWW.Example.ORG.", "www.example.org"),
        ("a.b.example.org.", "a.b.example.org"),
        ("example.org.", "apex.example.org"),
        ("*.example.org.", "wildcard.example.org"),
        ("*.a.example.org.", "wildcard.a.example.org"),
        ("apex.example.org.", hashed("apex.example.org", "apex.example.org.")),
        ("wildcard.example.org.", hashed("wildcard.example.org", "wildcard.example.org.")),
        ("wildcard.a.example.org.", hashed("wildcard.a.example.org", "wildcard.a.example.org.")),
        ("a.apex.example.org.", "a.apex.example.org"),
        ("_dmarc.example.org.", hashed("dmarc.example.org", "_dmarc.example.org.")),
        ("_sip._tcp.example.org.", hashed("sip.tcp.example.org", "_sip._tcp.example.org.")),
        ("a_b.example.org.", hashed("a-b.example.org", "a_b.example.org.")),
        ("a-.example.org.", hashed("a.example.org", "a-.example.org.")),
        ("_.example.org.", hashed("x.example.org", "_.example.org.")),
        (r"a\.b.example.org.", hashed("a-.b.example.org", r"a\.b.example.org.")),
        ("a.*.example.org.", hashed("a.x.example.org", "a.*.example.org.")),
        (r"\255.example.org.", hashed("255.example.org", r"\255.example.org.")),
    ],
)
def test_a_record_set_is_named_like_its_owner(owner: str, name: str) -> None:
    found = record_set_name(from_text(owner), APEX, "example.org")
    if "\\." in owner:  # how an escaped dot is spelled does not matter, only that it is marked
        assert found.endswith(name[-11:])
        assert is_dns_subdomain(found)
    else:
        assert found == name


def test_a_name_of_two_hundred_characters_is_kept_and_a_longer_one_is_cut() -> None:
    longest = ".".join(["a" * 60] * 3) + "." + "a" * 5
    owner = from_text(f"{longest}.example.org.")
    assert len(record_set_name(owner, APEX, "example.org")) == OBJECT_NAME_MAX
    longer = from_text(f"{longest}a.example.org.")
    cut = record_set_name(longer, APEX, "example.org")
    assert len(cut) <= OBJECT_NAME_MAX
    assert is_dns_subdomain(cut)
    assert cut.endswith(sha256(names.key(longer)).hexdigest()[:10])


labels = st.binary(min_size=1, max_size=63) | st.sampled_from(
    [b"*", b"apex", b"wildcard", b"APEX", b"a.b", b"a-b", b"a_b", b"_", b"-", b"x"]
)


def _owner(parts: list[bytes]) -> Name | None:
    try:
        return names.from_labels([*parts, b"example", b"org"])
    except names.BadName:
        return None


owners = st.lists(labels, max_size=4).map(_owner).filter(lambda owner: owner is not None)


@given(owners)
def test_every_owner_has_a_name_that_an_object_may_have(owner: Name) -> None:
    found = record_set_name(owner, APEX, "example.org")
    assert is_dns_subdomain(found)
    assert len(found) <= OBJECT_NAME_MAX


@given(st.lists(owners, min_size=2, max_size=6, unique_by=names.key))
def test_two_owners_never_share_a_name(several: list[Name]) -> None:
    found = [record_set_name(owner, APEX, "example.org") for owner in several]
    assert len(set(found)) == len(found)


@given(owners)
def test_letter_case_of_an_owner_does_not_change_its_name(owner: Name) -> None:
    upper = Name(owner.upper())  # length octets are below "a" and stay
    assert record_set_name(upper, APEX, "example.org") == record_set_name(
        names.key(owner), APEX, "example.org"
    )


@pytest.mark.parametrize(
    ("apex", "name"),
    [
        ("Example.ORG.", "example.org"),
        (".", "root"),
        ("2.0.192.in-addr.arpa.", "2.0.192.in-addr.arpa"),
        ("0/25.2.0.192.in-addr.arpa.",
         hashed("0-25.2.0.192.in-addr.arpa", "0/25.2.0.192.in-addr.arpa.")),
    ],
)  # fmt: skip
def test_a_zone_is_named_without_the_final_dot(apex: str, name: str) -> None:
    assert zone_object_name(from_text(apex)) == name


def test_letter_case_of_a_zone_does_not_change_its_name() -> None:
    assert zone_object_name(from_text("A_B.example.")) == zone_object_name(
        from_text("a_b.example.")
    )


# Objects


def test_a_zone_becomes_one_dnszone_and_one_record_set_per_owner() -> None:
    found = objects(
        ("@", "NS", 300, "ns"),
        ("ns", "A", 300, "192.0.2.1"),
        ("www", "A", 300, "192.0.2.2"),
        ("www", "AAAA", 300, "2001:db8::2"),
    )
    assert [(m.kind.name, m.meta.namespace, m.meta.name) for m in found] == [
        ("DNSZone", "", "example.org"),
        ("DNSRecordSet", "default", "ns.example.org"),
        ("DNSRecordSet", "default", "www.example.org"),
    ]
    assert zone_spec(found).nameservers == ["ns.example.org."]
    assert endpoints(found[2]) == [
        ("www.example.org.", "A", ["192.0.2.2"], None),
        ("www.example.org.", "AAAA", ["2001:db8::2"], None),
    ]


def test_soa_and_apex_ns_are_fields_of_the_zone_and_other_apex_data_is_a_record_set() -> None:
    found = objects(("@", "NS", 300, "ns"), ("@", "MX", 300, "0 ."), ("sub", "NS", 300, "ns.sub"))
    assert [m.meta.name for m in found[1:]] == ["apex.example.org", "sub.example.org"]
    assert endpoints(found[1]) == [("example.org.", "MX", ["0 ."], None)]
    assert zone_spec(found).soa.rname == "host.example.org."


def test_a_manifest_from_a_file_is_one_that_a_person_could_apply() -> None:
    rows: list[Row] = [
        ("@", "NS", 300, "ns"),
        ("*", "TXT", 60, '"a" "b"'),
        ("_x", "A", 1, "192.0.2.1"),
    ]
    for found in objects(*rows):
        document = {
            "apiVersion": "kudurru.io/v1alpha1",
            "kind": found.kind.name,
            "metadata": msgspec.to_builtins(found.meta),
            "spec": msgspec.to_builtins(found.spec),
        }
        assert parse(document) == found


def test_the_usual_ttl_becomes_that_of_the_zone_and_others_are_written_out() -> None:
    found = objects(
        ("@", "NS", 60, "ns"), ("a", "A", 3600, "192.0.2.1"), ("b", "A", 3600, "192.0.2.1"),
        ("c", "A", 0, "192.0.2.1"), soa_ttl=900,
    )  # fmt: skip
    spec = zone_spec(found)
    assert (spec.default_ttl, spec.soa.ttl, spec.nameserver_ttl) == (3600, 900, 60)
    assert [endpoints(m)[0][3] for m in found[1:]] == [None, None, 0]


def test_the_smallest_ttl_of_an_rrset_counts_and_duplicates_go() -> None:
    found = objects(
        ("a", "MX", 300, "10 MX.example.org."), ("A", "MX", 60, "10 mx.example.org."),
        ("a", "MX", 900, "20 mx.example.org."), ("b", "A", 300, "192.0.2.1"),
        ("c", "A", 300, "192.0.2.1"),
    )  # fmt: skip
    assert endpoints(found[1]) == [
        ("a.example.org.", "MX", ["10 MX.example.org.", "20 mx.example.org."], 60)
    ]


ROWS: list[Row] = [
    ("@", "NS", 300, "ns1"), ("@", "NS", 300, "ns2"), ("@", "MX", 60, "10 a"),
    ("@", "MX", 60, "5 b"), ("a", "A", 60, "192.0.2.2"), ("a", "A", 60, "192.0.2.1"),
    ("a", "TXT", 300, '"x"'), ("b", "AAAA", 300, "2001:db8::1"),
]  # fmt: skip


@given(st.permutations(ROWS))
def test_the_order_of_the_file_makes_no_other_objects(rows: list[Row]) -> None:
    def by_name(found: list[Manifest]) -> dict[str, Manifest]:
        return {m.key: m for m in found}

    assert by_name(objects(*rows)) == by_name(objects(*ROWS))


def test_an_rrset_larger_than_one_endpoint_is_split_and_served_as_one() -> None:
    found = objects(*(("many", "A", 300, f"10.0.{i // 256}.{i % 256}") for i in range(600)))
    assert [len(targets) for _, _, targets, _ in endpoints(found[1])] == [256, 256, 88]
    node = memory_node()
    node.commit(a_change(*map(put, found)))
    assert node.zones.problems(found[1].key) == []
    (zone,) = node.zones.served
    assert zone.record_count == 600


def test_an_owner_with_more_than_an_object_holds_is_refused_by_name() -> None:
    rows = (("many", "TXT", 300, f'"{i:05d}{"x" * 240}"') for i in range(5000))
    with pytest.raises(Invalid, match=r"DNSRecordSet default/many.example.org: .*at most 1048576"):
        objects(*rows)


def test_more_name_servers_than_a_zone_may_have_are_refused() -> None:
    rows = (("@", "NS", 300, f"ns{i}") for i in range(33))
    with pytest.raises(Invalid, match=r"33 entries; at most 32"):
        objects(*rows)


# Importing again


def test_importing_the_same_again_changes_nothing() -> None:
    node = memory_node()
    first = objects(*ROWS)
    node.commit(a_change(*map(put, first)))
    head = node.log.head()
    again = objects(*reversed(ROWS), present=Present(first[0]))
    assert {o.verb for o in node.commit(a_change(*map(put, again))).outcomes} == {"unchanged"}
    assert node.log.head() == head


def test_importing_again_changes_only_what_differs() -> None:
    node = memory_node()
    first = objects(*ROWS)
    node.commit(a_change(*map(put, first)))
    # Enough records of another TTL that it is the usual one now: the zone keeps its own.
    added = [(f"n{i}", "A", 60, "192.0.2.9") for i in range(20)]
    again = objects(*ROWS, *added, present=Present(first[0]))
    verbs = [o.verb for o in node.commit(a_change(*map(put, again))).outcomes]
    assert verbs == ["unchanged"] * len(first) + ["created"] * 20


def test_a_zone_is_named_as_people_write_it() -> None:
    assert zone_spec(objects(*ROWS)).zone_name == "example.org"


def test_a_zone_that_is_there_keeps_its_name_and_what_a_file_does_not_say() -> None:
    there = manifest(
        "DNSZone",
        "mine",
        {"zoneName": "Example.org", "transfer": {"allow": ["::/0"]}, "defaultTTL": 77,
         "allowedNamespaces": ["default"], "soa": {"minimum": 1}, "nameservers": ["old."]},
        labels={"team": "dns"}, annotations={"kudurru.io/comment": "why"},
    )  # fmt: skip
    found = objects(("@", "NS", 77, "ns"), ("a", "A", 300, "192.0.2.1"), present=Present(there))
    spec = zone_spec(found)
    assert found[0].meta == there.meta
    assert spec.zone_name == "Example.org"
    assert spec.transfer == Transfer(allow=["::/0"])
    assert spec.allowed_namespaces == ["default"]
    assert (spec.default_ttl, spec.nameservers, spec.nameserver_ttl) == (
        77,
        ["ns.example.org."],
        None,
    )
    assert (spec.soa.minimum, spec.soa.ttl) == (300, 300)
    assert found[1].meta.name == "a.mine"
    assert endpoints(found[1])[0][3] == 300


def test_records_are_not_imported_into_a_zone_that_is_forwarded() -> None:
    there = manifest(
        "DNSZone",
        "example.org",
        {"zoneName": "example.org", "type": "Forward", "forward": {"upstreams": ["udp://::1"]}},
    )
    with pytest.raises(Invalid, match=r"the zone is Forward; records are imported into a Primary"):
        objects(("@", "NS", 300, "ns"), present=Present(there))


# Zones above and below each other


@pytest.mark.parametrize(
    ("zone", "other", "may"),
    [
        ("example.org", "sub.example.org", True),
        ("sub.example.org", "example.org", True),
        ("example.org", "example.org", True),
        ("example.org", "notexample.org", False),
        ("example.org", "example.net", False),
    ],
)
def test_only_zones_above_and_below_share_names(zone: str, other: str, may: bool) -> None:
    assert may_share_names(zone, other) is may


def test_a_zone_and_the_one_below_it_do_not_take_each_others_record_sets() -> None:
    """The glue of the parent and the data of the child have one owner name, and two objects."""
    node = memory_node()
    parent = objects(("sub", "NS", 300, "ns.sub"), ("ns.sub", "A", 300, "192.0.2.1"))
    node.commit(a_change(*map(put, parent)))
    below = from_text("sub.example.org.")
    rows = [("@", "NS", 300, "ns"), ("ns", "A", 300, "192.0.2.1"), ("www", "A", 300, "192.0.2.2")]
    taken = frozenset(m.meta.name for m in parent[1:])
    child = objects(*rows, apex=below, present=Present(others=taken))
    assert not {m.key for m in parent} & {m.key for m in child}
    node.commit(a_change(*map(put, child)))
    counts = {names.to_text(zone.key): zone.record_count for zone in node.zones.served}
    assert counts == {"example.org.": 2, "sub.example.org.": 3}
    # It keeps that name, also when the one that it gave way to is gone.
    ours = frozenset(m.meta.name for m in child[1:])
    again = objects(*rows, apex=below, present=Present(child[0], ours=ours, others=taken))
    assert again == child
    alone = frozenset({"sub.example.org"})
    assert objects(*rows, apex=below, present=Present(child[0], ours=ours, others=alone)) == child


# There and back


ZONE_ROWS = {
    "A": st.sampled_from(["192.0.2.1", "192.0.2.2"]),
    "AAAA": st.sampled_from(["2001:db8::1"]),
    "MX": st.sampled_from(["10 mx", "20 MX.example.net."]),
    "TXT": st.sampled_from(['"a b" "c;d"', r'"\"\\\009"', '""']),
    "CAA": st.sampled_from(['0 issue "ca.example"']),
    "SRV": st.sampled_from(["0 5 5060 sip", "0 0 0 ."]),
    "HTTPS": st.sampled_from(["1 . alpn=h2,h3 ipv4hint=192.0.2.1"]),
    "TYPE65280": st.sampled_from([r"\# 3 ABCDEF", r"\# 0"]),
}
relative = st.sampled_from(
    ["@", "www", "WWW", "*", "*.a", "a", "apex", "wildcard", "_sip._tcp", r"x\.y", r"\000", "A_b"]
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    rtype = draw(st.sampled_from(sorted(ZONE_ROWS)))
    ttl = draw(st.sampled_from([0, 60, 300, 2**31 - 1]))
    return draw(relative), rtype, ttl, draw(ZONE_ROWS[rtype])


def meanings(found: list[Record]) -> set[tuple[Any, ...]]:
    """Records as the zone has them: duplicates gone, the smallest TTL of a set, no serial."""
    least: dict[Any, int] = {}
    for r in found:
        place = names.key(r.owner), r.rtype
        least[place] = min(r.ttl, least.get(place, r.ttl))
    return {
        (*place, least[place], records.canonical_rdata(r.rtype, r.rdata))
        for r in found
        if (place := (names.key(r.owner), r.rtype)) and r.rtype != SOA
    }


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), max_size=12), st.integers(1, 2**32 - 1))
def test_a_zone_comes_out_as_it_went_in(found: list[Row], serial: int) -> None:
    text = "".join(
        [
            "$ORIGIN example.org.\n",
            f"@ 900 IN SOA ns host {serial} 7200 900 1209600 300\n@ 300 IN NS ns\n",
            *(f"{owner} {ttl} IN {rtype} {data}\n" for owner, rtype, ttl, data in found),
        ]
    )
    read = master_file.read(text, file="in")
    grouped = group_by_owner((r.owner, r.rtype, r.ttl, r.rdata) for r in read.records)
    soa = msgspec.structs.replace(ZONE_SOA, ttl=900)
    imported = manifests(grouped, APEX, soa=(900, soa), namespace="default")
    node = memory_node()
    change = a_change(*map(put, imported), imported_serials={"example.org": serial})
    node.commit(change)
    (zone,) = node.zones.served
    lines = "".join(zone_export.lines(zone))
    back = master_file.read(lines, file="out")
    assert meanings(back.records) == meanings(read.records)
    (stated,) = [r for r in back.records if r.rtype == SOA]
    assert (stated.ttl, stated.rdata) == (900, soa.rdata(serial))
    assert re.match(r"\$ORIGIN example\.org\.\n@ 900 IN SOA ", lines)
    # What came out makes the objects that are there.
    again = group_by_owner((r.owner, r.rtype, r.ttl, r.rdata) for r in back.records)
    same = manifests(again, APEX, soa=(900, soa), namespace="default", present=Present(imported[0]))
    outcomes = node.commit(a_change(*map(put, same))).outcomes
    assert {outcome.verb for outcome in outcomes} == {"unchanged"}
