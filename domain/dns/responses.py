"""Answers of other servers: what is taken of them, and the form they are kept in.

A response is read once. Kept is what answers the question and nothing else: records that the
question did not ask for are dropped before anybody can see or store them (RFC 2181 section 5.4.1,
RFC 5452 section 6). Most responses hold nothing else, and their octets are kept as they are: they
follow a question of the same length, so compression pointers into it stay right in every letter
case. OPT is between two hops and is never kept (RFC 6891 section 6.1.1).

Letter case means nothing (RFC 4343), but nobody is shown letters that chance gave our question:
what points into it takes on those of whoever asks, and what was copied out of it is in lower case.
"""

from collections.abc import Iterator
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812  # the name says what it is

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.images import QUESTION_POINTER
from kudurru.domain.dns.lookup import FORMERR, NOERROR, NOTIMP, NXDOMAIN, REFUSED, SERVFAIL
from kudurru.domain.dns.messages import (
    AD,
    COOKIE,
    EXTENDED_ERROR,
    HEADER_SIZE,
    TC,
    TCP_MAX,
    find_option,
)
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.rdata_names import Found, find_names, plain_rdata
from kudurru.domain.dns.record_types import (
    AAAA,
    ANY,
    CNAME,
    DNAME,
    DS,
    HTTPS,
    NS,
    NSEC,
    NSEC3,
    OPT,
    RRSIG,
    SOA,
    SVCB,
    TXT,
    A,
)
from kudurru.domain.dns.records import RDATA_MAX

TTL_MAX_S = 0x7FFF_FFFF
"""A TTL with its top bit set counts as zero (RFC 2181 section 8)."""

RECORDS_MAX = 4096
"""Records of one response: 64 KiB hold about that many of the smallest kind."""

CHAIN_MAX = 32
"""Aliases in one response. What is longer is a loop, or a joke."""

_HEADER = Layout("!HHHHHH")
_RR_FIXED = Layout("!HHIH")


_SIZES = {A: 4, AAAA: 16}
SERVICES = frozenset({SVCB, HTTPS})
_PROOFS = frozenset({NSEC, NSEC3, RRSIG})

_QUESTIONLESS = frozenset({FORMERR, SERVFAIL, NOTIMP, REFUSED})
"""Codes of a server that did not look at the question, and may leave it out."""


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a response says, without its header, question and OPT.

    `body` is the octets behind the question; `ttls_at` are the offsets of its TTLs. `ttl_s` is for
    how long it may be kept: the smallest TTL of it, of a negative answer as RFC 2308 has it, and
    None where it must not be kept at all.
    """

    rcode: int
    counts: tuple[int, int, int] = (0, 0, 0)
    body: bytes = b""
    ttls_at: tuple[int, ...] = ()
    ttl_s: int | None = None
    is_negative: bool = False
    is_authentic: bool = False  # validated by an upstream that is trusted with it (AD)
    extended_error: int | None = None  # of RFC 8914


class KeptAnswer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An answer of a cache, with the time it expires as the wall clock has it."""

    key: bytes
    expires_us: int
    ttl_us: int
    upstream: str
    message: Message


class Malformed(ValueError):
    """A response that does not parse, or does not fit its question; the message says why."""


def is_answer_to(question: bytes, packet: bytes) -> bool:
    """Whether a packet is a response to a query with this question: QR, opcode, and the question
    octet for octet, so that letters played with count too (draft-vixie-dnsext-dns0x20). IDs are
    the business of whoever keeps them.

    A server that does not understand a query may leave the question out (RFC 1035 section 4.1.1);
    such a response has nothing but its code.
    """
    if len(packet) < HEADER_SIZE or packet[2] & 0xF8 != 0x80:
        return False
    if packet[4:6] == b"\0\1":
        return packet.startswith(question, HEADER_SIZE)
    return packet[4:12] == bytes(8) and packet[3] & 0xF in _QUESTIONLESS


def is_answer_but_for_letters(question: bytes, packet: bytes) -> bool:
    """Whether it would be one if letter case did not count: a forgery, or a server that does not
    keep the letters."""
    end = HEADER_SIZE + len(question) - 4
    same = packet[:HEADER_SIZE] + packet[HEADER_SIZE:end].lower() + packet[end:]
    return is_answer_to(question[:-4].lower() + question[-4:], same)


