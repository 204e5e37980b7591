"""Queries from octets and answers to octets (RFC 1035 section 4, RFC 6891), for every query.

Nothing here builds objects for records: a query is a handful of fields, an answer is put together
from wire that the zones hold ready.
"""

from collections.abc import Callable, Iterator, Sequence
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812  # the name says what it is

import msgspec

from kudurru.domain.dns import names, records
from kudurru.domain.dns.images import QUESTION_POINTER
from kudurru.domain.dns.lookup import FORMERR, NOERROR, NOTIMP, NXDOMAIN, Answer, Placed
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.record_types import OPT, SOA
from kudurru.domain.dns.records import CLASS_IN
from kudurru.domain.dns.tsig import TSIG

HEADER_SIZE = 12
UDP_PLAIN_MAX = 512
"""Octets of a UDP answer to a query without EDNS (RFC 1035 section 2.3.4)."""
UDP_EDNS_MAX = 1232
"""Octets of any UDP answer: no fragments on any path (DNS flag day 2020)."""
TCP_MAX = 65_535

QUERY_RECORDS_MAX = 8
"""Records after the question. IXFR has a SOA, then come OPT and TSIG or SIG(0)."""

EDNS_VERSION = 0
NSID, COOKIE, KEEPALIVE, PADDING, EXTENDED_ERROR = 3, 10, 11, 12, 15
"""EDNS options (RFC 5001, 7873, 7828, 7830, 8914)."""
PADDING_BLOCK = 468
"""Answers to padded queries are as long as a multiple of it (RFC 8467 section 4.1)."""

QR, AA, TC, RD, RA, AD, CD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080, 0x0020, 0x0010
"""Bits of the header's flags (RFC 1035 section 4.1.1, RFC 4035 section 3)."""

_OPCODE_MASK = 0x7800
_OPCODE_NOTIFY = 4 << 11
_DO = 0x8000
_POINTER_MAX = 0x3FFF
OPTION_HEAD_SIZE = 4  # code and length
_RR_HEAD_SIZE = 12  # of a record whose owner is a pointer

_HEADER = Layout("!HHHHHH")
_COUNTS = Layout("!HHHH")
_TYPE_AND_CLASS = Layout("!HH")
_RR_FIXED = Layout("!HHIH")
_OPT = Layout("!BHHBBHH")
_BARE_OPT = Layout("!BHHIH")


class Query(msgspec.Struct, frozen=True, gc=False):
    """A question, with what the answer needs of the rest of the message."""

    id: int
    flags: int
    question: bytes
    """Name, type and class as they came; they go back octet for octet. Empty: the message has
    options and no question (RFC 7873 section 5.4)."""
    qname: Name
    qtype: int
    qclass: int
    edns_version: int | None = None
    """None: the query has no OPT record."""
    udp_max: int = UDP_PLAIN_MAX
    """Octets that an answer over UDP may have."""
    is_dnssec_ok: bool = False
    options: bytes = b""
    """EDNS options, well formed."""
    tsig_at: int = 0
    """Where the TSIG record begins, which is the last; 0: the query has none."""


class TransferFrame(msgspec.Struct, frozen=True, gc=False):
    """What all messages of one transfer have in common (RFC 5936 section 2.2)."""

    head: bytes  # ID and flags
    question: bytes
    tail: bytes  # the OPT record, where the query has one

    def message(self, count: int, records: bytes) -> bytes:
        """A message with `count` records in its answer section."""
        counts = _COUNTS.pack(1, count, 0, bool(self.tail))
        return b"".join((self.head, counts, self.question, records, self.tail))


class Unanswerable(msgspec.Struct, frozen=True, gc=False):
    """A message that is no question. `reply` None: it gets no answer at all."""

    reply: bytes | None
    rcode: int | None = None


DROP = Unanswerable(None)


