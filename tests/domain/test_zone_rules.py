import pytest

from kudurru.domain.dns import master_file, names
from kudurru.domain.dns.zone_rules import check_zone

ORIGIN = names.from_text("ex.")
HEAD = "$TTL 60\n@ SOA ns h 1 2 3 4 5\n@ NS ns\nns A 192.0.2.1\n"


def check(text: str, head: str = HEAD) -> tuple[list[str], list[str]]:
    """Faults and warnings. Lines of `text` count from 5."""
    found = check_zone(master_file.read(head + text, file="z", origin=ORIGIN).records, ORIGIN)
    return [str(cause) for cause in found.faults], [str(cause) for cause in found.warnings]


FAULTS = {
    "CNAME beside other data": ("a TXT x\na CNAME b", "z:6: CNAME at a.ex. beside TXT"),
    "CNAME beside data in capitals": ("a CNAME b\nA TXT x", "z:5: CNAME at a.ex. beside TXT"),
    "CNAME at the apex": ("@ CNAME b", "z:5: CNAME at ex. beside NS, SOA"),
    "two CNAMEs": ("a CNAME b\na CNAME c", "z:6: a second CNAME at a.ex.; the first is at z:5"),
    "two DNAMEs": ("a DNAME b\na DNAME c", "z:6: a second DNAME at a.ex.; the first is at z:5"),
    "two SOAs": ("@ SOA ns h 2 2 3 4 5", "z:5: a second SOA at ex.; the first is at z:2"),
    "a SOA below the apex": ("a SOA ns h 1 2 3 4 5", "z:5: SOA at a.ex.; the zone is ex."),
    "outside": ("a.other. A 1.1.1.1", "z:5: a.other. is outside the zone ex."),
    "outside, though it ends alike": ("a.complex. A 1.1.1.1", "z:5: a.complex. is outside"),
    "below a DNAME": ("d DNAME o.\na.b.d A 1.1.1.1", "z:5: a.b.d.ex. is below the DNAME d.ex."),
}  # fmt: skip


@pytest.mark.parametrize(("text", "fault"), FAULTS.values(), ids=FAULTS)
def test_what_makes_no_zone_is_a_fault_with_its_line(text: str, fault: str) -> None:
    faults, _ = check(text)
    assert len(faults) == 1
    assert faults[0].startswith(fault)


WARNINGS = {
    "TTLs": ("a 5 A 1.1.1.1\na 6 A 1.1.1.2", "z:6: a.ex. A has TTL 5 and 6; the smallest is used"),
    "a signed zone": (
        "a RRSIG A 8 2 60 0 0 1 ex. AAAA\nb RRSIG A 8 2 60 0 0 1 ex. AAAA",
        "z:5: ex. is signed: signatures are not served with answers",
    ),
    "the same SOA again": ("@ SOA NS h 1 2 3 4 5", "z:5: a second SOA at ex., the same as at z:2"),
    "an alias as NS": ("a CNAME ns\n@ NS a", "z:6: NS target a.ex. is an alias"),
    "an alias as MX": ("a CNAME ns\n@ MX 1 a", "z:6: MX target a.ex. is an alias"),
    "no address": ("@ NS a", "z:5: NS target a.ex. has no address in this zone"),
    "no address for a service": ("_s SRV 1 2 3 a", "z:5: SRV target a.ex. has no address"),
    "no glue": ("s NS ns.s", "z:5: NS target ns.s.ex. is below the delegation"),
}


@pytest.mark.parametrize(("text", "warning"), WARNINGS.values(), ids=WARNINGS)
def test_what_will_surprise_is_a_warning_with_its_line(text: str, warning: str) -> None:
    faults, warnings = check(text)
    assert faults == []
    assert len(warnings) == 1
    assert warnings[0].startswith(warning)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a A 1.1.1.1\nA A 1.1.1.1",
        "*.d DNAME other.",
        "@ MX 0 .",
        "@ MX 1 mail.other.",
        "*.w A 1.1.1.1\n@ MX 1 a.w",
        "d DNAME o.\n@ MX 1 a.d",
        "s NS ns.s\nns.s A 1.1.1.1",
        "s NS ns.o\no NS ns.other.",
        "s NS ns.other.\n@ MX 1 mail.s",
    ],
)
def test_a_good_zone_has_no_findings(text: str) -> None:
    assert check(text) == ([], [])


@pytest.mark.parametrize(
    "text",
    [
        "a CNAME b\na RRSIG CNAME 8 2 60 0 0 1 ex. AAAA\na NSEC b CNAME",
        "a 1 RRSIG A 8 2 60 0 0 1 ex. AAAA\na 2 RRSIG MX 8 2 60 0 0 1 ex. AAAA",
    ],
)
def test_of_a_zone_that_is_well_signed_one_warning_says_so(text: str) -> None:
    faults, warnings = check(text)
    assert faults == []
    assert [warning.split(":")[2] for warning in warnings] == [" ex. is signed"]


def test_a_zone_needs_a_soa_and_servers_at_its_apex() -> None:
    assert check("", "$TTL 1\na A 1.1.1.1")[0] == ["no SOA at ex.: this is no zone of that name"]
    assert check("", "@ SOA a. b. 1 2 3 4 5")[0] == [
        "z:1: no NS at ex.; a zone names its servers (RFC 1035 section 5.2)"
    ]


def test_findings_are_bounded() -> None:
    faults, _ = check("a.other. A 1.1.1.1\n" * 300)
    assert len(faults) == 101
    assert faults[-1] == "and more"