def is_truncated(packet: bytes) -> bool:
    return bool(packet[2] & TC >> 8)


def read_response(question: bytes, packet: bytes, *, is_trusted: bool = False) -> Message:
    """What a response to a question says, as far as it belongs to the question.

    `is_trusted`: its AD bit is believed. Raises Malformed.
    """
    try:
        if (simple := _read_simple(question, packet, is_trusted)) is not None:
            return simple
        return Reader(question, packet).read(is_trusted)
    except (BadName, LayoutError, IndexError) as fault:
        raise Malformed(str(fault) or "it is cut short") from None


def cookie_of(question: bytes, packet: bytes) -> bytes | None:
    """The cookie that a response shows, None where it has none. Looked for in an OPT record that
    is the last and has nothing else, which is usual, before the records are gone through."""
    end = packet[-_OPT_SIZE:]
    if not packet[11] or (end[:3] == _OPT_HEAD and end[9:] == b"\0\0"):
        return None  # no additional records, or an OPT record without options
    for size in _USUAL_COOKIES:
        at = len(packet) - size - _OPTION_AT
        if at > HEADER_SIZE and packet[at : at + 3] == _OPT_HEAD:
            found = find_cookie(packet, at)
            if found is not None:
                return found
    try:
        reader = Reader(question, packet)
        reader.records()
        return find_option(reader.opt, COOKIE) if reader.opt else None
    except (BadName, LayoutError, IndexError, Malformed):
        return None


def find_cookie(packet: bytes, at: int) -> bytes | None:
    """The cookie of an OPT record that holds it only, and ends the packet."""
    length, code, size = _OPTION_HEAD.unpack_from(packet, at + 9)
    if code != COOKIE or length != size + 4 or at + _OPTION_AT + size != len(packet):
        return None
    return packet[at + _OPTION_AT :]


_USUAL_COOKIES = (24, 16)  # octets: RFC 9018, and what RFC 7873 appendix B.1 shows
_OPTION_HEAD = Layout("!HHH")  # length of the options, code and length of the first
_OPTION_AT = 15  # octets of an OPT record before the data of its first option
_OPT_HEAD = b"\0" + OPT.to_bytes(2, "big")
_OPT_SIZE = 11  # of a record without options
_COOKIE_CODE = COOKIE.to_bytes(2, "big")
_SIMPLE = frozenset({A, AAAA, TXT})
_SIMPLE_RR = Layout("!6sIH")
_ONE_RR = (1, 0, 0), (6,)
"""Counts and places of TTLs of most answers, held once for all of them."""


def _read_simple(question: bytes, packet: bytes, is_trusted: bool) -> Message | None:
    """The most usual response in one go: addresses of the very name that was asked for, and at
    most an OPT record with nothing but a cookie. None: it is another, or not well formed."""
    _, flags, questions, count, authorities, additionals = _HEADER.unpack_from(packet)
    start = at = HEADER_SIZE + len(question)
    qtype = question[-4] << 8 | question[-3]
    if (
        not count
        or questions != 1
        or authorities
        or additionals > 1
        or flags & (TC | 0xF)
        or qtype not in _SIMPLE
    ):
        return None
    usual = QUESTION_POINTER + question[-4:]  # owner, type and class of every record
    size = _SIZES.get(qtype)
    ttls_at = []
    ttl_s = TTL_MAX_S
    for _ in range(count):
        head, ttl, length = _SIMPLE_RR.unpack_from(packet, at)
        if head != usual or ttl > TTL_MAX_S or (size is not None and length != size):
            return None
        ttls_at.append(at + 6 - start)
        if ttl < ttl_s:
            ttl_s = ttl
        at += 12 + length
    end = at
    if additionals:
        opt = packet[at : at + _OPT_SIZE + 2]
        if opt[:3] != _OPT_HEAD or opt[5]:
            return None
        length = opt[9] << 8 | opt[10]
        if length and (opt[11:] != _COOKIE_CODE or find_cookie(packet, at) is None):
            return None
        at += _OPT_SIZE + length
    if at != len(packet):
        return None
    is_authentic = is_trusted and bool(flags & AD)
    counts, places = _ONE_RR if count == 1 else ((count, 0, 0), tuple(ttls_at))
    return Message(NOERROR, counts, packet[start:end], places, ttl_s, False, is_authentic)


