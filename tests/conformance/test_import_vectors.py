"""Master files and records that must be read, or refused, as case files say.

The suite under `data/` is our own; the others are read from where they are and not held here.
A case that is read otherwise on purpose stands in `differs.toml` with its reason.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import dns.name
import dns.rdata
import dns.rdatatype
import pytest

from kudurru.domain.dns import master_file, names, records
from kudurru.domain.dns.master_file import Record
from kudurru.domain.dns.names import ROOT, Name
from kudurru.domain.dns.record_types import SVCB
from kudurru.domain.dns.zone_rules import check_zone
from kudurru.domain.errors import Invalid
from tests.conformance.cases import DATA, Row, rows
from tests.vectors import vectors

WANTED = {
    "accept": {"accept"},
    "reject": {"reject"},
    "either": {"accept", "reject"},
    "reject_or_ignore": {"reject"},
    "reject_or_zero": {"reject"},
}


def read(text: str | bytes, origin: Name | None = ROOT, ttl: int | None = 3600) -> list[Record]:
    return master_file.read(text, file="case", origin=origin, default_ttl=ttl).records


def identities(found: Iterable[Record]) -> Counter:
    return Counter(
        (names.key(record.owner), record.rtype, record.ttl, record.rdata) for record in found
    )


def test_zones_from_bug_reports_of_other_servers_import_or_are_refused(report) -> None:
    results = {}
    for row in rows(DATA / "bugs/import_cases.jsonl"):
        verdict = import_verdict(row["zone"], names.from_text(row["origin"]))
        good = verdict.split()[0] in WANTED[row["want"]]
        results[row["id"]] = [] if good else [f"{verdict}, want {row['want']}"]
    report("import_cases", results)


def import_verdict(text: str, origin: Name) -> str:
    try:
        found = check_zone(read(text, origin, None), origin)
    except Invalid as error:
        return f"reject {error}"
    return f"reject {found.faults}" if found.faults else "accept"


def test_service_bindings_are_read_and_refused_as_nsd_does(report) -> None:
    results = {}
    for row in rows(vectors("nsd/svcb.jsonl")):
        try:
            wires = [
                record.rdata.hex() for record in read(row["rr"], names.from_text(row["origin"]))
            ]
            verdict = "accept"
        except Invalid as error:
            wires, verdict = [], f"reject {error}"
        if row["want"] == "wire":
            good = wires == row["wire"]
        else:
            good = verdict.startswith(row["want"])
        results[row["id"]] = [] if good else [f"{verdict} {wires}, want {row['want']}"]
    report("nsd-svcb", results)


def test_service_bindings_of_rfc_9460_have_the_wire_it_shows(report) -> None:
    folder = vectors("dnspython")
    text = (folder / "svcb_test_vectors.text").read_text()
    generic = (folder / "svcb_test_vectors.generic").read_text()
    ours = read(re.sub(r"(?m)^(?=\d)", "x SVCB ", text))
    theirs = read(re.sub(r"(?m)^(?=\\#)", "x SVCB ", generic))
    assert len(ours) == len(theirs)
    report(
        "rfc9460",
        {
            records.rdata_to_text(SVCB, our.rdata): [] if our.rdata == their.rdata else ["differs"]
            for our, their in zip(ours, theirs, strict=True)
        },
    )


@pytest.mark.parametrize("form", ["example1", "example2", "example3", "example4"])
def test_the_example_zone_of_dnspython_is_its_printed_forms(form: str) -> None:
    folder = vectors("dnspython")
    example = read((folder / "example").read_bytes(), None, None)
    printed = read((folder / f"{form}.good").read_bytes(), names.from_text("example."), None)
    assert len(example) == 178
    assert identities(example) == identities(printed)


def test_each_record_of_the_example_zone_has_the_wire_and_meaning_dnspython_gives_it(report):
    results = {}
    for record in read((vectors("dnspython") / "example").read_bytes(), None, None):
        text = records.rdata_to_text(record.rtype, record.rdata)
        found = []
        if records.rdata_from_text(record.rtype, text) != record.rdata:
            found.append("does not read back")
        if 'ech="' not in text and "ech=" not in text:  # it wants a whole ECHConfigList there
            peer = dns.rdata.from_text("IN", dns.rdatatype.RdataType.make(record.rtype), text)
            if peer.to_wire() != record.rdata:
                found.append("dnspython reads our text otherwise")
        results[f"{record.line} {text[:40]}"] = found
    report("dnspython-example", results)


def test_a_zone_with_tokens_at_every_boundary_is_read_whole() -> None:
    data = vectors("simdzone/xbounds.zone").read_bytes()
    found = master_file.read(data, file="xbounds").records
    assert len(found) == data.count(b"\tIN\t") == 283
    written = "".join(master_file.write(found, found[0].owner))
    assert identities(read(written)) == identities(found)


def test_what_the_parser_of_miekg_dns_reads_is_read_here(report) -> None:
    results = {}
    items: list[str] = []  # protocols of the record before, where its suite lists them
    for line, row in enumerate(rows(vectors("miekg-dns/parse.jsonl")), 1):
        case = f"{row['test']}-{line}"
        if row["test"] == "TestSVCBAlpn":
            if "SVCB" in row["in"]:
                items = list(protocols(row["in"]))
                results[case] = []
            else:
                results[case] = [] if row["in"] == items.pop(0) else ["another protocol"]
        else:
            results[case] = list(miekg_faults(row))
    report("miekg-parse", results)


MUST_FAIL = {"TestParseFailure", "TestZoneParserAddressBad", "TestLineNumberError2"}


def miekg_faults(row: Row) -> Iterator[str]:
    """The tables of that parser's tests are of several kinds, told apart by test."""
    test, text, out = row["test"], row["in"], row["out"]
    if test == "TestRfc1982":
        text, out = (f". RRSIG A 8 0 1 {time} 0 1 . AAAA" for time in (text, out))
    elif test == "TestPresentationSVCBAlpn":
        item = "".join(f"\\{ord(character):03d}" for character in text).replace("\\044", "\\\\,")
        text, out = f'. SVCB 1 . alpn="{item}"', f'. SVCB 1 . alpn="{out}"'
    elif test == "TestParseLOC" and out in ("Latitude", "Longitude"):
        test, text = "TestParseFailure", f". LOC {text}"
    try:
        found = identities(read(text))
    except Invalid as error:
        if test not in MUST_FAIL:
            yield f"refused: {error}"
        return
    if test in MUST_FAIL:
        yield "accepted"
    elif out is not None and found != identities(read(out)):
        yield f"{found}, want {out}"


def protocols(text: str) -> Iterator[str]:
    """Items of the alpn parameter, which is the only one."""
    (record,) = read(text)
    value = record.rdata[record.rdata.index(b"\x00\x01\x00", 3) + 4 :]
    while value:
        yield value[1 : 1 + value[0]].decode()
        value = value[1 + value[0] :]