def parse_query(packet: bytes) -> Query | Unanswerable:
    """The question of a message.

    Dropped: what is too short to have a header, and responses, because answering those could
    make two servers talk for ever. NOTIMP: an opcode but QUERY. FORMERR: other than one question
    (RFC 9619; none is right with a cookie), records where a query has none, a name or a record that
    does not parse, two OPT records or one that is not at the root (RFC 6891 section 6.1.1), octets
    after the last record.
    """
    if len(packet) < HEADER_SIZE:
        return DROP
    id_, flags, questions, answers, authorities, additionals = _HEADER.unpack_from(packet)
    if flags & QR:
        return DROP
    if flags & _OPCODE_MASK:
        return _unanswerable(packet, NOTIMP)
    if questions > 1 or answers or authorities + additionals > QUERY_RECORDS_MAX:
        return _unanswerable(packet, FORMERR)
    try:
        if not questions:
            return _cookie_query(packet, authorities, additionals)
        qname, after = _question_name(packet)
        qtype, qclass = _TYPE_AND_CLASS.unpack_from(packet, after)
        after += 4
        question = packet[HEADER_SIZE:after]
        if not authorities and not additionals and after == len(packet):
            return Query(id_, flags, question, qname, qtype, qclass)
        opt, tsig_at = _find_opt(packet, after, authorities, additionals)
    except (BadName, LayoutError):
        return _unanswerable(packet, FORMERR)
    if opt is None:
        return Query(id_, flags, question, qname, qtype, qclass, tsig_at=tsig_at)
    return Query(id_, flags, question, qname, qtype, qclass, *_edns(opt), tsig_at)


def _cookie_query(packet: bytes, authorities: int, additionals: int) -> Query | Unanswerable:
    """A message without a question, which is one about cookies or none at all."""
    opt, tsig_at = _find_opt(packet, HEADER_SIZE, authorities, additionals)
    if opt is None or find_option(opt[2], COOKIE) is None:
        return _unanswerable(packet, FORMERR)
    id_, flags = _TYPE_AND_CLASS.unpack_from(packet)
    return Query(id_, flags, b"", names.ROOT, 0, 0, *_edns(opt), tsig_at)


def _edns(opt: "_Opt") -> tuple[int, int, bool, bytes]:
    """Version, octets that an answer over UDP may have, DO, options."""
    udp_size, ttl, options = opt
    udp_max = min(max(udp_size, UDP_PLAIN_MAX), UDP_EDNS_MAX)
    return ttl >> 16 & 0xFF, udp_max, bool(ttl & _DO), options


def find_option(options: bytes, code: int) -> bytes | None:
    """Data of the first EDNS option of a kind. `options` are well formed, as in a Query."""
    at = 0
    while at < len(options):
        found, length = _TYPE_AND_CLASS.unpack_from(options, at)
        at += 4
        if found == code:
            return options[at : at + length]
        at += length
    return None


def pack_option(code: int, data: bytes) -> bytes:
    return _TYPE_AND_CLASS.pack(code, len(data)) + data


def compose(
    query: Query, answer: Answer, limit: int, *, options: bytes = b"", block: int = 0
) -> bytes:
    """The answer as octets, at most `limit` of them.

    `options` go into the OPT record, and with a `block` an answer that has one is padded to a
    multiple of that many octets (RFC 7830), as far as the limit allows.

    Additional records that are not needed are left out, whole RRsets, where they do not fit; when
    the rest does not fit the answer has TC set and no records (RFC 2181 section 9): a client that
    sees TC must not use what else is there, so it asks over TCP at once.
    """
    opt = opt_record(query, answer.rcode, options)
    counts: tuple[int, int, int] | None
    if answer.negative_parts:
        apex_at = HEADER_SIZE + len(query.qname) - answer.apex_size
        wire = (0xC000 | apex_at).to_bytes(2, "big").join(answer.negative_parts)
        counts = 0, 1, 0
    elif not answer.authority and not answer.additional and _is_plain(answer.answer):
        first = answer.answer[0] if answer.answer else _NOTHING
        wire = first.wire
        counts = first.rr_count, 0, 0
    else:
        writer = _Writer(query)
        counts = writer.sections(answer, limit - len(opt))
        wire = b"".join(writer.parts)
    size = HEADER_SIZE + len(query.question) + len(wire) + len(opt)
    if counts is None or size > limit:
        return truncated(query, answer, options)
    if block and opt:
        opt = opt_record(query, answer.rcode, padded_options(options, size, limit, block))
    return _head(query, answer, counts) + wire + opt


def padded_options(options: bytes, size: int, limit: int, block: int) -> bytes:
    """The options, with padding that makes a message of `size` octets a multiple of a block."""
    if size + OPTION_HEAD_SIZE > limit:
        return options
    padding = min(-(size + OPTION_HEAD_SIZE) % block, limit - size - OPTION_HEAD_SIZE)
    return options + pack_option(PADDING, bytes(padding))