class _Record(msgspec.Struct, gc=False):
    section: int
    owner: bytes  # lower case
    rtype: int
    rclass: int
    ttl: int
    start: int  # of the owner
    fixed_at: int  # of the type
    end: int
    found: Found | None  # names in rdata, as written


_NO_NAME = b"\xff" * HEADER_SIZE


class Reader:
    """One response on its way in."""

    def __init__(self, question: bytes, packet: bytes) -> None:
        self.question = question
        self.qname = question[:-4].lower()
        self.qtype = int.from_bytes(question[-4:-2], "big")
        _, self.flags, questions, *counts = _HEADER.unpack_from(packet)
        self.counts: list[int] = counts
        self.start = HEADER_SIZE + (len(question) if questions else 0)
        # A pointer into the header would read a name there, and another one in our own answer. One
        # into the question reads lower case.
        asked = self.qname + question[-4:] if questions else b""
        self.packet = _NO_NAME + asked + packet[self.start :]
        self.opt: bytes | None = None
        self.rcode = self.flags & 0xF
        self.opt_at = 0
        self.must_rewrite = False

    def read(self, is_trusted: bool) -> Message:
        if self.flags & TC:
            raise Malformed("it is truncated")
        kept = self._kept(self.records())
        if self.must_rewrite:
            body, ttls_at = self._rebuilt(kept)
        else:
            end = self.opt_at or len(self.packet)
            body = self.packet[self.start : end]
            ttls_at = tuple(record.fixed_at + 4 - self.start for record in kept)
        ttls = [record.ttl for record in kept]
        if max(ttls, default=0) > TTL_MAX_S:
            body = _without_top_bits(body, ttls_at)
        counts = [0, 0, 0]
        for record in kept:
            counts[record.section] += 1
        is_negative = self._is_negative(kept)
        return Message(
            self.rcode,
            (counts[0], counts[1], counts[2]),
            body,
            ttls_at,
            self._ttl_s(kept, is_negative),
            is_negative,
            is_trusted and bool(self.flags & AD),
            self._extended_error(),
        )

    # --- reading ------------------------------------------------------------------------

    def records(self) -> list[_Record]:
        packet = self.packet
        if sum(self.counts) > RECORDS_MAX:
            raise Malformed(f"more than {RECORDS_MAX} records")
        found: list[_Record] = []
        at = self.start
        for section, count in enumerate(self.counts):
            for _ in range(count):
                start = at
                if packet[at : at + 2] == QUESTION_POINTER:
                    owner, at = self.qname, at + 2
                else:
                    name, at = names.from_wire(packet, at)
                    owner = name.lower()
                    if owner != name and self._without_copies(name) != name:
                        self.must_rewrite = True
                rtype, rclass, ttl, length = _RR_FIXED.unpack_from(packet, at)
                end = at + 10 + length
                if end > len(packet):
                    raise Malformed("a record is cut short")
                if rtype == OPT:
                    self._take_opt(section, start, end, ttl)
                else:
                    inner = self._names(rtype, at + 10, end)
                    found.append(_Record(section, owner, rtype, rclass, ttl, start, at, end, inner))
                at = end
        if self.opt_at and self.opt_end != at:
            self.must_rewrite = True  # it stands between others
        if at != len(packet):
            raise Malformed("octets after the last record")
        return found

    def _take_opt(self, section: int, start: int, end: int, ttl: int) -> None:
        if section != 2 or self.opt is not None or self.packet[start] != 0:
            raise Malformed("an OPT record where none may be")
        self.opt = self.packet[start + 11 : end]
        self.opt_at, self.opt_end = start, end
        self.rcode |= ttl >> 24 << 4

    def _names(self, rtype: int, at: int, end: int) -> Found | None:
        """Names in rdata, which is checked as far as it matters to us."""
        size = _SIZES.get(rtype)
        if size is not None and end - at != size:
            raise Malformed(f"an address of {end - at} octets")
        found = find_names(self.packet, at, end, rtype)
        if found is None:
            return None
        if not found.may_be_sent:
            self.must_rewrite = True
        if not found.letters_count:
            shown = tuple(map(self._without_copies, found.names))
            if shown != found.names:
                self.must_rewrite = True
                return found._replace(names=shown)
        return found

    def _without_copies(self, name: Name) -> Name:
        """A name, in lower case where it has a label in the very letters of the question: a server
        may write those out, and makes aliases of them (RFC 6672 section 2.3)."""
        asked = self.question[:-4]
        if name == name.lower() or asked == self.qname:
            return name
        copied = names.labels(asked)
        labels = [one.lower() if one in copied else one for one in names.labels(name)]
        return names.from_labels(labels)

    def _extended_error(self) -> int | None:
        """Its code. The text may hold anything and is not given on."""
        if not self.opt:
            return None
        try:
            data = find_option(self.opt, EXTENDED_ERROR)
        except LayoutError:
            return None
        return int.from_bytes(data[:2], "big") if data and len(data) >= 2 else None

    # --- what belongs to the question ---------------------------------------------------

    def _kept(self, found: list[_Record]) -> list[_Record]:
        """Records that belong: the chain of aliases from the question on, what is said of its
        names and the zones they are in, and addresses of hosts that those name."""
        rclass = int.from_bytes(self.question[-2:], "big")
        count, found = len(found), [record for record in found if record.rclass == rclass]
        chain = self.chain(found)
        kept = [record for record in found if record.section < 2 and self._fits(record, chain)]
        hosts = {
            name.lower()
            for record in kept
            if record.found is not None and record.rtype not in _PROOFS
            for name in record.found.names
        }
        kept += [
            record
            for record in found
            if record.section == 2 and record.owner in hosts and record.rtype in (A, AAAA, RRSIG)
        ]
        if len(kept) != count:
            self.must_rewrite = True
        return kept

    def chain(self, found: list[_Record]) -> set[bytes]:
        """Names that the answer leads through, from the question on."""
        aliases: dict[bytes, bytes] = {}
        dnames: dict[bytes, bytes] = {}
        for record in found:
            if record.section or record.rtype not in (CNAME, DNAME):
                continue
            assert record.found is not None, "an alias has a target"
            known = aliases if record.rtype == CNAME else dnames
            known.setdefault(record.owner, record.found.names[0].lower())
        name = self.qname
        chain = {name}
        for _ in range(CHAIN_MAX if aliases or dnames else 0):
            target = aliases.get(name) or _substituted(name, dnames)
            if target is None:
                break
            if target in chain:
                raise Malformed("its aliases go in a circle")
            chain.add(target)
            name = target
        if len(chain) > CHAIN_MAX:
            raise Malformed(f"more than {CHAIN_MAX} aliases")
        self.final = name
        return chain

    def _fits(self, record: _Record, chain: set[bytes]) -> bool:
        rtype = record.rtype
        if record.section == 0:
            if record.owner in chain:
                return rtype in (self.qtype, CNAME, RRSIG, DNAME) or self.qtype == ANY
            return rtype in (DNAME, RRSIG) and any(_is_above(record.owner, n) for n in chain)
        if rtype in _PROOFS:
            # Proofs stand beside the name, in a zone that is above it.
            return len(record.owner) == 1 or any(_share_a_zone(record.owner, n) for n in chain)
        return rtype in (SOA, NS, DS) and any(
            record.owner == n or _is_above(record.owner, n) for n in chain
        )

    # --- what is made of it -------------------------------------------------------------

    def _is_negative(self, kept: list[_Record]) -> bool:
        """No such name, or no data of the type at the end of the chain (RFC 2308 section 2)."""
        if self.rcode == NXDOMAIN:
            return True
        if self.rcode != NOERROR:
            return False
        return not any(
            record.section == 0
            and (record.owner == self.final or self.qtype in (CNAME, DNAME))
            and (record.rtype == self.qtype or self.qtype == ANY)
            for record in kept
        )

    def _ttl_s(self, kept: list[_Record], is_negative: bool) -> int | None:
        if self.rcode not in (NOERROR, NXDOMAIN):
            return None
        ttls = [record.ttl if record.ttl <= TTL_MAX_S else 0 for record in kept]
        if not is_negative:
            return min(ttls, default=None)
        # RFC 2308 section 5: without a SOA it must not be kept.
        soas = [record for record in kept if record.rtype == SOA and record.section == 1]
        if not soas:
            return None
        minimum = int.from_bytes(self.packet[soas[0].end - 4 : soas[0].end], "big")
        return min(min(ttls), minimum)

    def _rebuilt(self, kept: list[_Record]) -> tuple[bytes, tuple[int, ...]]:
        """The records written anew, names in full but for the question's."""
        packet = self.packet
        parts: list[bytes] = []
        ttls_at: list[int] = []
        size = 0
        for record in kept:
            owner = QUESTION_POINTER if record.owner == self.qname else record.owner
            rdata = self.plain_rdata(record)
            fixed = packet[record.fixed_at : record.fixed_at + 8]
            parts += (owner, fixed, len(rdata).to_bytes(2, "big"), rdata)
            ttls_at.append(size + len(owner) + 4)
            size += len(owner) + 10 + len(rdata)
            if size > TCP_MAX:
                raise Malformed("with names in full it is larger than a message")
        return b"".join(parts), tuple(ttls_at)

    def plain_rdata(self, record: _Record) -> bytes:
        """Rdata with its names in full. Raises Malformed where it is then too long for a record."""
        rdata = plain_rdata(self.packet, record.fixed_at + 10, record.end, record.found)
        if len(rdata) > RDATA_MAX:
            raise Malformed(f"rdata of {len(rdata)} octets with its names in full")
        return rdata


