"""Inbound transfers, message by message: what is taken, and every way in which one is refused."""

import struct
from collections.abc import Sequence

import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names, transfer
from kudurru.domain.dns.message_reader import BadMessage, read_message
from kudurru.domain.dns.record_types import NS, TXT, A
from kudurru.domain.dns.transfer import (
    BadTransfer,
    Current,
    Differences,
    Inbound,
    Limits,
    Whole,
    apply_steps,
)
from kudurru.domain.zone_import import RRs
from kudurru.entrypoints.steps import finish

APEX = names.from_text("sec.example.")
ORIGIN = dns.name.from_text("sec.example.")
ID = 4711


def soa(serial: int, ttl: int = 60) -> str:
    return f"@ {ttl} SOA ns h {serial} 1 1 3600 60"


def message(
    *lines: str,
    kind: str = "AXFR",
    id_: int = ID,
    rcode: int = 0,
    flags: int = dns.flags.QR,
    question: str | None = "sec.example.",
    opcode: int = 0,
) -> bytes:
    made = dns.message.Message(id=id_)
    made.flags = flags
    made.set_rcode(rcode)
    made.set_opcode(opcode)
    if question is not None:
        made.question.append(
            dns.rrset.RRset(
                dns.name.from_text(question), dns.rdataclass.IN, dns.rdatatype.from_text(kind)
            )
        )
    for line in lines:
        name, ttl, rtype, data = line.split(None, 3)
        owner = dns.name.from_text(name, ORIGIN)
        made.answer.append(dns.rrset.from_rdata(owner, int(ttl), rdata_of(rtype, data)))
    return made.to_wire()


def rdata_of(rtype: str, data: str) -> dns.rdata.Rdata:
    return dns.rdata.from_text("IN", rtype, data, origin=ORIGIN, relativize=False)


def fed(taking: Inbound, messages: Sequence[bytes]) -> object:
    """What the last message leads to."""
    return [taking.feed(octets) for octets in messages][-1]


def inbound(have: int | None = None, **options: object) -> Inbound:
    return Inbound(APEX, ID, have=have, is_incremental=have is not None, **options)  # type: ignore[arg-type]


def texts(owners: dict[names.Name, tuple[names.Name, RRs]]) -> dict[str, dict[int, list[bytes]]]:
    return {
        names.to_text(owner): {rtype: sorted(rdatas.values()) for rtype, (_, rdatas) in rrs.items()}
        for owner, rrs in owners.values()
    }


FULL = [soa(10), "@ 60 NS ns.example.net.", 'keep 60 TXT "keep"', 'old 60 TXT "old"', soa(10)]
STEPS = [soa(11), soa(10), 'old 60 TXT "old"', soa(11), 'new 60 TXT "new"', soa(11)]


def test_a_whole_zone_is_taken_in_one_message() -> None:
    found = inbound().feed(message(*FULL))
    assert isinstance(found, Whole)
    assert found.version.serial == 10
    assert found.version.soa.ttl == 60
    assert texts(found.owners) == {
        "sec.example.": {NS: [b"\x02ns\x07example\x03net\x00"]},
        "keep.sec.example.": {TXT: [b"\x04keep"]},
        "old.sec.example.": {TXT: [b"\x03old"]},
    }


def test_a_whole_zone_is_taken_record_by_record_in_messages_without_questions() -> None:
    taking = inbound()
    first, *rest = FULL
    assert taking.feed(message(first)) is None
    for line in rest[:-1]:
        assert taking.feed(message(line, question=None)) is None
    assert isinstance(taking.feed(message(rest[-1], question=None)), Whole)


def test_an_answer_whose_letter_case_differs_is_taken() -> None:
    assert isinstance(inbound().feed(message(*FULL, question="SEC.example.")), Whole)


def test_duplicates_are_kept_once_and_an_rrset_has_its_smallest_ttl() -> None:
    lines = [soa(10), "a 60 A 192.0.2.1", "a 120 A 192.0.2.2", "A 60 A 192.0.2.1", soa(10)]
    found = inbound().feed(message(*lines))
    assert isinstance(found, Whole)
    ((_, rrs),) = found.owners.values()
    assert rrs == {
        A: (
            60,
            {b"\xc0\x00\x02\x01": b"\xc0\x00\x02\x01", b"\xc0\x00\x02\x02": b"\xc0\x00\x02\x02"},
        )
    }


