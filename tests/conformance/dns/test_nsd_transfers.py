"""What is made of the answers that the scripted primaries of NSD's tests give.

The scripts are read from where they are; the table says what each transfer means here.
"""

from typing import NamedTuple

import dns.message
import pytest

from kudurru.domain.dns import names
from kudurru.domain.dns.transfer import BadTransfer, Inbound
from tests.nsd_scripts import NsdScript
from tests.vectors import vectors


class Case(NamedTuple):
    script: str
    zone: str
    rtype: str
    have: int | None
    wanted: str
    """"Whole", "Differences", or a part of why it is refused."""


NET, COM = "example.net.", "example.com."
CASES = [
    Case("axfr_fallback.datafile", NET, "IXFR", 1, "holds no record"),
    Case("axfr_fallback.datafile", NET, "AXFR", None, "Whole"),
    Case("axfr_mid_soa.testns", COM, "AXFR", None, "not the one that it began with"),
    Case("bad_xfr_with_other_tasks.datafile", "zone2fail.invalid.", "IXFR", 1, "Differences"),
    Case("ixfr_and_restart.datafile", NET, "AXFR", None, "Whole"),
    Case("ixfr_and_restart.datafile", NET, "IXFR", 1, "Differences"),
    Case("ixfr_and_restart.datafile", NET, "IXFR", 2, "Differences"),
    Case("ixfr_badformat.datafile", NET, "IXFR", 2, "leads from serial 2 to 1"),
    Case("ixfr_badformat.datafile", NET, "IXFR", 1, "Whole"),
    Case("ixfr_del_rrsig_dnskey.testns", COM, "AXFR", None, "Whole"),
    Case("ixfr_duplicate_serial.testns", COM, "IXFR", 1, "leads from serial 1 to 1"),
    Case("ixfr_excessive_logging.datafile", COM, "IXFR", 1, "Differences"),
    Case("ixfr_faildel.datafile", "sub.example.com.", "IXFR", 1, "Differences"),
    Case("ixfr_faildel.datafile", "sub.example.com.", "AXFR", None, "Whole"),
    Case("ixfr_gone.datafile", NET, "IXFR", 1, "is below the apex"),
    Case("ixfr_outsync.datafile", NET, "IXFR", 1, "Differences"),
    Case("ixfr_outsync.datafile", NET, "IXFR", 3, "is at serial 2, behind ours, 3"),
    Case("ixfr_wildcard.datafile1", "tld.", "AXFR", None, "Whole"),
    Case("ixfrout.testns", COM, "IXFR", 1, "Differences"),
    Case(
        "outofzone_axfr.testns", "child.parent.tld.", "AXFR", None, "NS of parent.tld. is outside"
    ),
    Case("outofzone_axfr.testns", "catalog.tld.", "AXFR", None, "Whole"),
    Case("xfr_class.testns", COM, "IXFR", 1, "is of class 3"),
    Case("xfr_nsec_upper.datafile", COM, "AXFR", None, "Whole"),
    Case("xfr_udp.datafile", NET, "IXFR", 1, "Whole"),
    Case("xfr_update.datafile", NET, "IXFR", 1, "Differences"),
    Case("xfrd_short_soa_response.datafile", "victim.", "AXFR", None, "Whole"),
    Case("zone_expire_serial.datafile2", NET, "AXFR", None, "Whole"),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{c.script}-{c.rtype}-{c.have}" for c in CASES])
def test_scripted_transfers_are_taken_or_refused(case: Case) -> None:
    test = case.script.partition(".")[0]
    script = NsdScript(vectors("nsd/raw/tpkg") / f"{test}.tdir" / case.script)
    query = dns.message.make_query(case.zone, case.rtype)
    if case.have is not None:
        soa = f"{case.zone} 0 IN SOA . . {case.have} 0 0 0 0"
        query.authority += dns.message.from_text(f";AUTHORITY\n{soa}\n").authority
    answers = script.answers(query.to_wire(), stream=True)
    assert answers is not None
    inbound = Inbound(
        names.from_text(case.zone),
        query.id,
        have=case.have,
        is_incremental=case.rtype == "IXFR",
    )
    try:
        found = [type(inbound.feed(octets)).__name__ for octets in answers][-1]  # type: ignore[arg-type]
    except BadTransfer as error:
        found = str(error)
    assert case.wanted in found