def _is_above(ancestor: bytes, name: bytes) -> bool:
    return len(ancestor) < len(name) and names.is_within(name, ancestor)


def _share_a_zone(one: bytes, other: bytes) -> bool:
    """Whether two names have more than the root in common."""
    label = names.labels(one)[-1:]
    return bool(label) and label == names.labels(other)[-1:]


def _substituted(name: bytes, dnames: dict[bytes, bytes]) -> bytes | None:
    """What a DNAME above a name makes of it (RFC 6672 section 2.3)."""
    for owner, target in dnames.items():
        if _is_above(owner, name):
            made = name[: len(name) - len(owner)] + target
            return made if len(made) <= names.NAME_MAX else None
    return None


def _without_top_bits(body: bytes, ttls_at: tuple[int, ...]) -> bytes:
    clean = bytearray(body)
    for at in ttls_at:
        if clean[at] & 0x80:
            clean[at : at + 4] = bytes(4)
    return bytes(clean)


def strings_of(message: Message) -> list[bytes]:
    """The TXT records of an answer section, the strings of each joined."""
    found: list[bytes] = []
    body = message.body
    for at in message.ttls_at[: message.counts[0]]:
        if body[at - 4] << 8 | body[at - 3] != TXT:
            continue
        rdata = body[at + 6 : at + 6 + (body[at + 4] << 8 | body[at + 5])]
        parts, start = [], 0
        while start < len(rdata):
            parts.append(rdata[start + 1 : start + 1 + rdata[start]])
            start += 1 + rdata[start]
        found.append(b"".join(parts))
    return found


