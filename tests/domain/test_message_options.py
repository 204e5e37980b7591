"""EDNS options that transports add to answers, and how long an answer may be kept."""

import dns.message
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns.lookup import NOERROR, NXDOMAIN, REFUSED, Answer, lookup
from kudurru.domain.dns.messages import (
    KEEPALIVE,
    PADDING,
    PADDING_BLOCK,
    Query,
    compose,
    find_option,
    freshness_s,
    pack_option,
    parse_query,
)
from kudurru.domain.dns.zone_set import ZoneSet
from tests.zone_files import zone_from_text

ZONE = """
z. 600 IN SOA ns.z. host.z. 1 3600 600 86400 300
z. 900 IN NS ns.z.
ns.z. 50 IN A 192.0.2.53
a.z. 3600 IN A 192.0.2.1
sub.z. 100 IN NS ns.sub.z.
ns.sub.z. 20 IN A 192.0.2.2
alias.z. 60 IN CNAME a.z.
"""


def query(name: str = "a.z.", rtype: str = "A", *, edns: bool = True) -> Query:
    parsed = parse_query(dns.message.make_query(name, rtype, use_edns=edns).to_wire())
    assert isinstance(parsed, Query)
    return parsed


def answer_of(asked: Query) -> Answer:
    return lookup(ZoneSet([zone_from_text(ZONE, "z.")]), asked.qname, asked.qtype, 0)


def test_an_answer_is_padded_to_whole_blocks() -> None:
    asked = query()
    wire = compose(asked, answer_of(asked), 65_535, block=PADDING_BLOCK)
    assert len(wire) == PADDING_BLOCK
    reply = dns.message.from_wire(wire)
    assert [option.otype for option in reply.options] == [PADDING]
    assert [str(rrset) for rrset in reply.answer] == ["a.z. 3600 IN A 192.0.2.1"]


@given(st.integers(40, 1000), st.integers(1, 600))
def test_padding_never_goes_over_the_limit(limit: int, block: int) -> None:
    wire = compose(query(), Answer(NOERROR), limit, block=block)
    assert len(wire) <= limit
    assert len(wire) % block == 0 or len(wire) == limit or limit - len(wire) < 4
    assert dns.message.from_wire(wire).rcode() == NOERROR


def test_without_an_opt_record_nothing_is_padded_or_added() -> None:
    option = pack_option(KEEPALIVE, b"\0\x64")
    asked = query(edns=False)
    plain = compose(asked, Answer(NOERROR), 65_535)
    assert compose(asked, Answer(NOERROR), 65_535, options=option, block=468) == plain


def test_options_stand_in_the_answer_before_the_padding() -> None:
    option = pack_option(KEEPALIVE, b"\0\x64")
    reply = dns.message.from_wire(
        compose(query(), Answer(NOERROR), 65_535, options=option, block=128)
    )
    assert [one.otype for one in reply.options] == [KEEPALIVE, PADDING]


def test_an_option_is_found_by_its_code() -> None:
    options = pack_option(3, b"id") + pack_option(PADDING, bytes(5)) + pack_option(KEEPALIVE, b"")
    assert find_option(options, 3) == b"id"
    assert find_option(options, PADDING) == bytes(5)
    assert find_option(options, KEEPALIVE) == b""
    assert find_option(options, 10) is None
    assert find_option(b"", 10) is None


@pytest.mark.parametrize(
    ("name", "rtype", "seconds"),
    [
        ("a.z.", "A", 3600),
        ("alias.z.", "A", 60),
        ("a.z.", "AAAA", 300),  # NODATA: the smaller of the SOA's TTL and its MINIMUM
        ("none.z.", "A", 300),
        ("x.sub.z.", "A", 100),  # a referral; glue does not count
    ],
)
def test_an_answer_may_be_kept_as_long_as_its_smallest_ttl(name, rtype, seconds) -> None:
    asked = query(name, rtype)
    assert freshness_s(compose(asked, answer_of(asked), 65_535)) == seconds


@pytest.mark.parametrize("rcode", [NOERROR, NXDOMAIN, REFUSED])
def test_an_answer_without_records_is_not_kept(rcode) -> None:
    assert freshness_s(compose(query(), Answer(rcode), 65_535)) is None
