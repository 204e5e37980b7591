"""Fuzz target of the answer path: any octets that come in a datagram or a message, through limiter,
memo and pipeline. What must hold of every reply is in `check`, which the fast suite uses too."""

from collections.abc import Callable

import dns.flags
import dns.message

from kudurru.adapters.dns.memo import Memo
from kudurru.domain.dns.messages import TCP_MAX, UDP_EDNS_MAX
from kudurru.domain.settings import RatelimitSettings
from kudurru.projections.pipeline.pipeline import Pipeline
from kudurru.projections.pipeline.ratelimit import RateLimiter
from tests.conformance.answers import pipeline_of
from tests.logs import StillClock
from tests.zone_files import zone_from_text

ZONE = """
z. 60 IN SOA ns.z. host.z. 1 3600 600 86400 300
z. 60 IN NS ns.z.
z. 60 IN MX 1 a.z.
ns.z. 60 IN A 192.0.2.53
a.z. 60 IN A 192.0.2.1
B.z. 60 IN CNAME A.z.
*.w.z. 60 IN TXT "text"
loop.z. 60 IN CNAME loop.z.
d.z. 60 IN DNAME w.z.
sub.z. 60 IN NS ns.sub.z.
ns.sub.z. 60 IN A 192.0.2.2
s.z. 60 IN HTTPS 1 . alpn=h2
"""
CLIENT, ADDRESS = "192.0.2.9", bytes((192, 0, 2, 9))


class Rig:
    """Everything a packet meets, each kept from one packet to the next."""

    def __init__(self) -> None:
        self.pipeline: Pipeline = pipeline_of(zone_from_text(ZONE, "z."))
        settings = RatelimitSettings(ipv4={32: 1}, exempt=(), slip=100)
        self.limiter = RateLimiter(settings, StillClock())
        self.memo = Memo(entries_max=64)

    def take(self, packet: bytes) -> None:
        self.limited(packet)
        for proto in ("udp", "tcp"):
            if len(packet) >= 12:
                self.answered(packet, proto)

    def limited(self, packet: bytes) -> None:
        """The first query is within the limit, all others are over it."""
        verdicts = self.limiter.admit([ADDRESS], [packet[2:]])
        if verdicts is not None and verdicts[0]:
            reply = packet[:2] + verdicts[0]
            check(packet, reply, len(packet) + 11)
            assert reply[2] & 2, "no TC"
            assert reply[6:10] == bytes(4), "records"

    def answered(self, packet: bytes, proto: str) -> None:
        era = self.memo.era
        reply = self.pipeline.handle(packet, CLIENT, proto)
        if reply is None:
            assert packet[2] & 0x80, "only a response gets no answer"
            return
        check(packet, reply.wire, UDP_EDNS_MAX if proto == "udp" else TCP_MAX)
        if reply.memo and proto == "udp":
            self.memo.store(era, packet, reply.wire)
            kept = self.memo.find(packet)
            assert kept in (None, reply.wire), "the memo changes an answer"


def check(packet: bytes, wire: bytes, limit: int) -> None:
    """What holds of every reply to a message, whatever the message is."""
    assert len(wire) <= max(limit, 12)
    assert wire[:2] == packet[:2]
    assert wire[2] & 0x80
    assert (wire[2] ^ packet[2]) & 0x79 == 0, "opcode and RD come back"
    assert not wire[3] & 0x70, "no RA, Z or AD"
    assert not packet[2] & 0x80, "a response was answered"
    answer = dns.message.from_wire(wire, ignore_trailing=False)
    if answer.question:
        end = 12 + len(answer.question[0].name.to_wire()) + 4
        assert wire[12:end] == packet[12:end], "the question comes back octet for octet"
        assert wire[4:6] == b"\0\1"


def packet() -> Callable[[bytes], None]:
    return Rig().take