def addresses_of(message: Message, *, everywhere: bool = False) -> list[tuple[int, bytes]]:
    """Type and octets of the addresses in an answer section, or in all sections."""
    found: list[tuple[int, bytes]] = []
    body = message.body
    for at in message.ttls_at if everywhere else message.ttls_at[: message.counts[0]]:
        rtype = body[at - 4] << 8 | body[at - 3]
        size = _SIZES.get(rtype)
        if size is not None:
            found.append((rtype, body[at + 6 : at + 6 + size]))
    return found


_HINT_SIZES = {4: 4, 6: 16}  # of ipv4hint and ipv6hint (RFC 9460 section 7.3)


def hinted(params: bytes) -> Iterator[bytes]:
    """Octets of the addresses among the parameters of a service."""
    at = 0
    while at + 4 <= len(params):
        key, length = params[at] << 8 | params[at + 1], params[at + 2] << 8 | params[at + 3]
        value = params[at + 4 : at + 4 + length]
        at += 4 + length
        size = _HINT_SIZES.get(key)
        if size is not None:
            yield from (value[i : i + size] for i in range(0, len(value) - size + 1, size))


def hints_of(message: Message) -> list[bytes]:
    """Octets of the addresses that SVCB and HTTPS records of an answer section bring: clients
    connect to them as to those of A and AAAA."""
    found: list[bytes] = []
    body = message.body
    for at in message.ttls_at[: message.counts[0]]:
        if body[at - 4] << 8 | body[at - 3] not in SERVICES:
            continue
        rdata = body[at + 6 : at + 6 + (body[at + 4] << 8 | body[at + 5])]
        end = 2  # of the target
        while end < len(rdata) and rdata[end]:
            end += rdata[end] + 1
        found += hinted(rdata[end + 1 :])
    return found
