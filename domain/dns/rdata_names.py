"""Where the names in rdata of a message are, so that a record can be taken out of the message.

A name may be compressed against anything before it. Whoever copies rdata elsewhere writes its
names in full. RFC 3597 section 4 has three kinds of types: those of RFC 1035 may be compressed;
older ones that senders once compressed are read so, and never sent; in later ones a pointer is an
error, since everybody may take their rdata for plain octets.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from kudurru.domain.dns import names
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.record_types import type_from_text


class Found(NamedTuple):
    """Names that follow each other, and the offsets where the first begins and the last ends."""

    start: int
    end: int
    names: tuple[Name, ...]
    may_be_sent: bool
    """They are written as a sender may write them; else they have to be written in full."""
    letters_count: bool
    """They are signed in the letters that they have; others are in lower case (RFC 4034 section
    6.2)."""


def find_names(message: bytes, at: int, end: int, rtype: int) -> Found | None:
    """The names in rdata from `at` to `end`; None where its type has none. What else is in the
    rdata is not looked at, but for its length where that is fixed. Raises BadName, or IndexError
    where the message ends too soon."""
    layout = _LAYOUTS.get(rtype)
    if layout is None:
        return None
    before = layout.before if isinstance(layout.before, int) else layout.before(message, at)
    if before is None:
        return None
    start = at = at + before
    found: list[Name] = []
    while len(found) != layout.names if layout.names is not None else at < end:
        if at >= end:
            raise BadName("a name in rdata is missing")
        name, after = names.from_wire(message, at)
        if layout.kind == NEVER and after - at != len(name):
            raise BadName("a name is compressed in rdata of a type where none may be")
        found.append(name)
        at = after
    if at > end or (layout.behind is not None and at + layout.behind != end):
        raise BadName("rdata is longer or shorter than its fields")
    may_be_sent = layout.kind == USUAL or at - start == sum(map(len, found))
    return Found(start, at, tuple(found), may_be_sent, layout.kind == NEVER)


def plain_rdata(message: bytes, at: int, end: int, found: Found | None) -> bytes:
    """The rdata with its names in full."""
    if found is None:
        return message[at:end]
    return message[at : found.start] + b"".join(found.names) + message[found.end : end]


_Before = Callable[[bytes, int], int | None]
"""(message, start of rdata) to octets before the first name; None: there is no name."""


_Kind = Literal["usual", "read only", "never"]
"""How far names may be compressed: written so, read so, or not at all."""

USUAL: Final = "usual"
READ_ONLY: Final = "read only"
NEVER: Final = "never"


class _Layout(NamedTuple):
    before: int | _Before
    names: int | None  # None: as many as there are
    behind: int | None  # octets behind the last name; None: any number
    kind: _Kind


def _naptr(message: bytes, at: int) -> int:
    before = 4
    for _ in range(3):
        where = at + before
        before += 1 + (message[where] if where < len(message) else 0)
    return before


def _gateway(kind_at: int, size: int) -> _Before:
    """A gateway is a name where the kind octet, its top bit aside, says 3 (RFC 4025 section 2.3,
    RFC 8777 section 4.2.3)."""
    return lambda message, at: size if message[at + kind_at : at + kind_at + 1] in _NAMED else None


_NAMED = (b"\x03", b"\x83")


def _a6(message: bytes, at: int) -> int | None:
    """RFC 2874 section 3.1: the octets of an address that a prefix leaves, then who has the prefix,
    unless it is empty."""
    prefix = message[at]
    return 1 + (128 - min(prefix, 128) + 7) // 8 if prefix else None


def _hip(message: bytes, at: int) -> int:
    """RFC 8005 section 5: two lengths, a tag, a key; then come rendezvous servers."""
    return 4 + message[at] + int.from_bytes(message[at + 2 : at + 4], "big")


_ROWS: tuple[tuple[int | _Before, int | None, int | None, _Kind, str], ...] = (
    (0, 1, 0, USUAL, "NS MD MF CNAME MB MG MR PTR"),
    (0, 2, 0, USUAL, "MINFO"),
    (0, 2, 20, USUAL, "SOA"),
    (2, 1, 0, USUAL, "MX"),
    (0, 1, 0, READ_ONLY, "DNAME NSAP-PTR"),
    (0, 1, None, READ_ONLY, "NXT"),
    (0, 2, 0, READ_ONLY, "RP"),
    (2, 1, 0, READ_ONLY, "AFSDB RT KX"),
    (2, 2, 0, READ_ONLY, "PX"),
    (6, 1, 0, READ_ONLY, "SRV"),
    (18, 1, None, READ_ONLY, "SIG RRSIG"),
    (_naptr, 1, 0, READ_ONLY, "NAPTR"),
    (0, 1, None, NEVER, "NSEC"),
    (0, 2, 0, NEVER, "TALINK"),
    (2, 1, None, NEVER, "SVCB HTTPS"),
    (2, 1, 0, NEVER, "LP"),
    (5, 1, 0, NEVER, "DSYNC"),
    (_gateway(1, 3), 1, None, NEVER, "IPSECKEY"),
    (_gateway(1, 2), 1, 0, NEVER, "AMTRELAY"),
    (_a6, 1, 0, NEVER, "A6"),
    (_hip, None, 0, NEVER, "HIP"),
)
_LAYOUTS: dict[int, _Layout] = {
    type_from_text(mnemonic): _Layout(before, count, behind, kind)
    for before, count, behind, kind, mnemonics in _ROWS
    for mnemonic in mnemonics.split()
}