def test_differences_are_steps() -> None:
    found = inbound(10).feed(message(*STEPS, kind="IXFR"))
    assert isinstance(found, Differences)
    assert found.version.serial == 11
    ((step),) = found.steps
    assert (step.from_serial, step.to_serial) == (10, 11)
    assert [names.to_text(r.owner) for r in step.deleted] == ["old.sec.example."]
    assert [names.to_text(r.owner) for r in step.added] == ["new.sec.example."]


def test_two_steps_over_two_messages_and_the_wrap_of_the_serial() -> None:
    last = 2**32 - 1
    lines = [soa(2), soa(last), soa(1), 'mid 60 TXT "m"', soa(1), 'mid 60 TXT "m"', soa(2), soa(2)]
    taking = inbound(last)
    assert taking.feed(message(*lines[:4], kind="IXFR")) is None
    found = taking.feed(message(*lines[4:], kind="IXFR"))
    assert isinstance(found, Differences)
    assert [(s.from_serial, s.to_serial) for s in found.steps] == [(last, 1), (1, 2)]


def test_a_question_for_differences_may_be_answered_with_the_zone() -> None:
    assert isinstance(inbound(9).feed(message(*FULL, kind="IXFR")), Whole)


def test_a_lone_soa_of_our_serial_means_that_there_is_nothing_new() -> None:
    assert isinstance(inbound(10).feed(message(soa(10), kind="IXFR")), Current)


def test_a_lone_newer_soa_is_not_enough() -> None:
    taking = inbound(10)
    assert taking.feed(message(soa(11), kind="IXFR")) is None
    with pytest.raises(BadTransfer, match="ended early, after 1 messages and 1 records"):
        taking.end()


def test_the_zone_of_our_own_serial_is_taken_when_it_was_asked_for_whole() -> None:
    taking = Inbound(APEX, ID, have=10)
    assert isinstance(taking.feed(message(*FULL)), Whole)


OUT = "evil.example.org. 60 A 192.0.2.66"
IN_SOA, CH_SOA = b"\0\6\0\1", b"\0\6\0\3"
REFUSED: list[tuple[str, int | None, Sequence[bytes], str]] = [
    ("rubbish", None, [b"\x12\x67\x80\x00\x00\x01\x00\x09" + b"\xff" * 30], "label|short|pointer"),
    ("too short", None, [b"abc"], "3 octets are no message"),
    ("octets behind", None, [message(*FULL) + b"x"], "1 octets behind the last record"),
    ("cut short", None, [message(*FULL)[:-3]], "cut short"),
    ("another id", None, [message(*FULL, id_=1)], "another ID"),
    ("another id later", None, [message(*FULL[:3]), message(*FULL[3:], id_=1)], "another ID"),
    ("a query", None, [message(*FULL, flags=0)], "no response"),
    ("another opcode", None, [message(*FULL, opcode=dns.opcode.NOTIFY)], "no response"),
    ("refused", None, [message(rcode=5)], "the primary answers REFUSED"),
    ("not authoritative", None, [message(rcode=9)], "the primary answers NOTAUTH"),
    ("refused late", None, [message(*FULL[:3]), message(rcode=2)], "the primary answers SERVFAIL"),
    ("truncated", None, [message(*FULL, flags=dns.flags.QR | dns.flags.TC)], "truncated"),
    ("empty", None, [message()], "holds no record"),
    ("no question", None, [message(*FULL, question=None)], "0 questions"),
    ("wrong type", None, [message(*FULL, kind="A")], "another question: A of sec.example."),
    ("wrong zone", None, [message(*FULL, question="other.example.")], "AXFR of other.example."),
    ("wrong class", None, [message(*FULL).replace(IN_SOA, CH_SOA)], "is of class 3"),
    ("not its soa", None, [message(soa(10).replace("@", "www"))], "SOA of www.+ is below"),
    ("another zone's soa", None, [message(soa(10).replace("@", "org."))], "SOA of org. is outside"),
    ("no soa first", None, [message(*FULL[1:])], "begins with NS of sec.example"),
    ("out of zone", None, [message(*FULL[:3], OUT, FULL[-1])], "A of evil.example.org. is outside"),
    ("soa below", None, [message(soa(10), "x" + soa(10)[1:], soa(10))], "is below the apex"),
    ("another last soa", None, [message(*FULL[:-1], soa(11))], "not the one that it began with"),
    ("soa in between", None, [message(*FULL, FULL[1], soa(10))], "follows the last SOA"),
    ("a cname beside", None, [message(soa(1), "a 1 CNAME b", "a 1 A 1.2.3.4", soa(1))], "beside"),
    ("two cnames", None, [message(soa(1), "a 1 CNAME b", "a 1 CNAME c", soa(1))], "more than one"),
    ("older", 11, [message(*FULL, kind="IXFR")], "is at serial 10, behind ours, 11"),
    ("half the space", 10 + 2**31, [message(*FULL, kind="IXFR")], "behind ours"),
    ("an older lone soa", 11, [message(soa(10), kind="IXFR")], "is at serial 10, behind ours, 11"),
    ("from elsewhere", 9, [message(*STEPS, kind="IXFR")], "start at serial 10, not at 9"),
    ("a gap", 10, [message(soa(12), soa(10), soa(11), soa(10), soa(12), soa(12), kind="IXFR")],
     "start at serial 10, not at 11"),
    ("backwards", 10, [message(soa(12), soa(10), soa(9), soa(9), kind="IXFR")], "serial 10 to 9"),
    ("standing still", 10, [message(soa(12), soa(10), soa(10), kind="IXFR")], "serial 10 to 10"),
    ("another end", 10, [message(*STEPS[:-1], "@ 60 SOA ns h 11 9 9 9 9", kind="IXFR")],
     "the last SOA is not"),
    ("differences unasked", None, [message(*STEPS)], "a SOA in it is not"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("have", "messages", "why"),
    [case[1:] for case in REFUSED],
    ids=[case[0] for case in REFUSED],
)
def test_what_is_no_transfer_of_the_zone_is_refused_with_its_reason(
    have: int | None, messages: Sequence[bytes], why: str
) -> None:
    taking = inbound(have)
    for octets in messages[:-1]:
        assert taking.feed(octets) is None  # the fault is in the last
    with pytest.raises(BadTransfer, match=why):
        taking.feed(messages[-1])


def test_a_refusal_carries_its_code() -> None:
    with pytest.raises(BadTransfer) as caught:
        inbound().feed(message(rcode=5))
    assert caught.value.rcode == 5


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(records=4), "more than 4 records"),
        (Limits(octets=100), "100 octets"),
        (Limits(messages=2), "more than 2 messages"),
    ],
)
def test_a_transfer_without_an_end_is_ended(limits: Limits, why: str) -> None:
    taking = inbound(limits=limits)
    with pytest.raises(BadTransfer, match=why):
        fed(taking, [message(line) for line in FULL])


