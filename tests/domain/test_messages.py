import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import dns.tsig
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names, records
from kudurru.domain.dns.images import RRset, find_rrset, pack
from kudurru.domain.dns.lookup import (
    FORMERR,
    NOERROR,
    NOTIMP,
    NXDOMAIN,
    Answer,
    Placed,
    lookup,
)
from kudurru.domain.dns.messages import (
    DROP,
    UDP_EDNS_MAX,
    Query,
    Unanswerable,
    compose,
    parse_query,
    shortened,
)
from kudurru.domain.dns.record_types import MX, NS, TXT, A, type_to_text
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone

# Reading


def packet(name: str = "a.z.", rtype: str = "A", **options) -> bytearray:
    query = dns.message.make_query(name, rtype, **options)
    query.id = 0x1234
    return bytearray(query.to_wire())


def read(octets: bytes) -> Query:
    query = parse_query(bytes(octets))
    assert isinstance(query, Query)
    return query


def test_a_query_is_its_question_and_edns() -> None:
    query = read(packet("WwW.z.", "AAAA", use_edns=0, payload=1400, want_dnssec=True))
    assert (query.id, query.qname, query.qtype, query.qclass) == (0x1234, b"\3WwW\1z\0", 28, 1)
    assert (query.edns_version, query.udp_max, query.is_dnssec_ok) == (0, 1232, True)
    assert read(packet(use_edns=False)).edns_version is None


@pytest.mark.parametrize(
    ("options", "udp_max"),
    [
        ({"use_edns": False}, 512),
        ({"use_edns": 0, "payload": 0}, 512),
        ({"use_edns": 0, "payload": 1000}, 1000),
        ({"use_edns": 0, "payload": 4096}, 1232),
    ],
)
def test_an_answer_over_udp_may_be_as_long_as_both_sides_take(options, udp_max) -> None:
    assert read(packet(**options)).udp_max == udp_max


def test_options_are_kept_whole() -> None:
    option = dns.edns.GenericOption(65001, b"abc")
    query = read(packet(use_edns=0, options=[option]))
    assert query.options == b"\xfd\xe9\0\3abc"


@pytest.mark.parametrize("octets", [b"", b"\x12", bytes(11), b"\x12\x34\x80" + bytes(9)])
def test_what_is_no_query_gets_no_answer(octets) -> None:
    assert parse_query(octets) == DROP


ROOT_OPT = b"\0\0\x29\x10\0\0\0\0\0\0\0"
QUESTION = b"\1a\1z\0\0\1\0\1"


@pytest.mark.parametrize(
    ("octets", "rcode"),
    [
        (b"\x12\x34\x28\0\0\1\0\0\0\0\0\0", NOTIMP),
        (b"\x12\x34\0\0\0\0\0\0\0\0\0\0", FORMERR),
        (b"\x12\x34\0\0\0\2\0\0\0\0\0\0" + QUESTION + QUESTION, FORMERR),
        (b"\x12\x34\0\0\0\1\0\1\0\0\0\0" + QUESTION + QUESTION, FORMERR),
        (b"\x12\x34\0\0\0\1\0\0\0\0\0\0", FORMERR),
        (b"\x12\x34\0\0\0\1\0\0\0\0\0\0" + QUESTION[:-1], FORMERR),
        (b"\x12\x34\0\0\0\1\0\0\0\0\0\0" + QUESTION + b"!", FORMERR),
        (b"\x12\x34\0\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1", FORMERR),
        (b"\x12\x34\0\0\0\1\0\0\0\0\0\0" + (b"\x3f" + b"a" * 63) * 4 + b"\0\0\1\0\1", FORMERR),
        (b"\x12\x34\0\0\0\1\0\0\0\0\0\1" + QUESTION, FORMERR),
        (b"\x12\x34\0\0\0\1\0\0\0\0\0\1" + QUESTION + ROOT_OPT[:-1], FORMERR),
        (b"\x12\x34\0\0\0\1\0\0\0\0\0\2" + QUESTION + ROOT_OPT * 2, FORMERR),
        (b"\x12\x34\0\0\0\1\0\0\0\1\0\0" + QUESTION + ROOT_OPT, FORMERR),
        (b"\x12\x34\0\0\0\1\0\0\0\0\0\1" + QUESTION + b"\1a" + ROOT_OPT, FORMERR),
        (
            b"\x12\x34\0\0\0\1\0\0\0\0\0\1" + QUESTION + ROOT_OPT[:-1] + b"\6\0\3\0\3ab",
            FORMERR,
        ),
        (b"\x12\x34\0\0\0\1\0\0\0\0\0\x09" + QUESTION + ROOT_OPT * 9, FORMERR),
    ],
    ids=[
        "an opcode but QUERY",
        "no question",
        "two questions",
        "an answer in a query",
        "the question is missing",
        "the question is cut short",
        "octets after the question",
        "a pointer in the question",
        "a name that is too long",
        "OPT is missing",
        "OPT is cut short",
        "two OPT",
        "OPT in the authority section",
        "OPT not at the root",
        "an option is cut short",
        "many records",
    ],
)
def test_what_is_no_question_gets_a_bare_code(octets, rcode) -> None:
    found = parse_query(octets)
    assert isinstance(found, Unanswerable)
    assert found.rcode == rcode
    assert found.reply is not None
    reply = dns.message.from_wire(found.reply)
    assert (reply.id, reply.rcode(), reply.question) == (0x1234, rcode, [])
    assert reply.flags & dns.flags.QR
    assert reply.opcode() == octets[2] >> 3


