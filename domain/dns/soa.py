"""The SOA record of a zone (RFC 1035 section 3.3.13), whose serial the zone gives."""

from struct import Struct as Layout

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.images import QUESTION_POINTER, RR_HEAD
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import SOA
from kudurru.domain.dns.records import CLASS_IN

_SOA_NUMBERS = Layout("!IIIII")
_TYPE_AND_TTL = Layout("!HI")


class Soa(msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A SOA record but for its serial (RFC 1035 section 3.3.13). Times are in seconds."""

    mname: Name
    rname: Name
    refresh: int
    retry: int
    expire: int
    minimum: int
    ttl: int

    def rdata(self, serial: int) -> bytes:
        times = (serial, self.refresh, self.retry, self.expire, self.minimum)
        return self.mname + self.rname + _SOA_NUMBERS.pack(*times)

    @property
    def negative_ttl(self) -> int:
        """How long a "no" may be kept (RFC 2308 section 5)."""
        return min(self.ttl, self.minimum)

    def negative_parts(self, serial: int, apex: Name) -> tuple[bytes, ...]:
        """The record of a negative answer, cut where a pointer to the apex, a key, belongs. A
        question's name ends in the apex, so `pointer.join(parts)` is the record, compressed."""
        parts = [b"", b""]
        for name in (self.mname, self.rname):
            if names.is_within(name, apex):
                parts[-1] += name[: len(name) - len(apex)]
                parts.append(b"")
            else:
                parts[-1] += name
        parts[-1] += self.rdata(serial)[-_SOA_NUMBERS.size :]
        length = sum(map(len, parts)) + len(QUESTION_POINTER) * (len(parts) - 2)
        head = RR_HEAD.pack(b"", SOA, CLASS_IN, self.negative_ttl, length)
        parts[1] = head[len(QUESTION_POINTER) :] + parts[1]
        return tuple(parts)


def soa_element(key: bytes, soa: Soa) -> bytes:
    """Of a zone's digest: the serial is left out."""
    numbers = _SOA_NUMBERS.pack(0, soa.refresh, soa.retry, soa.expire, soa.minimum)[4:]
    rdata = soa.mname + soa.rname + numbers
    return b"".join((key, _TYPE_AND_TTL.pack(SOA, soa.ttl), len(rdata).to_bytes(2, "big"), rdata))
