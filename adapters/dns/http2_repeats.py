"""Requests over HTTP/2 whose answers are known, past the library that speaks it.

A client asks with the same few header blocks again and again, and h2 spends a fifth of a
millisecond on each. So a request that came whole, with a block that h2 has read on this connection
before, is answered here where the memo knows the answer; everything else is h2's, frame by frame.

Both keep one state. A block is remembered only while it means the same: one that changes nothing in
the table of HPACK (RFC 7541 section 6), until another one does. What we send changes nothing there
either. h2 is told of the streams that it did not see, and of what left of its window; the octets of
requests that it did not see are given back to the client here.
"""

import struct
from typing import NamedTuple

import h2.connection

from kudurru.adapters.dns.doh import MEDIA_TYPE, Doh, Form, Headers, http_date

FRAME_HEAD = 9  # octets, RFC 9113 section 4.1
DATA, HEADERS, PUSH_PROMISE, WINDOW_UPDATE, CONTINUATION = 0, 1, 5, 8, 9
END_STREAM, END_HEADERS, PRIORITY = 0x1, 0x4, 0x20
PRIORITY_SIZE = 5
PREFACE_SIZE = 24
STREAM_MAX = (1 << 31) - 1

_HEAD = struct.Struct("!HBBBI")  # size (of three octets), kind, flags, stream

SLICE = 1 << 10  # octets given to h2 at a time, since it does not stop in between
REPEATS_AT_ONCE = 10  # below a quarter of a millisecond
FORMS_MAX = 64  # header blocks remembered, each of them smaller than a slice
CREDIT = 16 << 10  # octets of requests that the client may send again, told of together

# Literals that are not indexed, with names from the static table (RFC 7541 sections 6.2.2 and A).
STATUS_200 = b"\x88"
CACHE_CONTROL, CONTENT_LENGTH = b"\x0f\x09", b"\x0f\x0d"
CONTENT_TYPE, DATE = b"\x0f\x10", b"\x0f\x12"


class Slice(NamedTuple):
    """What h2 is given next: octets of what has arrived, and the header block where they are a
    whole HEADERS frame with one that may be remembered."""

    size: int
    block: bytes


_Whole = tuple[int, Form, bytes, int]
"""A request that has arrived: its stream, what it says, its message, the offset behind it."""


class Http2Repeats:
    def __init__(
        self, http: h2.connection.H2Connection, doh: Doh, peer: str, client_id: str
    ) -> None:
        self._http = http
        self._doh = doh
        self._peer, self._client_id = peer, client_id
        self._forms: dict[bytes, Form] = {}
        self._left = PREFACE_SIZE  # octets of the frame that h2 has begun with
        self._credit = 0

    def take(self, arrived: bytearray) -> tuple[int, list[bytes]]:
        """Answer what is known at the beginning of what has arrived: octets used, and what to send.
        h2 has nothing to send meanwhile."""
        responses: list[bytes] = []
        http = self._http
        at = 0
        # Within a block that goes on there are no forms, so what has to follow is left to h2.
        if self._left or not self._forms or http.encoder.table_size_changes:
            return 0, responses
        # An answer goes in one frame.
        room = min(http.remote_settings.initial_window_size, http.max_outbound_frame_size)
        while len(responses) < REPEATS_AT_ONCE and (whole := self._whole_at(arrived, at)):
            stream, form, packet, end = whole
            known = self._doh.repeat(
                packet, form.client, form.client_id, min(room, http.outbound_flow_control_window)
            )
            if known is None:
                break
            responses.append(_response(stream, *known))
            http.highest_inbound_stream_id = stream
            http.outbound_flow_control_window -= len(known[0])
            if form.packet is None:
                self._credit += len(packet)
            at = end
        if self._credit >= CREDIT:
            responses.append(window_update(self._credit))
            self._credit = 0
        return at, responses

    def next_slice(self, arrived: bytearray) -> Slice:
        """What h2 is to be given. It ends with a frame, or is within one."""
        block = b""
        if not self._left:
            if len(arrived) < FRAME_HEAD:
                return Slice(0, b"")
            size = FRAME_HEAD + int.from_bytes(arrived[:3], "big")
            kind, flags = arrived[3], arrived[4]
            if kind in (HEADERS, PUSH_PROMISE, CONTINUATION):
                if kind == HEADERS and size <= min(SLICE, len(arrived)):
                    block = _block_of(flags, arrived[FRAME_HEAD:size])
                if not block:
                    self._forms.clear()
            self._left = size
        size = min(self._left, SLICE, len(arrived))
        self._left -= size
        return Slice(size, block)

    def learn(self, block: bytes, headers: Headers) -> None:
        """h2 has read a request out of a block."""
        form = self._doh.form_of(headers, self._peer, self._client_id)
        if form is not None:
            if len(self._forms) >= FORMS_MAX:
                self._forms.clear()
            self._forms[block] = form

    def _whole_at(self, arrived: bytearray, at: int) -> _Whole | None:
        """The request at an offset, if it is one that may be known."""
        block_at = at + FRAME_HEAD
        if len(arrived) < block_at:
            return None
        high, low, kind, flags, stream = _HEAD.unpack_from(arrived, at)
        end = block_at + (high << 8 | low)
        if kind != HEADERS or flags & ~(END_STREAM | PRIORITY) != END_HEADERS:
            return None
        if flags & PRIORITY:
            if int.from_bytes(arrived[block_at : block_at + 4], "big") & STREAM_MAX == stream:
                return None  # it depends on itself
            block_at += PRIORITY_SIZE
        form = self._forms.get(bytes(arrived[block_at:end]))
        if form is None or not self._is_new(stream):
            return None
        if flags & END_STREAM:
            is_whole = form.packet is not None and not form.body_size
            return (stream, form, form.packet or b"", end) if is_whole else None
        start = end + FRAME_HEAD
        if form.packet is not None or len(arrived) < start:
            return None
        high, low, kind, flags, same = _HEAD.unpack_from(arrived, end)
        size = high << 8 | low
        if (kind, flags, same) != (DATA, END_STREAM, stream) or len(arrived) < start + size:
            return None
        if size > self._http.max_inbound_frame_size or form.body_size not in (None, size):
            return None
        return stream, form, bytes(arrived[start : start + size]), start + size

    def _is_new(self, stream: int) -> bool:
        return self._http.highest_inbound_stream_id < stream <= STREAM_MAX and stream % 2 == 1


