"""Answers of whole zones, as case files expect them, through the pipeline with real packets.

The suites under `data/` are our own; the others are read from where they are and not held here.
A case that is answered otherwise on purpose stands in `differs.toml` with its reason.
"""

import itertools
import json
from collections.abc import Iterator

import pytest

from kudurru.domain.dns import master_file, names, serials
from kudurru.domain.dns.zone_rules import check_zone
from kudurru.domain.errors import Invalid
from tests.conformance.answers import ask, faults, packet_faults, pipeline_of
from tests.conformance.cases import DATA, Row, rows
from tests.vectors import vectors
from tests.zone_files import zone_from_text


def test_wildcards_answer_as_rfc_4592_shows(report) -> None:
    pipeline = pipeline_of(zone_from_text((DATA / "rfc/rfc4592.zone").read_text(), "example."))
    report("rfc4592", dict(results_of(pipeline, rows(DATA / "rfc/rfc4592.jsonl"))))


def test_cases_from_bug_reports_of_other_servers_are_right_here(report) -> None:
    zones = [
        zone_from_text((DATA / f"bugs/zones/{origin}zone").read_text(), origin)
        for origin in ("bug.example.", "bug2.example.")
    ]
    report("bugs", dict(results_of(pipeline_of(*zones), rows(DATA / "bugs/cases.jsonl"))))


def test_zones_of_the_coredns_file_plugin_answer_as_it_does(report) -> None:
    folder = vectors("coredns-file")
    origins = json.loads((folder / "origins.json").read_text())
    by_zone: dict[str, list[Row]] = {}
    for row in rows(folder / "cases.jsonl"):
        if not row["dnssec"] and len(row["confirmed_by"]) >= 2:
            by_zone.setdefault(row["zones"][0], []).append(row)
    results: dict[str, list[str]] = {}
    for zone, cases in by_zone.items():
        text = (folder / "zones" / f"{zone}.zone").read_text()
        results.update(results_of(pipeline_of(zone_from_text(text, origins[zone])), cases))
    report("coredns-file", results)


WHOLE = pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["smoke", "all"]
)
"""A part of a large suite each time, all of it with the slow ones."""


@WHOLE
def test_generated_zones_answer_as_four_servers_agree(report, whole: bool) -> None:
    results = {}
    for row in rows(vectors("ferret/valid.jsonl.gz")):
        if not whole and not row.get("smoke"):
            continue
        pipeline = pipeline_of(zone_from_text("\n".join(row["zone"]), row["origin"]))
        answer = ask(pipeline, row["qname"], row["qtype"], bufsize=4096)
        found = min((faults(one, answer) for one in alternatives(row)), key=len)
        # Loops have no one answer: bounded, no record twice, no other code.
        if row.get("why") == "loop":
            found = faults({"rcode_in": ["NOERROR", "SERVFAIL"], "answer_max": 40}, answer)
        results[str(row["id"])] = found
    report("ferret", results)


@WHOLE
def test_zones_that_break_a_rule_are_refused_or_answered_without_harm(report, whole: bool) -> None:
    """What breaks a rule that lookup rests on is refused; what BIND and NSD both take is served,
    and names in it get answers that parse and have no record twice."""
    results = {}
    for row in rows(vectors("ferret/invalid.jsonl.gz")):
        if not whole and row["id"] % 10 != 8:
            continue
        origin = names.from_text(row["origin"] or ".")
        text = "\n".join(row["zone"]) + "\n"
        found = []
        try:
            records = master_file.read(text, file="z", origin=origin, default_ttl=3600).records
            is_refused = bool(check_zone(records, origin).faults)
        except Invalid:
            is_refused = True
        servers = set(row["accepted_local"].values())
        want = row["cond"] in REFUSED_RULES if len(servers) > 1 else servers == {False}
        if is_refused != want:
            found.append(f"refused: {is_refused}, want {want} ({row['rule']})")
        if not is_refused:
            pipeline = pipeline_of(zone_from_text(with_ttls(row["zone"]), row["origin"]))
            for name, rtype in itertools.product(row["names"][:5], ("A", "NS", "DNAME")):
                found += faults({}, ask(pipeline, name, rtype, bufsize=4096))
        results[f"{row['cond']}-{row['id']}"] = found
    report("ferret-invalid", results)