class EveryOther:
    """A verifier that wants a signature, here an octet, on every other message at least."""

    def __init__(self) -> None:
        self.unsigned = 0

    def check(self, octets: bytes) -> bytes:
        self.unsigned = 0 if octets[-1:] == b"!" else self.unsigned + 1
        if self.unsigned > 1:
            raise ValueError("too many messages without a signature")
        return octets.rstrip(b"!")

    def check_end(self) -> None:
        if self.unsigned:
            raise ValueError("the last message is not signed")


def test_signatures_may_have_gaps_and_must_have_an_end() -> None:
    def parts(*signed: int) -> list[bytes]:
        return [message(line) + b"!" * (i in signed) for i, line in enumerate(FULL)]

    taking = inbound(verifier=EveryOther())
    assert isinstance(fed(taking, parts(0, 2, 4)), Whole)
    for signed, why in (((0, 2, 3), "last message"), ((0,), "too many")):
        taking = inbound(verifier=EveryOther())
        with pytest.raises(BadTransfer, match=f"TSIG: .*{why}"):
            fed(taking, parts(*signed))


# --- applying --------------------------------------------------------------------------------


def held(*lines: str) -> dict[names.Name, RRs]:
    found = inbound().feed(message(soa(1), *lines, soa(1)))
    assert isinstance(found, Whole)
    return {key: rrs for key, (_, rrs) in found.owners.items()}


def applied(before: dict[names.Name, RRs], *lines: str) -> dict[str, dict[int, list[bytes]]]:
    found = inbound(1).feed(message(*lines, kind="IXFR"))
    assert isinstance(found, Differences)
    return texts(finish(apply_steps(found.steps, lambda key: before.get(key, {}))))


def test_only_touched_owners_come_out_and_letter_case_does_not_matter() -> None:
    before = held('keep 60 TXT "k"', 'old 60 TXT "o"', "mx 60 MX 1 Mail.sec.example.")
    found = applied(
        before, soa(2), soa(1), 'OLD 60 TXT "o"', "MX 9 MX 1 mail.SEC.example.", soa(2), soa(2)
    )
    assert found == {"OLD.sec.example.": {}, "MX.sec.example.": {}}