@given(st.binary(max_size=80))
def test_any_octets_are_a_query_or_not(octets) -> None:
    parse_query(octets)


# Writing


def placed(owner: str | None, rtype: int, *texts: str, is_needed: bool = False) -> Placed:
    rdatas = tuple(records.rdata_from_text(rtype, text) for text in texts)
    found = find_rrset(pack([RRset(rtype, 300, rdatas)]), rtype)
    assert found is not None
    return Placed(owner and names.from_text(owner), rtype, *found, is_needed)


def composed(answer: Answer, limit: int = 65_535, **options) -> tuple[bytes, dns.message.Message]:
    wire = compose(read(packet(**options)), answer, limit)
    assert len(wire) <= limit
    return wire, dns.message.from_wire(wire)


def test_the_question_goes_back_octet_for_octet() -> None:
    asked = packet("wWw.Z.", use_edns=False)
    wire = compose(read(asked), Answer(NOERROR), 512)
    assert wire[12:] == asked[12:]


def test_rd_is_copied_and_other_flags_are_not() -> None:
    asked = packet(use_edns=False)
    asked[2:4] = b"\x07\xf0"  # AA, TC, RD and RA, Z, AD, CD
    reply = dns.message.from_wire(compose(read(asked), Answer(NOERROR, True), 512))
    assert reply.flags == dns.flags.QR | dns.flags.AA | dns.flags.RD


def test_an_opt_record_answers_one_and_only_one() -> None:
    _, reply = composed(Answer(NOERROR), use_edns=0, want_dnssec=True, payload=4096)
    assert (reply.edns, reply.payload, reply.ednsflags) == (0, UDP_EDNS_MAX, dns.flags.DO)
    _, reply = composed(Answer(NOERROR), use_edns=False)
    assert reply.edns == -1


def test_a_code_above_fifteen_is_split_between_header_and_opt() -> None:
    _, reply = composed(Answer(16), use_edns=0)
    assert reply.rcode() == dns.rcode.BADVERS


def test_names_are_compressed_where_that_is_allowed() -> None:
    answer = Answer(
        NOERROR,
        True,
        (placed(None, MX, "1 mail.a.z.", "2 mail2.a.z."),),
        (placed("z.", NS, "ns.a.z."),),
        (placed("mail.a.z.", A, "192.0.2.1", "192.0.2.2"),),
    )
    wire, reply = composed(answer, use_edns=False)
    assert [str(rdata) for rdata in reply.answer[0]] == ["1 mail.a.z.", "2 mail2.a.z."]
    assert str(reply.authority[0]) == "z. 300 IN NS ns.a.z."
    assert str(reply.additional[0].name) == "mail.a.z."
    assert wire.count(b"\1z\0") == 1
    assert wire.count(b"\4mail") == 1


