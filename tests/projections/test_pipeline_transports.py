"""What an answer has of the transport that carries it."""

import dns.edns
import dns.message
import dns.rcode
import pytest

from kudurru.domain.dns.messages import KEEPALIVE, PADDING
from kudurru.domain.ports import STREAM_IDLE_S
from tests.conformance.answers import pipeline_of
from tests.zone_files import zone_from_text

PROTOCOLS = ("udp", "tcp", "tls", "https", "h3", "quic")
ZONE = "z. 60 IN SOA ns.z. host.z. 1 3600 600 86400 300\nz. 60 IN NS ns.z.\nz. 60 IN A 192.0.2.1"


def ask(proto: str, *options: dns.edns.Option) -> tuple[dns.message.Message, int]:
    query = dns.message.make_query("z.", "A", use_edns=0, options=list(options))
    reply = pipeline_of(zone_from_text(ZONE, "z.")).handle(query.to_wire(), "192.0.2.9", proto)
    assert reply is not None
    return dns.message.from_wire(reply.wire), len(reply.wire)


@pytest.mark.parametrize("proto", PROTOCOLS)
def test_padding_is_answered_where_it_hides_something(proto: str) -> None:
    reply, size = ask(proto, dns.edns.GenericOption(PADDING, bytes(64)))
    is_encrypted = proto not in ("udp", "tcp")
    assert [one.otype for one in reply.options] == [PADDING] * is_encrypted
    assert (size % 468 == 0) == is_encrypted


@pytest.mark.parametrize("proto", PROTOCOLS)
def test_a_query_without_padding_gets_none(proto: str) -> None:
    reply, _ = ask(proto)
    assert not reply.options


@pytest.mark.parametrize("proto", PROTOCOLS)
def test_streams_tell_how_long_they_may_idle(proto: str) -> None:
    reply, _ = ask(proto, dns.edns.GenericOption(KEEPALIVE, b""))
    units = STREAM_IDLE_S * 10  # of 100 ms
    expected = [(KEEPALIVE, units.to_bytes(2, "big"))] if proto in ("tcp", "tls") else []
    assert [(one.otype, one.to_wire()) for one in reply.options] == expected


@pytest.mark.parametrize("proto", PROTOCOLS)
def test_a_timeout_in_a_query_is_a_fault_where_the_option_means_something(proto: str) -> None:
    reply, _ = ask(proto, dns.edns.GenericOption(KEEPALIVE, b"\0\x64"))
    rcode = dns.rcode.FORMERR if proto in ("tcp", "tls") else dns.rcode.NOERROR
    assert reply.rcode() == rcode