def test_what_is_there_already_is_added_once() -> None:
    found = applied(held('a 60 TXT "1"'), soa(2), soa(1), soa(2), 'a 60 TXT "1"', soa(2))
    assert found == {"a.sec.example.": {TXT: [b"\x011"]}}


def test_a_difference_that_deletes_what_is_not_there_is_refused() -> None:
    before = held('a 60 TXT "1"')
    with pytest.raises(BadTransfer, match=r"deletes TXT of a\.sec"):
        applied(before, soa(2), soa(1), 'a 60 TXT "2"', soa(2), soa(2))
    assert before == held('a 60 TXT "1"')


def test_a_difference_that_leads_to_a_cname_beside_other_data_is_refused() -> None:
    with pytest.raises(BadTransfer, match="has a A beside its CNAME"):
        applied(held("a 60 A 192.0.2.1"), soa(2), soa(1), soa(2), "a 60 CNAME b", soa(2))


def test_a_ttl_changes_by_taking_the_records_away_and_adding_them() -> None:
    found = inbound(1).feed(
        message(soa(2), soa(1), "a 60 A 1.2.3.4", soa(2), "a 90 A 1.2.3.4", soa(2), kind="IXFR")
    )
    assert isinstance(found, Differences)
    before = held("a 60 A 1.2.3.4")
    ((_, rrs),) = finish(apply_steps(found.steps, lambda key: before[key])).values()
    assert rrs[A][0] == 90


# --- questions -------------------------------------------------------------------------------


def test_the_questions_are_read_by_others() -> None:
    found = inbound().feed(message(*FULL))
    assert isinstance(found, Whole)
    asked = dns.message.from_wire(transfer.query(ID, APEX, found.version))
    assert asked.question[0].rdtype == dns.rdatatype.IXFR
    assert asked.authority[0].to_text() == (
        "sec.example. 60 IN SOA ns.sec.example. h.sec.example. 10 1 1 3600 60"
    )
    asked = dns.message.from_wire(transfer.query(ID, APEX))
    assert (asked.id, asked.question[0].rdtype) == (ID, dns.rdatatype.AXFR)


def test_the_answer_to_the_soa_question_is_read() -> None:
    found = transfer.read_soa_answer(message(soa(7), kind="SOA"), ID, APEX)
    assert found is not None
    assert found.serial == 7
    truncated = message(kind="SOA", flags=dns.flags.QR | dns.flags.TC)
    assert transfer.read_soa_answer(truncated, ID, APEX) is None
    with pytest.raises(BadTransfer, match="no SOA of the zone"):
        transfer.read_soa_answer(message(soa(7).replace("@", "x"), kind="SOA"), ID, APEX)


# --- octets ----------------------------------------------------------------------------------

COMPRESSED = [
    "a 1 MX 1 mail", "a 1 SRV 1 2 3 target", 'a 1 NAPTR 1 2 "u" "E2U+sip" "!^.*$!a!" next',
    "a 1 RP mbox txt", "a 1 CNAME b", "a 1 DNAME b", "a 1 PX 1 a b", "a 1 SOA a b 1 2 3 4 5",
    "a 1 RRSIG A 8 2 60 20300101000000 20200101000000 1 signer aGVsbG8=", "a 1 AFSDB 1 host",
]  # fmt: skip


@pytest.mark.parametrize("line", COMPRESSED)
def test_names_in_data_are_uncompressed_as_another_implementation_writes_them(line: str) -> None:
    _, _, rtype, data = line.split(None, 3)
    assert read_message(message(line)).answers[0].rdata == rdata_of(rtype, data).to_wire()


def test_compressed_names_are_followed() -> None:
    head = struct.pack("!HHHHHH", 1, 0x8000, 1, 1, 0, 0) + APEX + struct.pack("!HH", 1, 1)
    record = b"\xc0\x0c" + struct.pack("!HHIH", 33, 1, 0, 10) + b"\0\1\0\2\0\3\x01t\xc0\x0c"
    (found,) = read_message(head + record).answers
    assert found.rdata == b"\0\1\0\2\0\3\x01t" + APEX


@given(st.binary(max_size=80), st.integers(0, 200))
def test_any_octets_are_a_message_or_refused(noise: bytes, at: int) -> None:
    whole = bytearray(message(*FULL, *COMPRESSED))
    whole[at : at + len(noise)] = noise
    for octets in (noise, bytes(whole)):
        try:
            read_message(octets)
        except BadMessage:
            continue