REFUSED_RULES = {2, 3, 4, 5, 7}
"""More than one SOA, owners outside, CNAME with other data, two DNAMEs, data below a DNAME."""


def with_ttls(lines: list[str]) -> str:
    return "$TTL 3600\n" + "\n".join(lines)


def test_the_suite_of_powerdns_as_dnsimple_gives_it_passes_without_its_dnssec_part(report) -> None:
    folder = vectors("dnsimple-dnstest")
    zones = [
        zone_from_text((folder / "zones" / origin).read_text(), f"{origin}.")
        for origin in ("example.com", "test.com", "wtest.com", "minimal-dnssec.com")
    ]
    cases = [row for row in rows(folder / "cases.jsonl") if not row["dnssec"]]
    report("dnsimple-dnstest", dict(results_of(pipeline_of(*zones), cases)))


def test_the_dname_table_of_rfc_6672_holds(report) -> None:
    results = {}
    for i, row in enumerate(json.loads((DATA / "rfc/rfc6672_dname_table.json").read_text())):
        soa = "3600 IN SOA ns.invalid. host.invalid. 1 7200 900 1209600 300"
        zone = zone_from_text(
            f"{row['owner']} {soa}\n{row['owner']} 3600 IN DNAME {row['target']}", row["owner"]
        )
        answer = ask(pipeline_of(zone), row["qname"], "A").answer
        made = [str(rrset[0].target) for rrset in answer if rrset.rdtype == 5]
        want = [row["result"]] if row["result"] else []
        results[str(i)] = [] if made[:1] == want else [f"{made}, want {want}"]
    report("rfc6672", results)


def test_odd_headers_and_edns_are_answered_as_rfc_8906_wants(report) -> None:
    pipeline = pipeline_of(
        zone_from_text((DATA / "bugs/zones/bug.example.zone").read_text(), "bug.example.")
    )
    results = {}
    for row in rows(DATA / "edns/genreport.jsonl"):
        packet = bytes.fromhex(row["packet"])
        reply = pipeline.handle(packet, "192.0.2.99", "tcp" if row["tcp"] else "udp")
        results[row["id"]] = packet_faults(row["expect"], packet, reply and reply.wire)
    report("edns", results)


@pytest.mark.parametrize("row", json.loads((DATA / "rfc/rfc1982_pairs.json").read_text()), ids=str)
def test_serials_compare_as_rfc_1982_says(row: Row) -> None:
    a, b = row["a"], row["b"]
    if serials.is_newer(a, b):
        relation = "gt"
    elif serials.is_newer(b, a):
        relation = "lt"
    else:
        relation = "eq" if a == b else "undefined"
    assert relation == row["a_rel_b"]


@pytest.mark.parametrize("row", json.loads((DATA / "rfc/rfc1982_add.json").read_text()), ids=str)
def test_serials_add_as_rfc_1982_says(row: Row) -> None:
    if row["result"] is None:
        with pytest.raises(ValueError, match="not below"):
            serials.add(row["serial"], row["add"])
    else:
        assert serials.add(row["serial"], row["add"]) == row["result"]


def results_of(pipeline, cases: Iterator[Row] | list[Row]) -> Iterator[tuple[str, list[str]]]:
    for row in cases:
        q = row["q"]
        answer = ask(pipeline, q["name"], q["type"], tcp=q["tcp"], bufsize=q["bufsize"])
        yield row["id"], min((faults(one, answer) for one in alternatives(row)), key=len)


def alternatives(row: Row) -> list[Row]:
    if "expect_one_of" in row:
        return row["expect_one_of"]
    shared = {key: value for key, value in row["expect"].items() if key != "one_of"}
    return [shared | one for one in row["expect"].get("one_of", [{}])]
