"""A secondary in a few lines: asks for transfers and applies them, strictly."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdatatype
import dns.rrset

from kudurru.domain.ports import QueryHandler

HOME = "127.0.0.1"


class Record(NamedTuple):
    owner: str
    ttl: int
    rtype: str
    rdata: str

    @property
    def serial(self) -> int:
        return int(self.rdata.split()[2])


Version = frozenset[Record]


def transfer_query(zone: str, serial: int | None = None, **options: object) -> dns.message.Message:
    """AXFR, or IXFR from a serial."""
    rtype = "AXFR" if serial is None else "IXFR"
    query = dns.message.make_query(zone, rtype, **options)  # type: ignore[arg-type]  # as dnspython takes them
    query.flags = dns.flags.Flag(0)
    if serial is not None:
        query.authority.append(dns.rrset.from_text(zone, 0, "IN", "SOA", f". . {serial} 0 0 0 0"))
    return query


def wires(
    handler: QueryHandler, packet: bytes, *, client: str = HOME, proto: str = "tcp"
) -> Iterator[bytes]:
    """Messages of the answer, each made when it is asked for."""
    reply = handler.handle(packet, client, proto)
    assert reply is not None
    yield reply.wire  # type: ignore[union-attr]  # nothing here answers later
    yield from reply.more or ()  # type: ignore[union-attr]


def read(wire: bytes) -> list[Record]:
    """Records of a message of a transfer, as they stand there."""
    message = dns.message.from_wire(wire, one_rr_per_rrset=True, xfr=True)
    assert message.rcode() == dns.rcode.NOERROR, dns.rcode.to_text(message.rcode())
    assert len(message.question) == 1
    return [
        Record(r.name.to_text(), r.ttl, dns.rdatatype.to_text(r.rdtype), r[0].to_text())
        for r in message.answer
    ]


def fetch(
    handler: QueryHandler, zone: str, serial: int | None = None, *, proto: str = "tcp"
) -> list[Record]:
    """All records, owners in lower case: the case of letters is no content (RFC 4343)."""
    packet = transfer_query(zone, serial).to_wire()
    return [
        record._replace(owner=record.owner.lower())
        for wire in wires(handler, packet, proto=proto)
        for record in read(wire)
    ]


def full(records: Iterable[Record]) -> Version:
    """The zone that an AXFR carries."""
    listed = list(records)
    assert listed[0] == listed[-1]
    assert listed[0].rtype == "SOA"
    whole = frozenset(listed)
    assert len(whole) == len(listed) - 1, "a record is sent twice"
    assert [r.rtype for r in whole].count("SOA") == 1
    return whole


def serial_of(version: Version) -> int:
    return next(r.serial for r in version if r.rtype == "SOA")


def apply(version: Version, records: list[Record]) -> Version:
    """What a version becomes by the answer to an IXFR (RFC 1995 section 4). Nothing is deleted that
    is not there, and nothing added that is."""
    if len(records) == 1:
        assert records[0].rtype == "SOA"
        return version
    if records[1].rtype != "SOA":
        return full(records)
    assert records[0] == records[-1]
    current, at = set(version), 1
    while at < len(records) - 1:
        assert records[at].serial == serial_of(frozenset(current))
        gone, at = _step(records, at)
        new, at = _step(records, at)
        assert current >= gone, f"deletes what is not there: {gone - current}"
        current -= gone
        assert not current & new, f"adds what is there: {current & new}"
        current |= new
    assert records[-1] in current
    return frozenset(current)


def _step(records: list[Record], at: int) -> tuple[set[Record], int]:
    end = at + 1
    while records[end].rtype != "SOA":
        end += 1
    return set(records[at:end]), end
