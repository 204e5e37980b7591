"""What options of a query do to its answer."""

import struct

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import pytest

from kudurru.domain.dns.messages import COOKIE, EXTENDED_ERROR, NSID
from tests.conformance.answers import pipeline_of
from tests.packets import query
from tests.zone_files import zone_from_text

ZONE = "z. 60 IN SOA ns.z. host.z. 1 3600 600 86400 300\nz. 60 IN NS ns.z.\nz. 60 IN A 192.0.2.1"
CLIENT = b"12345678"


@pytest.fixture
def pipeline():
    return pipeline_of(zone_from_text(ZONE, "z."))


def ask(pipeline, packet: bytes, client: str = "192.0.2.9", proto: str = "udp"):
    reply = pipeline.handle(packet, client, proto)
    assert reply is not None
    return dns.message.from_wire(reply.wire), reply.memo


def asked(cookie: bytes, name: str = "z.") -> bytes:
    option = dns.edns.GenericOption(COOKIE, cookie)
    return dns.message.make_query(name, "A", use_edns=0, options=[option]).to_wire()


def cookie_of(message: dns.message.Message) -> bytes:
    (option,) = (one for one in message.options if one.otype == COOKIE)
    return option.to_wire()


def cookie_only(cookie: bytes) -> bytes:
    option = struct.pack("!2H", COOKIE, len(cookie)) + cookie
    opt = b"\0" + struct.pack("!2HIH", 41, 1232, 0, len(option)) + option
    return struct.pack("!6H", 7, 0, 0, 0, 0, 1) + opt


@pytest.mark.parametrize("proto", ["udp", "tcp", "https"])
def test_a_client_with_a_cookie_gets_one_of_ours_and_its_answer(pipeline, proto: str) -> None:
    answer, is_shared = ask(pipeline, asked(CLIENT), proto=proto)
    first = cookie_of(answer)
    assert (first[:8], len(first), len(answer.answer), is_shared) == (CLIENT, 24, 1, False)
    answer, _ = ask(pipeline, asked(first), proto=proto)
    assert cookie_of(answer) == first
    assert len(answer.answer) == 1


def test_a_wrong_cookie_gets_its_answer_and_a_right_one(pipeline) -> None:
    wrong = CLIENT + bytes(16)
    answer, _ = ask(pipeline, asked(wrong))
    assert answer.rcode() == dns.rcode.NOERROR
    assert len(answer.answer) == 1
    assert cookie_of(answer) not in (wrong, CLIENT)


@pytest.mark.parametrize("size", [0, 7, 9, 15, 41])
def test_a_cookie_of_no_length_that_they_have_is_a_fault_of_form(pipeline, size: int) -> None:
    answer, _ = ask(pipeline, asked(bytes(size)))
    assert answer.rcode() == dns.rcode.FORMERR
    assert not answer.answer
    assert not answer.options


def test_a_refusal_has_a_cookie_too(pipeline) -> None:
    answer, _ = ask(pipeline, asked(CLIENT, "elsewhere."))
    assert answer.rcode() == dns.rcode.REFUSED
    assert cookie_of(answer)[:8] == CLIENT


def test_a_message_may_ask_for_a_cookie_and_nothing_else(pipeline) -> None:
    """RFC 7873 section 5.4."""
    answer, _ = ask(pipeline, cookie_only(CLIENT))
    assert (answer.rcode(), answer.question) == (dns.rcode.NOERROR, [])
    right = cookie_of(answer)
    assert ask(pipeline, cookie_only(right))[0].rcode() == dns.rcode.NOERROR
    answer, _ = ask(pipeline, cookie_only(CLIENT + bytes(16)))
    assert answer.rcode() == dns.rcode.BADCOOKIE
    assert cookie_of(answer) == right
    assert ask(pipeline, cookie_only(b"123"))[0].rcode() == dns.rcode.FORMERR