def transfer_frame(query: Query, options: bytes = b"") -> TransferFrame:
    """Of the answer to a transfer query, which is authoritative."""
    head = _head(query, _TRANSFER, (0, 0, 0))
    return TransferFrame(head[:4], query.question, opt_record(query, NOERROR, options))


def transfer_serial(packet: bytes, query: Query) -> int | None:
    """The serial that the sender of an IXFR query has: of the SOA record of the zone in the
    authority section (RFC 1995 section 3). None where there is no such record."""
    _, _, _, _, authorities, _ = _HEADER.unpack_from(packet)
    if authorities != 1:
        return None
    try:
        owner, at = names.from_wire(packet, HEADER_SIZE + len(query.question))
        rtype, rclass, _, length = _RR_FIXED.unpack_from(packet, at)
        at += _RR_FIXED.size
        _, numbers = names.from_wire(packet, at)
        _, numbers = names.from_wire(packet, numbers)
    except (BadName, LayoutError):
        return None
    is_soa = rtype == SOA and rclass == CLASS_IN and names.key(owner) == names.key(query.qname)
    if not is_soa or numbers + 20 != at + length or at + length > len(packet):
        return None
    return int.from_bytes(packet[numbers : numbers + 4], "big")


def notify_message(id_: int, apex: Name, soa: bytes) -> bytes:
    """A NOTIFY for a zone, with its packed SOA record for those who look at it (RFC 1996 section
    3.7)."""
    question = apex + _TYPE_AND_CLASS.pack(SOA, CLASS_IN)
    return _HEADER.pack(id_, _OPCODE_NOTIFY | AA, 1, 1, 0, 0) + question + soa


def truncated(query: Query, answer: Answer, options: bytes = b"") -> bytes:
    """An empty answer that tells the client to come back over TCP."""
    return _head(query, answer, (0, 0, 0), TC) + opt_record(query, answer.rcode, options)


def freshness_s(wire: bytes) -> int | None:
    """For how many seconds an answer of ours may be kept: the smallest TTL of its answer and
    authority sections (RFC 8484 section 5.1, RFC 2308 section 5). None where it says nothing that
    lasts: other codes than NOERROR and NXDOMAIN, and answers without records."""
    _, flags, questions, answers, authorities, _ = _HEADER.unpack_from(wire)
    if flags & 0xF not in (NOERROR, NXDOMAIN) or flags & TC:
        return None
    at = HEADER_SIZE
    for _ in range(questions):
        at = after_name(wire, at) + 4
    smallest: int | None = None
    for _ in range(answers + authorities):
        at = after_name(wire, at)
        _, _, ttl, length = _RR_FIXED.unpack_from(wire, at)
        at += _RR_FIXED.size + length
        smallest = ttl if smallest is None else min(smallest, ttl)
    return smallest


def after_name(wire: bytes, at: int) -> int:
    """Offset behind a name at an offset of a message."""
    while size := wire[at]:
        if size >= 0xC0:
            return at + 2
        at += size + 1
    return at + 1


def shortened(wire: bytes) -> bytes | None:
    """What of an answer fits everywhere: its question and OPT record, and that the rest is to be
    had over TCP. None where it is as short already, or signed, or not whole."""
    try:
        id_, flags, questions, *counts = _HEADER.unpack_from(wire)
        end = after_name(wire, HEADER_SIZE) + _TYPE_AND_CLASS.size
        types = dict(_records(wire, end, sum(counts)))
    except (IndexError, LayoutError):
        return None
    if questions != 1 or TSIG in types:
        return None
    options = types.get(OPT, b"")
    head = _HEADER.pack(id_, flags | TC, 1, 0, 0, len(options) > 0)
    shorter = head + wire[HEADER_SIZE:end] + options
    return shorter if len(shorter) < len(wire) else None