def test_a_type_of_later_times_is_not_compressed() -> None:
    # RFC 3597 section 4: only the types of RFC 1035.
    answer = Answer(NOERROR, True, (placed(None, 33, "0 0 1 a.z."),))
    wire, reply = composed(answer, use_edns=False)
    assert wire.endswith(b"\1a\1z\0")
    assert str(reply.answer[0][0].target) == "a.z."


def test_answers_differ_in_nothing_but_the_question_between_letter_cases() -> None:
    answer = Answer(
        NOERROR, True, (placed(None, MX, "1 mail.a.z.", "2 Mail.A.z."),), (placed("z.", NS, "Z."),)
    )
    one, two = (
        compose(read(packet(name, use_edns=False)), answer, 512) for name in ("a.z.", "A.Z.")
    )
    size = len("0a0z0")
    assert one[12 + size :] == two[12 + size :]


def test_optional_records_that_do_not_fit_are_left_out_as_whole_rrsets() -> None:
    answer = Answer(
        NOERROR,
        True,
        (placed(None, TXT, '"' + "x" * 200 + '"'),),
        additional=(
            placed("b.z.", A, *(f"192.0.2.{i}" for i in range(1, 30))),
            placed("c.z.", A, "192.0.2.1"),
        ),
    )
    _, reply = composed(answer, 300, use_edns=0)
    assert not reply.flags & dns.flags.TC
    assert [str(rrset.name) for rrset in reply.additional] == ["c.z."]
    assert reply.edns == 0


def test_more_records_than_a_header_can_count_do_not_fit() -> None:
    answer = Answer(NOERROR, True, (Placed(None, A, 70_000, bytes(70_000 * 16)),))
    _, reply = composed(answer, use_edns=False)
    assert reply.flags & dns.flags.TC


def test_an_answer_that_does_not_fit_is_empty_and_says_so() -> None:
    answer = Answer(NOERROR, True, (placed(None, TXT, '"' + "x" * 250 + '"'),))
    _, reply = composed(answer, 250, use_edns=0)
    assert reply.flags & dns.flags.TC
    assert (reply.answer, reply.authority, reply.additional, reply.edns) == ([], [], [], 0)


@pytest.mark.parametrize(("is_needed", "is_truncated"), [(True, True), (False, False)])
def test_a_referral_without_room_for_needed_glue_says_so(is_needed, is_truncated) -> None:
    addresses = [f"192.0.2.{i}" for i in range(1, 30)]
    answer = Answer(
        NOERROR,
        authority=(placed("sub.z.", NS, "ns.sub.z."),),
        additional=(placed("ns.sub.z.", A, *addresses, is_needed=is_needed),),
    )
    _, reply = composed(answer, 200, use_edns=False)
    assert bool(reply.flags & dns.flags.TC) == is_truncated
    assert reply.additional == []


def test_a_name_that_was_left_out_is_not_pointed_at() -> None:
    answer = Answer(
        NOERROR,
        True,
        additional=(
            placed("b.z.", A, *(f"192.0.2.{i}" for i in range(1, 30))),
            placed("c.b.z.", A, "192.0.2.1"),
        ),
    )
    _, reply = composed(answer, 200, use_edns=False)
    assert [str(rrset.name) for rrset in reply.additional] == ["c.b.z."]


def test_a_message_longer_than_pointers_reach_is_still_right() -> None:
    owners = [f"n{i}.{'l' * 60}.m{i}.z." for i in range(300)]
    many = [placed(owner, NS, f"ns.{owner}", owner) for owner in owners]
    _, reply = composed(Answer(NOERROR, True, (), (), many), use_edns=False)
    assert len(reply.additional) == 300
    for rrset, owner in zip(reply.additional, owners, strict=True):
        assert str(rrset.name) == owner
        assert {str(rdata) for rdata in rrset} == {f"ns.{owner}", owner}


@pytest.mark.parametrize("apex", [".", "z."])
@pytest.mark.parametrize("mname", ["z.", "ns.z.", "ns.out.", ".", "athez."])
@pytest.mark.parametrize("rname", ["z.", "host.z.", "host.out."])
def test_the_ready_soa_of_a_negative_answer_is_right_for_any_names(apex, mname, rname) -> None:
    soa = Soa(
        mname=names.from_text(mname),
        rname=names.from_text(rname),
        refresh=1,
        retry=2,
        expire=3,
        minimum=4,
        ttl=5,
    )
    zone = Zone(names.from_text(apex), soa)
    zone.stamp(6)
    for name in (apex, "a.z.", "a.b.c.z."):
        query = read(packet(name, "TXT", use_edns=0))
        wire = compose(query, lookup(ZoneSet([zone]), query.qname, TXT, 0), 512)
        reply = dns.message.from_wire(wire)
        assert reply.rcode() == (NOERROR if name == apex else NXDOMAIN)
        assert str(reply.authority[0]) == f"{apex} 4 IN SOA {mname} {rname} 6 1 2 3 4"


