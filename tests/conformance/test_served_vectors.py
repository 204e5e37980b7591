"""The same suites through the whole program: zone files are imported through a server's socket,
and the questions are asked over UDP and TCP.

Suites of few zones go in by `zone import`. The hundreds of zones of Ferret are read by the same
code as `zone import` reads them, and go in as changes of many zones: a process for each would take
minutes.
All are served at once by one server, except zones that share a name: those take turns.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import dns.flags
import dns.message
import dns.query
import pytest

from kudurru.domain.dns import names
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.zone_import import Present
from kudurru.entrypoints.rpc import RemoteService, connect
from kudurru.entrypoints.service import ChangeRequest
from kudurru.entrypoints.zone_files import read_zone_file, to_manifests
from tests.blackbox.program import PATIENCE_S, Serving, command, serving
from tests.conformance.answers import faults
from tests.conformance.cases import DATA, Row, rows
from tests.vectors import vectors

ZONES_PER_CHANGE = 100


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served") / "data"


@pytest.fixture(scope="module")
def server(node: Path) -> Iterator[Serving]:
    with serving(node) as found:
        yield found


@pytest.fixture(scope="module")
def service(server: Serving, node: Path) -> Iterator[RemoteService]:
    found = connect(node / "kudurru.sock")
    assert found is not None
    with found:
        yield found


def test_wildcards_are_served_as_rfc_4592_shows(server: Serving, node: Path, report) -> None:
    import_zone(node, DATA / "rfc/rfc4592.zone", "example.")
    report("served rfc4592", results_of(server, rows(DATA / "rfc/rfc4592.jsonl")))


def test_cases_from_bug_reports_are_served_right(server: Serving, node: Path, report) -> None:
    for origin in ("bug.example.", "bug2.example."):
        import_zone(node, DATA / f"bugs/zones/{origin}zone", origin)
    report("served bugs", results_of(server, rows(DATA / "bugs/cases.jsonl")))


def test_zones_of_the_coredns_file_plugin_are_served_as_it_does(tmp_path: Path, report) -> None:
    folder = vectors("coredns-file")
    origins = json.loads((folder / "origins.json").read_text())
    by_zone: dict[str, list[Row]] = {}
    for row in rows(folder / "cases.jsonl"):
        if not row["dnssec"] and len(row["confirmed_by"]) >= 2:
            by_zone.setdefault(row["zones"][0], []).append(row)
    results: dict[str, list[str]] = {}
    for number, turn in enumerate(turns(by_zone, origins)):
        node = tmp_path / str(number)
        with serving(node) as server:
            for zone in turn:
                import_zone(node, folder / "zones" / f"{zone}.zone", origins[zone])
            for zone in turn:
                results |= results_of(server, by_zone[zone])
    report("served coredns-file", results)


def turns(zones: Iterable[str], origins: dict[str, str]) -> list[list[str]]:
    """Zones divided so that those of one name are never served together."""
    found: list[list[str]] = []
    for zone in zones:
        free = (t for t in found if origins[zone] not in {origins[one] for one in t})
        turn = next(free, None)
        if turn is None:
            found.append(turn := [])
        turn.append(zone)
    return found


def test_generated_zones_are_served_as_four_servers_agree(
    server: Serving, service: RemoteService, tmp_path: Path, report
) -> None:
    cases = [row for row in rows(vectors("ferret/valid.jsonl.gz")) if row.get("smoke")]
    for i in range(0, len(cases), ZONES_PER_CHANGE):
        import_zones(service, cases[i : i + ZONES_PER_CHANGE], tmp_path)
    results = {}
    for row in cases:
        answer = ask(server, suffixed(row["qname"], row), row["qtype"], bufsize=4096)
        # Loops have no one answer: bounded, no record twice, no other code.
        if row.get("why") == "loop":
            found = faults({"rcode_in": ["NOERROR", "SERVFAIL"], "answer_max": 40}, answer)
        else:
            found = min((faults(one, answer) for one in ferret_alternatives(row)), key=len)
        results[str(row["id"])] = found
    report("served ferret", results)


def test_what_was_served_is_what_the_log_says(server: Serving, node: Path) -> None:
    assert command("audit", "verify", "--level", "state", "--data", node).code == 0
    replayed = command("replay", "--verify", "--data", node, "-o", "json").json()
    assert replayed["server"] == "the server's views equal the replayed ones"


# --- zones in -----------------------------------------------------------------------------------


def import_zone(node: Path, file: Path, origin: str) -> None:
    done = command("zone", "import", file, "--zone", origin, "--data", node)
    assert done.code == 0, done.err


def import_zones(service: RemoteService, cases: list[Row], folder: Path) -> None:
    manifests: list[Manifest] = []
    serials: dict[str, int] = {}
    for row in cases:
        path = folder / f"{row['id']}.zone"
        path.write_text("".join(f"{suffixed_record(line, row)}\n" for line in row["zone"]))
        read = read_zone_file(path, zone=suffixed(row["origin"], row))
        assert names.to_text(read.apex) == suffixed(row["origin"], row)
        found = to_manifests(read, namespace="default", present=Present())
        manifests += found
        serials[found[0].meta.name] = read.soa[2]
    service.change(ChangeRequest(apply=manifests, imported_serials=serials, reason="ferret"))


def suffixed(name: str, row: Row) -> str:
    """A name of the row's zone below a suffix of its own: the generated zones share their names."""
    return f"{name}t{row['id']}.ferret.test."


NAMES_AT = {"NS": (4,), "CNAME": (4,), "DNAME": (4,), "SOA": (4, 5)}


def suffixed_record(line: str, row: Row) -> str:
    parts = line.split()
    for at in (0, *NAMES_AT.get(parts[3], ())):
        parts[at] = suffixed(parts[at], row)
    return " ".join(parts)


def ferret_alternatives(row: Row) -> Iterator[Row]:
    for one in row.get("expect_one_of") or [row["expect"]]:
        sections = {
            section: [suffixed_record(line, row) for line in one[section]]
            for section in ("answer", "authority")
            if section in one
        }
        yield one | sections


# --- questions out ------------------------------------------------------------------------------


def results_of(server: Serving, cases: Iterable[Row]) -> dict[str, list[str]]:
    results = {}
    for row in cases:
        q = row["q"]
        answer = ask(server, q["name"], q["type"], tcp=q["tcp"], bufsize=q["bufsize"])
        shared = {key: value for key, value in row.get("expect", {}).items() if key != "one_of"}
        choices = row.get("expect_one_of") or row["expect"].get("one_of", [{}])
        results[row["id"]] = min((faults(shared | one, answer) for one in choices), key=len)
    return results


def ask(
    server: Serving, name: str, rtype: str, *, tcp: bool = False, bufsize: int | None = None
) -> dns.message.Message:
    query = dns.message.make_query(name, rtype, use_edns=bufsize is not None, payload=bufsize or 0)
    query.flags = 0
    send = dns.query.tcp if tcp else dns.query.udp
    # One record per RRset shows records that are there twice.
    return send(query, server.host, port=server.port, timeout=PATIENCE_S, one_rr_per_rrset=True)
