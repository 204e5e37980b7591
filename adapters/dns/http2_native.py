"""Requests over HTTP/2 whose answers the table knows, past the library that speaks it: as
http2_repeats.py, in one call for all that a read brought (native/http2.c).

Here header blocks are read, so clients may say what they like, as they like. What two requests
have in common is all but the message in the path and the length of the body; where h2 has read
one, those like it are answered. The table of HPACK goes from one reader to the other: h2 has ours
before it reads a block, and we have h2's after that.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import h2.connection

from kudurru.adapters.dns.answering import Answering
from kudurru.adapters.dns.doh import MEDIA_TYPE, Doh, Headers, http_date
from kudurru.adapters.dns.http1_repeats import FORMS_HELD_MAX, FORMS_MAX, FORMS_SURE, Room
from kudurru.adapters.dns.http2_repeats import (
    CONTENT_TYPE,
    CONTINUATION,
    CREDIT,
    DATE,
    END_HEADERS,
    FRAME_HEAD,
    HEADERS,
    PREFACE_SIZE,
    PUSH_PROMISE,
    SLICE,
    STATUS_200,
    Slice,
    literal,
    window_update,
)
from kudurru.domain.filtering.clients import packed_address

if TYPE_CHECKING:
    from kudurru.adapters.dns import _engine

AT_ONCE = 100  # a quarter of a millisecond


class Http2NativeRepeats:
    def __init__(
        self,
        http: h2.connection.H2Connection,
        doh: Doh,
        answering: Answering,
        core: "_engine.Http2",
        peer: str,
        client_id: str,
        room: Room,
    ) -> None:
        self._http = http
        self._room = room
        self._held: set[int] = set()  # hashes of the keys that the core may have
        self._is_over = False
        self._doh = doh
        self._answering = answering
        self._core = core
        self._peer, self._client_id = peer, client_id
        self._left = PREFACE_SIZE  # octets of the frame that h2 has begun with
        self._is_within = False  # a header block that goes on in the next frame
        self._is_behind = False  # our table: h2 has read a block
        self._is_ahead = False  # of h2's
        self._credit = 0

    def take(self, arrived: bytearray) -> tuple[int, Sequence[bytes]]:
        """As `Http2Repeats.take`."""
        http = self._http
        if self._left or self._is_within or len(arrived) < FRAME_HEAD or arrived[3] != HEADERS:
            return 0, ()
        if http.encoder.table_size_changes:
            return 0, ()
        self._take_table()
        answering = self._answering
        used, stream, sent, received, is_changed, responses, told = self._core.take(
            arrived,
            http.highest_inbound_stream_id,
            min(http.remote_settings.initial_window_size, http.max_outbound_frame_size),
            http.outbound_flow_control_window,
            AT_ONCE,
            _first_fields(),
            answering.tells_clients_apart,
            answering.is_named,
            answering.listener is not None,
        )
        if not used:
            return 0, ()
        http.highest_inbound_stream_id = stream
        http.outbound_flow_control_window -= sent
        self._is_ahead |= is_changed
        answering.note_repeats(len(responses), told)
        self._credit += received
        if self._credit >= CREDIT:
            responses.append(window_update(self._credit))
            self._credit = 0
        return used, responses

    def next_slice(self, arrived: bytearray) -> Slice:
        """As `Http2Repeats.next_slice`; in the place of the block is what it says."""
        key = b""
        if not self._left:
            if len(arrived) < FRAME_HEAD:
                return Slice(0, b"")
            size = FRAME_HEAD + int.from_bytes(arrived[:3], "big")
            kind, flags = arrived[3], arrived[4]
            if kind in (HEADERS, PUSH_PROMISE, CONTINUATION):
                if kind == HEADERS and size <= min(SLICE, len(arrived)):
                    self._take_table()
                    key = self._core.key_of(arrived[:size])
                self._give_table()
                self._is_within = not flags & END_HEADERS
                self._is_behind = True
            self._left = size
        size = min(self._left, SLICE, len(arrived))
        self._left -= size
        return Slice(size, key)

    def learn(self, key: bytes, headers: Headers) -> None:
        """h2 has read a request that says this."""
        form = self._doh.form_of(headers, self._peer, self._client_id)
        if form is not None and self._has_room(hash(key)):
            client = packed_address(form.client)
            self._core.learn(key, client, form.client_id, form.packet is not None)

    def _has_room(self, key: int) -> bool:
        """Whether a form may be held; where there are FORMS_MAX, the oldest goes."""
        held, room = self._held, self._room
        if key in held or len(held) >= FORMS_MAX:
            return True
        if self._is_over or (len(held) >= FORMS_SURE and room.held >= FORMS_HELD_MAX):
            return False
        held.add(key)
        room.held += 1
        return True

    def forget(self) -> None:
        """The connection is over."""
        self._room.held -= len(self._held)
        self._held.clear()
        self._is_over = True

    def _take_table(self) -> None:
        if self._is_behind:
            table = self._http.decoder.header_table
            self._core.set_table(table.maxsize, table.dynamic_entries)
            self._is_behind = False

    def _give_table(self) -> None:
        if self._is_ahead:
            table = self._http.decoder.header_table
            table.maxsize, size = 0, table.maxsize  # which empties it
            table.maxsize = size
            for name, value in self._core.table():
                table.add(name, value)
            self._is_ahead = False


_made = b"", b""


def _first_fields() -> bytes:
    """What all responses of a second have."""
    global _made
    date = http_date()
    if date is not _made[0]:
        fields = STATUS_200 + literal(DATE, date) + literal(CONTENT_TYPE, MEDIA_TYPE)
        _made = date, fields
    return _made[1]