def _block_of(flags: int, payload: bytes | bytearray) -> bytes:
    """The header block of a HEADERS frame; empty where it goes on, is padded, or may change the
    table of HPACK."""
    if flags & ~(END_STREAM | PRIORITY) != END_HEADERS:
        return b""
    block = bytes(payload[PRIORITY_SIZE:] if flags & PRIORITY else payload)
    return block if changes_nothing(block) else b""


def changes_nothing(block: bytes) -> bool:
    """Whether a header block leaves the table of HPACK as it is: it has indexed fields and literals
    that are not to be indexed, and nothing else. False for one that ends too early."""
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:
                _, at = _integer(block, at, 7)
            elif first & 0x60:  # a literal to be indexed, or another size of the table
                return False
            else:
                name, at = _integer(block, at, 4)
                for _ in range(1 if name else 2):
                    size, at = _integer(block, at, 7)
                    at += size
    except IndexError:
        return False
    return at == len(block)


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """RFC 7541 section 5.1: a number, and the offset behind it. Raises IndexError."""
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        octet = block[at]
        at += 1
        value += (octet & 0x7F) << shift
        shift += 7
        if not octet & 0x80:
            return value, at


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return _HEAD.pack(len(body) >> 8, len(body) & 0xFF, kind, flags, stream) + body


def window_update(octets: int) -> bytes:
    """Of the connection."""
    return _frame(WINDOW_UPDATE, 0, 0, octets.to_bytes(4, "big"))


def literal(name: bytes, value: bytes) -> bytes:
    return b"%b%c%b" % (name, len(value), value)  # all of them shorter than 127 octets


def _response(stream: int, wire: bytes, cache_control: bytes) -> bytes:
    """As `Doh.response_of` has it."""
    block = _blocks.of(http_date(), len(wire), cache_control)
    return _frame(HEADERS, END_HEADERS, stream, block) + _frame(DATA, END_STREAM, stream, wire)


class _Blocks:
    """Header blocks of the responses of one second."""

    def __init__(self) -> None:
        self._date = b""
        self._made: dict[tuple[int, bytes], bytes] = {}

    def of(self, date: bytes, size: int, cache_control: bytes) -> bytes:
        if date is not self._date:
            self._date = date
            self._made.clear()
        made = self._made.get((size, cache_control))
        if made is None:
            if len(self._made) >= FORMS_MAX:
                self._made.clear()
            made = self._made[size, cache_control] = (
                STATUS_200
                + literal(DATE, date)
                + literal(CONTENT_TYPE, MEDIA_TYPE)
                + literal(CONTENT_LENGTH, b"%d" % size)
                + literal(CACHE_CONTROL, cache_control)
            )
        return made


_blocks = _Blocks()
