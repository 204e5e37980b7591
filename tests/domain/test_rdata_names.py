"""Records of every type whose rdata holds names, compressed by an upstream and taken out of its
message, beside what dnspython reads in the upstream's own message."""

import dns.message
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.dns.message_reader import read_message
from kudurru.domain.dns.names import BadName
from kudurru.domain.dns.rdata_names import find_names
from kudurru.domain.dns.record_types import type_from_text
from kudurru.domain.dns.resolved import Resolved, behind_aliases, compose_resolved, joined
from kudurru.domain.dns.responses import Malformed, Message, read_response
from tests.fuzz.upstreams import asked

ANY = b"\0\xff\0\1"
ZONE = names.from_text("www.example.")
"""The name of the question, which rdata is compressed against."""
FAR = names.from_text("alias.of.another.length.test.")

ONE = "{one}.www.example."
TWO = "{two}.www.example."
SIGNED = "A 8 2 60 20300101000000 20200101000000 7 {one} AQID"
COMPRESSIBLE = {
    "NS": "{one}", "CNAME": "{one}", "PTR": "{one}", "DNAME": "{one}", "NSAP-PTR": "{one}",
    "RP": "{one} {two}", "SOA": "{one} {two} 1 2 3 4 5", "MX": "5 {one}", "AFSDB": "1 {one}",
    "RT": "7 {one}", "KX": "9 {one}", "PX": "10 {one} {two}", "SRV": "1 2 3 {one}",
    "NAPTR": '1 2 "s" "SIP+D2U" "!^.*$!x!" {one}', "RRSIG": SIGNED, "SIG": SIGNED,
}  # fmt: skip
"""Record data of the types that dnspython knows."""
UNKNOWN = {"MD": 1, "MF": 1, "MB": 1, "MG": 1, "MR": 1, "MINFO": 2}
"""Types of RFC 1035 that dnspython does not know, and how many names their data is."""
NEVER = {
    "NSEC": "{one} A MX", "SVCB": "1 {one} port=53", "HTTPS": "1 {one} alpn=h2",
    "LP": "10 {one}", "DSYNC": "CDS NOTIFY 53 {one}", "AMTRELAY": "10 0 3 {one}",
    "IPSECKEY": "10 3 2 {one} AQID", "HIP": "2 200100107B1A74DF365639CC39F1D578 AQID {one} {two}",
}  # fmt: skip
PLAIN = {
    "IPSECKEY": "10 1 2 192.0.2.1 AQID", "AMTRELAY": "10 0 1 192.0.2.1",
    "HIP": "2 200100107B1A74DF365639CC39F1D578 AQID",
}  # fmt: skip

labels = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
few = settings(max_examples=20)  # of each type


def rdata_of(rtype: str, one: str, two: str) -> bytes:
    """Uncompressed, names between the parts of the question's."""
    first, second = ONE.format(one=one), TWO.format(two=two)
    if rtype in UNKNOWN:
        return b"".join([names.from_text(n) for n in (first, second)][: UNKNOWN[rtype]])
    text = (COMPRESSIBLE | NEVER)[rtype].format(one=first, two=second)
    wire = dns.rdata.from_text("IN", rtype, text).to_wire()
    assert wire is not None
    return wire


def compressed(rdata: bytes, target: int = 12) -> bytes:
    """The rdata with a pointer in place of each tail that is the question's name."""
    small = rdata.replace(ZONE, (0xC000 | target).to_bytes(2, "big"))
    assert small != rdata
    return small


def record(rtype: str, rdata: bytes, owner: bytes = b"\xc0\x0c") -> bytes:
    number = type_from_text(rtype).to_bytes(2, "big")
    return owner + number + b"\0\1\0\0\0\x3c" + len(rdata).to_bytes(2, "big") + rdata


def upstream_response(*records: bytes, question: bytes = ZONE + ANY) -> bytes:
    return (
        b"\0\0\x81\x80\0\1"
        + len(records).to_bytes(2, "big")
        + bytes(4)
        + question
        + b"".join(records)
    )


def last_rdata(message: Message, question: bytes) -> bytes:
    """Data of the last record of an answer made of a message, as dnspython writes it in full;
    what it does not know comes as it is."""
    wire = compose_resolved(asked(question), Resolved(message, "forward"), 65_535)
    found = dns.message.from_wire(wire, one_rr_per_rrset=True).answer[-1][0].to_wire()
    assert found is not None
    return found


FOREIGN = record("A", b"\xc0\0\2\1", names.from_text("somebody.else.test."))
"""It does not belong to the question: the records around it are written anew."""


@pytest.mark.parametrize("rtype", [*COMPRESSIBLE, *UNKNOWN])
@few
@given(one=labels, two=labels)
def test_compressed_names_stay_whole_however_an_answer_is_made(
    rtype: str, one: str, two: str
) -> None:
    rdata = rdata_of(rtype, one, two)
    small = record(rtype, compressed(rdata))
    question = ZONE + ANY
    if rtype not in UNKNOWN:  # dnspython follows pointers where RFC 1035 has them, or refuses
        assert last_rdata(read_response(question, upstream_response(small)), question) == rdata
    rebuilt = read_response(question, upstream_response(FOREIGN, small))
    assert last_rdata(rebuilt, question) == rdata
    # Behind an alias that a policy gave, and one that another upstream left open.
    if rtype in ("CNAME", "DNAME"):
        return  # these are aliases themselves
    whole = read_response(question, upstream_response(small))
    alias = record("CNAME", ZONE)
    assert last_rdata(behind_aliases([alias], question, whole, 0), FAR + ANY) == rdata
    open_end = read_response(FAR + b"\0\1\0\1", _alias_response())
    assert last_rdata(joined(open_end, question, whole, 0), FAR + b"\0\1\0\1") == rdata