def _records(wire: bytes, at: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Type and octets of `count` records."""
    for _ in range(count):
        fixed = after_name(wire, at)
        rtype, _, _, length = _RR_FIXED.unpack_from(wire, fixed)
        end = fixed + _RR_FIXED.size + length
        yield rtype, wire[at:end]
        at = end


def truncated_reply(packet: bytes, options: Callable[[Query], bytes]) -> bytes | None:
    """What sends the asker of a message to TCP, whatever it asked, with `options` for the query
    that it is; None where nothing may be sent."""
    query = parse_query(packet)
    if isinstance(query, Query):
        return truncated(query, _NO_RECORDS, options(query))
    if query.reply is None:
        return None
    reply = error_reply(packet, NOERROR)
    return reply[:2] + bytes((reply[2] | TC >> 8,)) + reply[3:]


def error_reply(packet: bytes, rcode: int) -> bytes:
    """A bare header with a code, for a message of which no more is understood."""
    id_, flags = _TYPE_AND_CLASS.unpack_from(packet)
    return _HEADER.pack(id_, QR | flags & (_OPCODE_MASK | RD) | rcode, 0, 0, 0, 0)


# Reading


def _unanswerable(packet: bytes, rcode: int) -> Unanswerable:
    return Unanswerable(error_reply(packet, rcode), rcode)


def _question_name(packet: bytes) -> tuple[Name, int]:
    """Name of the question and the offset after it. It is the first name of the message, so it
    has nothing to point at."""
    at = HEADER_SIZE
    try:
        while size := packet[at]:
            if size > names.LABEL_MAX:
                raise BadName("a label type that a question cannot have")
            at += size + 1
    except IndexError:
        raise BadName("the question's name is cut short") from None
    at += 1
    if at - HEADER_SIZE > names.NAME_MAX:
        raise BadName("the question's name is longer than 255 octets")
    return Name(packet[HEADER_SIZE:at]), at


_Opt = tuple[int, int, bytes]
"""UDP size, TTL field and options."""


def _find_opt(
    packet: bytes, at: int, authorities: int, additionals: int
) -> tuple[_Opt | None, int]:
    """The OPT record, and where the TSIG record begins, 0 where there is none. Raises BadName or
    LayoutError where the records do not parse."""
    if additionals == 1 and not authorities and len(packet) == at + _OPT.size:
        # Nearly every query with EDNS: an OPT record without options is all there is.
        owner, rtype, udp_size, ttl, length = _BARE_OPT.unpack_from(packet, at)
        if owner == 0 and rtype == OPT and length == 0:
            return (udp_size, ttl, b""), 0
    found: _Opt | None = None
    tsig_at = 0
    count = authorities + additionals
    for i in range(count):
        start = at
        owner, at = names.from_wire(packet, at)
        rtype, rclass, ttl, length = _RR_FIXED.unpack_from(packet, at)
        at += _RR_FIXED.size
        if at + length > len(packet):
            raise BadName("a record is cut short")
        if rtype == OPT:
            if found is not None or owner != names.ROOT or i < authorities:
                raise BadName("an OPT record where none may be")
            found = rclass, ttl, _checked_options(packet[at : at + length])
        elif rtype == TSIG:
            if i != count - 1 or not additionals:  # RFC 8945 section 5.1
                raise BadName("a TSIG record that is not the last record of the message")
            tsig_at = start
        at += length
    if at != len(packet):
        raise BadName("octets after the last record")
    return found, tsig_at


def _checked_options(options: bytes) -> bytes:
    at = 0
    while at < len(options):
        _, length = _TYPE_AND_CLASS.unpack_from(options, at)
        at += 4 + length
    if at != len(options):
        raise BadName("an EDNS option is cut short")
    return options


# Writing


_NO_RECORDS = Answer(NOERROR)
_TRANSFER = Answer(NOERROR, is_authoritative=True)
_NOTHING = Placed(None, 0, 0, b"")


def _is_plain(answer: Sequence[Placed]) -> bool:
    """Whether the section is at most one RRset of the question's name without names that may be
    compressed: its wire is ready as it is."""
    if not answer:
        return True
    first = answer[0]
    return len(answer) == 1 and first.owner is None and records.compressible(first.rtype) is None


def _head(query: Query, answer: Answer, counts: tuple[int, int, int], more_flags: int = 0) -> bytes:
    # CD is not copied: what is answered here is ours (RFC 4035 section 3.1.6).
    flags = QR | query.flags & RD | more_flags | answer.rcode & 0xF
    if answer.is_authoritative:
        flags |= AA
    if answer.is_recursive:
        flags |= RA
    opt_count = query.edns_version is not None
    an, ns, ar = counts
    head = _HEADER.pack(query.id, flags, bool(query.question), an, ns, ar + opt_count)
    return head + query.question


def opt_record(query: Query, rcode: int, options: bytes = b"") -> bytes:
    """Our OPT record, where the query has one (RFC 6891 section 6.1.1)."""
    if query.edns_version is None:
        return b""
    flags = _DO if query.is_dnssec_ok else 0
    head = _OPT.pack(0, OPT, UDP_EDNS_MAX, rcode >> 4, EDNS_VERSION, flags, len(options))
    return head + options


class _Writer:
    """Puts sections behind the question, names compressed (RFC 1035 section 4.1.4).

    The question's name is known to the table in lower case: a name that is stored in lower case
    points at it and takes on the letter case of the question, as everywhere; one that is stored
    with capitals is written out and keeps them. So the same octets, but for the question, are
    right for every letter case of it.
    """

    __slots__ = ("offsets", "parts", "size")

    def __init__(self, query: Query) -> None:
        self.parts: list[bytes] = []
        self.size = HEADER_SIZE + len(query.question)
        self.offsets: dict[bytes, int] = {}
        at = 0
        key = query.qname.lower()
        while size := key[at]:
            self.offsets[key[at:]] = HEADER_SIZE + at
            at += size + 1

    def sections(self, answer: Answer, limit: int) -> tuple[int, int, int] | None:
        """Write all sections. Returns how many records each has, None where what is needed does
        not fit into the limit."""
        counts = [0, 0, 0]
        for section, placed in enumerate((answer.answer, answer.authority, answer.additional)):
            for rrset in placed:
                mark = len(self.parts), self.size
                self._rrset(rrset)
                if self.size <= limit:
                    counts[section] += rrset.rr_count
                elif section < 2 or rrset.is_needed:
                    return None
                else:
                    self._take_back(*mark)
        an, ns, ar = counts
        return an, ns, ar

    def _take_back(self, part_count: int, size: int) -> None:
        del self.parts[part_count:]
        self.size = size
        self.offsets = {name: at for name, at in self.offsets.items() if at < size}

    def _put(self, part: bytes) -> None:
        self.parts.append(part)
        self.size += len(part)

    def _rrset(self, rrset: Placed) -> None:
        owner, wire = rrset.owner, rrset.wire
        layout = records.compressible(rrset.rtype)
        if owner is None:
            if layout is None:
                self._put(wire)
                return
            pointer = QUESTION_POINTER
            self._put(pointer)
        else:
            pointer = self._owner(owner)
        at = 0
        while True:
            end = at + _RR_HEAD_SIZE + (wire[at + 10] << 8 | wire[at + 11])
            if layout is None:
                self._put(wire[at + 2 : end])
            else:
                fixed = wire[at + 2 : at + 10]
                self._put_rdata(fixed, wire[at + _RR_HEAD_SIZE : end], *layout)
            if end == len(wire):
                return
            self._put(pointer)
            at = end

    def _owner(self, owner: bytes) -> bytes:
        """Write an owner; returns what stands for it in the records after."""
        at = self.size
        written = self._name(owner, at)
        self._put(written)
        if len(written) == len(QUESTION_POINTER) or at > _POINTER_MAX:
            return written
        return (0xC000 | at).to_bytes(2, "big")

    def _put_rdata(self, fixed: bytes, rdata: bytes, at: int, name_count: int) -> None:
        """Type, class and TTL, then rdata with names from octet `at` on."""
        start = self.size + len(fixed) + 2
        written = rdata[:at]
        for _ in range(name_count):
            end = at
            while size := rdata[end]:
                end += size + 1
            end += 1
            written += self._name(rdata[at:end], start + len(written))
            at = end
        written += rdata[at:]
        self._put(fixed + len(written).to_bytes(2, "big") + written)

    def _name(self, name: bytes, start: int) -> bytes:
        """A name as it is written at an offset of the message."""
        offsets = self.offsets
        at = 0
        while size := name[at]:
            suffix = name[at:]
            pointer = offsets.get(suffix)
            if pointer is not None:
                return name[:at] + (0xC000 | pointer).to_bytes(2, "big")
            if start + at <= _POINTER_MAX:
                offsets[suffix] = start + at
            at += size + 1
        return name
