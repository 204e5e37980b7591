"""Answers that the tests of NSD have on file, made by dig, and zones of octoDNS.

The data is read from where it is and not held here.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.zone
import pytest

from kudurru.domain.dns import master_file, names
from kudurru.domain.dns.images import RRset
from kudurru.domain.dns.zone_tree import Zone
from tests.conformance.answers import ask, lines, normal, pipeline_of
from tests.vectors import vectors
from tests.zone_files import soa_value, wire, zone_from_text


class Case(NamedTuple):
    """A question to a zone of `tpkg/<test>.tdir` and the section that a file shows."""

    test: str
    zone: str
    origin: str
    name: str
    rtype: str
    section: str
    good: str
    tcp: bool = False


CASES = [
    Case("bug009_soa_alone", "zone", "miek.nl.", "miek.nl.", "SOA", "answer", "respons1"),
    Case("bug009_soa_alone", "zone", "miek.nl.", "a.miek.nl.", "A", "authority", "respons2"),
    Case("bug013_truncate", "zone", "miek.nl.", "miek.nl.", "MX", "answer", "full_answer", True),
    Case("bug034_any", "zone", "example.nl.", "example.nl.", "ANY", "authority", "respons1"),
    Case("bug052_ent", "zone", "miek.nl.", "b.miek.nl.", "A", "authority", "respons1"),
    Case("bug072_parent", "order-abc_zone", "abc.", "a.abc.", "A", "answer", "respons1"),
    Case("bug072_parent", "order-bac_zone", "bac.", "a.bac.", "A", "answer", "respons2"),
    Case(
        *("bug090_000_txt", "zone", "text-test.nl.", "txt-test1.text-test.nl.", "TXT"),
        *("answer", "respons1"),
    ),
    Case("bug103_nx_soa_ttl", "zone", "miek.nl.", "miek.nl.", "A", "answer", "respons1"),
    Case("bug103_nx_soa_ttl", "zone", "miek.nl.", "blaat.miek.nl.", "A", "authority", "respons2"),
]


def test_sections_are_as_nsd_has_them_on_file(report) -> None:
    results = {}
    for number, case in enumerate(CASES):
        folder = vectors("nsd/raw/tpkg") / f"{case.test}.tdir"
        pipeline = pipeline_of(zone_of(folder / f"{case.test}.{case.zone}", case.origin))
        answer = ask(pipeline, case.name, case.rtype, tcp=case.tcp)
        (file,) = folder.glob(f"*.known_good_*{case.good}")
        want = {normal(line) for line in shown(file)}
        got = set(lines(getattr(answer, case.section)))
        results[f"{case.test}-{number}"] = [] if want == got else [f"{got}, want {want}"]
    report("nsd-known-good", results)


def zone_of(path: Path, origin: str) -> Zone:
    return zone_from_text(path.read_text(), origin)


def shown(path: Path) -> Iterator[str]:
    return (line for line in path.read_text().splitlines() if line and line[0] != ";")


@pytest.mark.parametrize(
    ("test", "origin", "name", "rtype", "flags"),
    [
        ("bug013_truncate", "miek.nl.", "miek.nl.", "MX", "QR AA TC RD"),
        ("bug054_rd", "miek.nl.", "miek.nl.", "A", "QR AA RD"),
        ("copy_cd", "dnssec.", "dnssec.", "SOA", "QR AA RD"),
    ],
)
def test_flags_are_as_nsd_has_them_on_file(
    test: str, origin: str, name: str, rtype: str, flags: str
) -> None:
    zone = zone_of(vectors(f"nsd/raw/tpkg/{test}.tdir/{test}.zone"), origin)
    query = dns.message.make_query(name, rtype)
    query.flags |= dns.flags.CD
    reply = pipeline_of(zone).handle(query.to_wire(), "192.0.2.99", "udp")
    assert dns.flags.to_text(dns.message.from_wire(reply.wire).flags) == flags


def test_a_wildcard_label_in_the_middle_of_a_name_is_no_wildcard() -> None:
    """bug095_screwy_wc: a cut at *.example, served here too."""
    folder = vectors("nsd/raw/tpkg/bug095_screwy_wc.tdir")
    zones = [
        zone_of(folder / f"bug095_screwy_wc.zone{number}", origin)
        for number, origin in ((1, "example."), (2, "*.example."))
    ]
    answer = ask(pipeline_of(*zones), "www2.*.example.", "TXT")
    assert answer.rcode() == dns.rcode.NXDOMAIN
    assert (len(answer.answer), len(answer.authority), len(answer.additional)) == (0, 1, 0)


def test_the_longest_names_under_a_zone_are_answered() -> None:
    """bug058_qn_246."""
    zone = zone_of(vectors("nsd/raw/tpkg/bug058_qn_246.tdir/bug058_qn_246.zone"), "miek.nl.")
    label = "123456789"
    for count in range(1, 25):
        name = ".".join([label] * count) + ".miek.nl."
        if len(name) < 254:
            answer = ask(pipeline_of(zone), name, "A")
            assert answer.rcode() == dns.rcode.NXDOMAIN
            assert answer.authority[0].name == dns.name.from_text("miek.nl.")


def test_locations_are_read_with_the_defaults_that_nsd_has(report) -> None:
    folder = vectors("nsd/raw/tpkg/bug144_loc_defaults.tdir")
    text = (folder / "bug144_loc_defaults.zone").read_bytes()
    origin = names.from_text("example.com.")
    read = master_file.read(b"$TTL 3600\n" + text, file="z", origin=origin).records
    got = {
        (names.to_text(one.owner).lower(), one.rdata.hex())
        for one in read
        if one.rtype == dns.rdatatype.LOC
    }
    results = {}
    for line in shown(folder / "bug144_loc_defaults.known_good"):
        owner, _, rtype, rdata = normal(line)
        if rtype == "LOC":
            results[line] = [] if (owner, rdata) in got else [f"not among {sorted(got)}"]
    report("nsd-loc", results)


# Without unit.tests of bind/zones, which dnspython refuses for the length of a TLSA.
OCTODNS = {
    "zones/unit.tests.tst": "unit.tests.",
    "zones/ext.unit.tests.extension": "ext.unit.tests.",
    "zones/invalid.records.tst": "invalid.records.",
    "bind/zones/2.0.192.in-addr.arpa.": "2.0.192.in-addr.arpa.",
    "bind/zones/ext.unit.tests.extension": "ext.unit.tests.",
    "bind/zones/invalid.records.tst": "invalid.records.",
}


def test_zones_of_octodns_are_read_by_us_and_answered_as_dnspython_reads_them(report) -> None:
    results = {}
    for file, origin in OCTODNS.items():
        text = (vectors("octodns") / file).read_text()
        pipeline = pipeline_of(our_zone(text, origin))
        theirs = dns.zone.from_text(text, origin, relativize=False, check_origin=False)
        cuts = [name for name, rrs in theirs.iterate_rdatasets("NS") if name != theirs.origin]
        for owner, rdataset in theirs.iterate_rdatasets():
            if any(owner.is_subdomain(cut) for cut in cuts) and rdataset.rdtype != 43:
                continue
            rtype = dns.rdatatype.to_text(rdataset.rdtype)
            answer = ask(pipeline, str(owner), rtype, tcp=True)
            want = set(digestable(owner, rdataset))
            got = {one for rrset in answer.answer for one in digestable(rrset.name, rrset)}
            results[f"{file} {owner} {rtype}"] = [] if want == got else [f"{got}, want {want}"]
    report("octodns", results)


def digestable(owner, rdataset) -> Iterator[tuple[str, int, str]]:
    return ((str(owner).lower(), rdataset.ttl, rdata.to_digestable().hex()) for rdata in rdataset)


def our_zone(text: str, origin: str) -> Zone:
    """A zone as our own reader takes it."""
    read = master_file.read(text, file="z", origin=names.from_text(origin), default_ttl=3600)
    found = sorted(read.records, key=lambda one: (names.key(one.owner), one.rtype))
    parsed = dns.zone.from_text(text, origin, relativize=False, check_origin=False)
    soa = parsed.get_rdataset(origin, "SOA")
    zone = Zone(wire(parsed.origin), soa_value(soa.ttl, soa[0]))
    for _, of_owner in itertools.groupby(found, key=lambda one: names.key(one.owner)):
        records = [one for one in of_owner if one.rtype != dns.rdatatype.SOA]
        if records:
            zone.replace(
                records[0].owner, [RRset(one.rtype, one.ttl, (one.rdata,)) for one in records]
            )
    zone.stamp(soa[0].serial)
    return zone
