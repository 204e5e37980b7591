"""Names that no upstream should ever be asked for, answered here.

RFC 6761 (localhost, invalid, test), RFC 6762 (local), RFC 7686 (onion), RFC 8375 (home.arpa),
RFC 9476 (alt), RFC 9462 (resolver.arpa), RFC 9665 (service.arpa), the reverse zones of RFC 6303
and RFC 7793, and the name by which browsers ask whether to bypass the local resolver.
"""

from collections import Counter

from kudurru.domain.dns import names
from kudurru.domain.dns.lookup import NOERROR, NXDOMAIN
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import AAAA, ANY, DS, NS, PTR, SOA, A
from kudurru.domain.dns.records import CLASS_IN
from kudurru.domain.dns.responses import Message

TTL_S = 10_800  # RFC 6303 section 3

LOCALHOST = names.key(names.from_text("localhost."))
CANARY = names.key(names.from_text("use-application-dns.net."))
DESIGNATION = names.key(names.from_text("resolver.arpa."))

_EMPTY = (
    *("invalid.", "test.", "local.", "onion.", "alt.", "home.arpa.", "service.arpa."),
    *("0.in-addr.arpa.", "127.in-addr.arpa.", "10.in-addr.arpa.", "254.169.in-addr.arpa."),
    *(f"{i}.172.in-addr.arpa." for i in range(16, 32)),
    *(f"{i}.100.in-addr.arpa." for i in range(64, 128)),
    *("168.192.in-addr.arpa.", "2.0.192.in-addr.arpa.", "100.51.198.in-addr.arpa."),
    *("113.0.203.in-addr.arpa.", "255.255.255.255.in-addr.arpa."),
    *("0." * 32 + "ip6.arpa.", "1." + "0." * 31 + "ip6.arpa.", "d.f.ip6.arpa."),
    *(f"{digit}.e.f.ip6.arpa." for digit in "89ab"),
    "8.b.d.0.1.0.0.2.ip6.arpa.",
)
EMPTY_ZONES = frozenset(names.key(names.from_text(text)) for text in _EMPTY)
"""Zones that exist and hold nothing."""

LOOPBACK_NAMES = frozenset(
    names.key(names.from_text(text))
    for text in ("1.0.0.127.in-addr.arpa.", "1." + "0." * 31 + "ip6.arpa.")
)
"""Their PTR is localhost, as people expect it (RFC 1912 section 4.1)."""

_ARPA = names.from_text("arpa.")

_LOOPBACK = {A: bytes((127, 0, 0, 1)), AAAA: bytes(15) + b"\1"}
_SOA_TAIL = b"".join(n.to_bytes(4, "big") for n in (1, 3600, 1200, 604_800, TTL_S))
_NOBODY = names.from_text("nobody.invalid.")


def zones(*, with_canary: bool, with_designation: bool) -> frozenset[bytes]:
    """Keys of all special zones that are wanted."""
    wanted = {LOCALHOST, *EMPTY_ZONES}
    if with_canary:
        wanted.add(CANARY)
    if with_designation:
        wanted.add(DESIGNATION)
    return frozenset(wanted)


def ends_of(zones: frozenset[bytes]) -> tuple[bytes, ...]:
    """What every name in a special zone ends in: few endings, by which most other names are told
    from them at once."""
    tops = Counter(map(_top, zones))
    return tuple({zone if tops[_top(zone)] == 1 else _top(zone) for zone in zones})


def _top(zone: bytes) -> Name:
    return names.from_labels(names.labels(zone)[-1:])


def special_zone(name: bytes, zones: frozenset[bytes]) -> Name | None:
    """The one of `zones` that a name (a key) is in."""
    at = 0
    while name[at]:
        suffix = name[at:]
        if suffix in zones:
            return Name(suffix)
        at += name[at] + 1
    return None


def is_of_the_parent(zone: Name, name: bytes, qtype: int) -> bool:
    """Whether a question about a special zone is one for the zone above it, which exists in public:
    who validates wants its proof that the special one is not signed (RFC 8375 section 4)."""
    return qtype == DS and name == zone and zone.endswith(_ARPA)


def special_answer(zone: Name, name: bytes, qtype: int) -> Message:
    """What is said of a name in a special zone."""
    if zone == LOCALHOST:
        found = [(t, data) for t, data in _LOOPBACK.items() if qtype in (t, ANY)]
        if found:
            body = b"".join(_record(b"\xc0\x0c", rtype, data) for rtype, data in found)
            return Message(NOERROR, (len(found), 0, 0), body)
        return _negative(zone, NOERROR)
    if name in LOOPBACK_NAMES and qtype in (PTR, ANY):
        return Message(NOERROR, (1, 0, 0), _record(b"\xc0\x0c", PTR, LOCALHOST))
    if name != zone and any(names.is_within(one, name) for one in LOOPBACK_NAMES):
        return _negative(zone, NOERROR)  # there is something at it, or below
    if name == zone and zone != CANARY:
        if qtype == SOA:
            return Message(NOERROR, (1, 0, 0), _record(b"\xc0\x0c", SOA, _soa(zone)))
        if qtype == NS:
            return Message(NOERROR, (1, 0, 0), _record(b"\xc0\x0c", NS, zone))
        return _negative(zone, NOERROR)
    if names.is_within(name, DESIGNATION):
        return _negative(zone, NOERROR)  # RFC 9462 section 6.4
    return _negative(zone, NXDOMAIN)


def _negative(zone: Name, rcode: int) -> Message:
    return Message(rcode, (0, 1, 0), _record(zone, SOA, _soa(zone)), is_negative=True)


def _soa(zone: Name) -> bytes:
    return zone + _NOBODY + _SOA_TAIL


def _record(owner: bytes, rtype: int, rdata: bytes) -> bytes:
    fixed = rtype.to_bytes(2, "big") + CLASS_IN.to_bytes(2, "big") + TTL_S.to_bytes(4, "big")
    return owner + fixed + len(rdata).to_bytes(2, "big") + rdata