@pytest.mark.parametrize(
    "packet",
    [
        struct.pack("!6H", 7, 0, 0, 0, 0, 0),
        struct.pack("!6H", 7, 0, 0, 0, 0, 1) + b"\0" + struct.pack("!2HIH", 41, 1232, 0, 0),
        struct.pack("!6H", 7, 0, 2, 0, 0, 0) + b"\1z\0\0\1\0\1" * 2,
        struct.pack("!6H", 7, 0, 1, 0, 0, 0),
    ],
    ids=["none", "none with EDNS", "two", "one that is not there"],
)
def test_a_message_without_one_question_is_a_fault_of_form(pipeline, packet: bytes) -> None:
    assert ask(pipeline, packet)[0].rcode() == dns.rcode.FORMERR


def test_options_of_another_edns_version_are_not_read(pipeline) -> None:
    packet = bytearray(asked(b"123"))
    opt = packet.index(b"\0\0\x29", 12)
    packet[opt + 6] = 1
    answer, _ = ask(pipeline, bytes(packet))
    assert answer.rcode() == dns.rcode.BADVERS


@pytest.mark.parametrize("opcode", [1, 2, 3, 4, 5, 6, 15])
def test_other_opcodes_are_not_implemented(pipeline, opcode: int) -> None:
    reply = pipeline.handle(query("z", flags=opcode << 11 | 0x0100), "192.0.2.9", "udp")
    assert reply.wire == struct.pack("!6H", 7, 0x8104 | opcode << 11, 0, 0, 0, 0)


def test_class_any_is_answered_from_class_in_without_authority(pipeline) -> None:
    """RFC 1035 section 6.2."""
    answer, _ = ask(pipeline, query("z", qclass=255))
    assert answer.rcode() == dns.rcode.NOERROR
    assert len(answer.answer) == 1
    assert not answer.flags & dns.flags.AA
    assert ask(pipeline, query("z", qclass=255, qtype=99))[0].authority
    assert ask(pipeline, query("health.kudurru.internal", qclass=255))[0].rcode() == 5


@pytest.mark.parametrize("qtype", [0, 41, 65280, 65535, 249, 253, 254])
def test_a_type_that_nobody_has_is_no_data(pipeline, qtype: int) -> None:
    answer, _ = ask(pipeline, query("z", qtype))
    assert answer.rcode() == dns.rcode.NOERROR
    assert not answer.answer
    assert len(answer.authority) == 1


@pytest.mark.parametrize(
    ("packet", "code"),
    [("elsewhere. A IN", 20), ("z. AXFR IN", 18), ("z. A CH", 20), ("z. A IN", None)],
)
def test_a_refusal_says_why_to_those_who_can_read_it(pipeline, packet: str, code) -> None:
    message = dns.message.make_query(*packet.split(), use_edns=0)
    answer, _ = ask(pipeline, message.to_wire())
    assert [int(one.code) for one in answer.options if one.otype == EXTENDED_ERROR] == (
        [] if code is None else [code]
    )
    message = dns.message.make_query(*packet.split(), use_edns=False)
    assert ask(pipeline, message.to_wire())[0].edns == -1


def test_a_node_with_a_name_tells_it_to_those_who_ask(pipeline) -> None:
    message = dns.message.make_query("z.", "A", use_edns=0, options=[dns.edns.NSIDOption(b"")])
    answer, is_shared = ask(pipeline, message.to_wire())
    assert [(one.otype, one.nsid) for one in answer.options] == [(NSID, b"node")]
    assert is_shared


def test_the_longest_question_with_every_option_is_within_the_smallest_answer() -> None:
    """RFC 1035 section 2.3.4: 512 octets, also for what only says that it does not fit."""
    pipeline = pipeline_of(zone_from_text(ZONE, "z."), node="n" * 1000)
    name = ".".join(["a" * 63] * 3 + ["a" * 59]) + ".y."
    options = [dns.edns.NSIDOption(b""), dns.edns.GenericOption(COOKIE, CLIENT)]
    message = dns.message.make_query(name, "A", use_edns=0, payload=512, options=options)
    reply = pipeline.handle(message.to_wire(), "2001:db8::1", "udp")
    assert len(reply.wire) <= 512
    answer = dns.message.from_wire(reply.wire)
    assert {one.otype for one in answer.options} == {NSID, COOKIE, EXTENDED_ERROR}