def _alias_response() -> bytes:
    return upstream_response(record("CNAME", ZONE), question=FAR + b"\0\1\0\1")


@pytest.mark.parametrize("rtype", [*COMPRESSIBLE, *UNKNOWN])
def test_a_name_that_leads_into_a_dropped_record_stays_whole(rtype: str) -> None:
    rdata = rdata_of(rtype, "one", "two")
    foreign = record("A", b"\xc0\0\2\1", names.from_text("else.") + b"")
    at = 12 + len(ZONE + ANY) + len(foreign)
    # The zone's name stands in a record that is dropped, and only there may be pointed to.
    dropped = record("TXT", b"\1x", b"\3sub" + ZONE)
    small = record(rtype, compressed(rdata, at + 4))
    packet = upstream_response(foreign, dropped, small)
    message = read_response(ZONE + ANY, packet)
    assert message.counts == (1, 0, 0)
    assert last_rdata(message, ZONE + ANY) == rdata


@pytest.mark.parametrize("rtype", [*COMPRESSIBLE, *UNKNOWN])
def test_a_transfer_or_an_update_has_them_whole_too(rtype: str) -> None:
    rdata = rdata_of(rtype, "one", "two")
    message = read_message(upstream_response(record(rtype, compressed(rdata))))
    assert message.answers[0].rdata == rdata


@pytest.mark.parametrize("rtype", NEVER)
@few
@given(one=labels, two=labels)
def test_where_no_name_may_be_compressed_a_pointer_is_refused(
    rtype: str, one: str, two: str
) -> None:
    rdata = rdata_of(rtype, one, two)
    question = ZONE + ANY
    for others in ((), (FOREIGN,)):
        message = read_response(question, upstream_response(*others, record(rtype, rdata)))
        assert last_rdata(message, question) == rdata
        with pytest.raises(Malformed):
            read_response(question, upstream_response(*others, record(rtype, compressed(rdata))))


@pytest.mark.parametrize("rtype", PLAIN)
def test_a_type_that_may_hold_a_name_and_holds_none_is_copied(rtype: str) -> None:
    rdata = dns.rdata.from_text("IN", rtype, PLAIN[rtype]).to_wire()
    assert rdata is not None
    message = read_response(ZONE + ANY, upstream_response(FOREIGN, record(rtype, rdata)))
    assert last_rdata(message, ZONE + ANY) == rdata


def test_who_has_the_prefix_of_an_a6_record_is_a_name() -> None:
    """RFC 2874 section 3.1. dnspython does not know the type."""
    a6 = type_from_text("A6")
    assert find_names(b"\0" + bytes(16), 0, 17, a6) is None
    for prefix, octets in ((128, 0), (64, 8), (60, 9), (1, 16)):
        rdata = bytes((prefix,)) + bytes(octets) + ZONE
        found = find_names(rdata, 0, len(rdata), a6)
        assert found is not None
        assert found.names == (ZONE,)
        with pytest.raises(BadName):
            find_names(rdata + b"\0", 0, len(rdata) + 1, a6)


@pytest.mark.parametrize("rtype", [*COMPRESSIBLE, *UNKNOWN])
def test_data_that_ends_inside_its_fields_is_refused(rtype: str) -> None:
    rdata = compressed(rdata_of(rtype, "one", "two"))
    is_open = rtype in ("RRSIG", "SIG")  # what is behind the name may have any length
    for size in range(1, len(rdata) - 3 if is_open else len(rdata)):
        with pytest.raises(Malformed):
            read_response(ZONE + ANY, upstream_response(record(rtype, rdata[:size])))


def test_what_is_larger_than_a_message_with_its_names_in_full_is_refused() -> None:
    question = b"\x3f" + b"a" * 63 + ZONE + ANY
    small = record("MX", b"\0\1\xc0\x0c")
    many = upstream_response(*[small] * 1000, question=question)
    whole = read_response(question, many)  # as it came
    with pytest.raises(Malformed, match="larger than a message"):
        behind_aliases([record("CNAME", question[:-4])], question, whole, 0)
    with pytest.raises(Malformed, match="larger than a message"):
        read_response(question, upstream_response(FOREIGN, *[small] * 1000, question=question))


def test_data_that_its_names_make_too_long_is_refused() -> None:
    rdata = bytes(18) + b"\xc0\x0c" + bytes(65_400)
    question = b"\x3f" + b"a" * 63 + b"\x3f" + b"b" * 63 + ZONE + ANY
    packet = upstream_response(record("SIG", rdata), question=question)
    with pytest.raises(Malformed, match="in full"):
        read_response(question, packet)