RDATA_TEXTS = {
    A: st.just("192.0.2.1"),
    NS: st.sampled_from(["a.z.", "B.Z.", "ns.out.", "z.", "."]),
    MX: st.sampled_from(["1 a.z.", "2 B.a.Z."]),
    6: st.just("ns.z. Host.z. 1 2 3 4 5"),
    TXT: st.just('"text"'),
}
PLACED = st.sampled_from(sorted(RDATA_TEXTS)).flatmap(
    lambda rtype: st.builds(
        lambda owner, texts: placed(owner, rtype, *texts),
        st.sampled_from([None, "z.", "b.z.", "B.z.", "a.b.z.", "out."]),
        st.lists(RDATA_TEXTS[rtype], min_size=1, max_size=3, unique=True),
    )
)
SECTIONS = st.lists(PLACED, max_size=4)


@given(SECTIONS, SECTIONS, SECTIONS, st.booleans())
def test_dnspython_reads_back_what_was_put_in(answer, authority, additional, edns) -> None:
    asked = packet("a.b.z.", use_edns=0 if edns else False)
    wire = compose(read(asked), Answer(NOERROR, True, answer, authority, additional), 65_535)
    reply = dns.message.from_wire(wire)
    for section, given_rrsets in (
        (reply.answer, answer),
        (reply.authority, authority),
        (reply.additional, additional),
    ):
        got = {
            (str(rrset.name).lower(), int(rrset.rdtype), rdata.to_digestable())
            for rrset in section
            for rdata in rrset
        }
        want = {
            (
                names.to_text(rrset.owner).lower() if rrset.owner else "a.b.z.",
                rrset.rtype,
                dns.rdata.from_text("IN", type_to_text(rrset.rtype), text).to_digestable(),
            )
            for rrset in given_rrsets
            for text in texts_of(rrset)
        }
        assert got == want


def texts_of(rrset: Placed) -> list[str]:
    found = []
    at = 0
    for _ in range(rrset.rr_count):
        length = int.from_bytes(rrset.wire[at + 10 : at + 12], "big")
        found.append(records.rdata_to_text(rrset.rtype, rrset.wire[at + 12 : at + 12 + length]))
        at += 12 + length
    return found


@pytest.mark.parametrize("edns", [-1, 0])
def test_a_shortened_answer_is_its_question_and_edns_and_says_that_there_is_more(edns) -> None:
    query = dns.message.make_query("www.z.", "TXT")
    query.use_edns(edns, options=[dns.edns.GenericOption(3, b"server")] if not edns else None)
    answer = dns.message.make_response(query)
    answer.use_edns(edns, options=query.options)
    answer.set_rcode(dns.rcode.NXDOMAIN)
    answer.flags |= dns.flags.AA
    for section in (answer.answer, answer.authority, answer.additional):
        section.append(dns.rrset.from_text("www.z.", 60, "IN", "TXT", "a" * 200, "b" * 200))
    shorter = shortened(answer.to_wire(max_size=4096))
    assert shorter is not None
    for section in (answer.answer, answer.authority, answer.additional):
        section.clear()
    answer.flags |= dns.flags.TC
    assert shorter == answer.to_wire()
    assert shortened(shorter) is None, "it is as short as can be"
    assert shortened(shorter[:20]) is None, "it is no answer"


def test_a_signed_answer_is_not_shortened() -> None:
    query = dns.message.make_query("www.z.", "TXT")
    query.use_tsig(dns.tsig.Key("key.", b"secret" * 6))
    query.to_wire()
    answer = dns.message.make_response(query)
    answer.answer.append(dns.rrset.from_text("www.z.", 60, "IN", "TXT", "a" * 200))
    assert shortened(answer.to_wire()) is None
