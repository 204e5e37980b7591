"""DNS over HTTPS on TCP: HTTP/2 where the client speaks it (ALPN), else HTTP/1.1.

Requests are answered as they become whole. While an answer is to come HTTP/1.1 waits, since its
responses keep the order of the requests, and HTTP/2 goes on. A drop sends no response: HTTP/1.1
closes, HTTP/2 resets the stream. Everything a client can make us hold has a bound: requests that
are not whole by flow control, responses that it does not take by `RESPONSES_HELD_MAX`.
"""

import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import h11

from kudurru.adapters.dns.answering import Wire
from kudurru.adapters.dns.doh import (
    HEADERS_MAX,
    MESSAGE_MAX,
    Doh,
    Headers,
    Request,
    Response,
    kept_fields,
    phrase,
    refusal,
)
from kudurru.adapters.dns.http1_repeats import Head, Http1Repeats, Room, head_at
from kudurru.adapters.dns.http2_native import Http2NativeRepeats
from kudurru.adapters.dns.http2_repeats import CREDIT, SLICE, Http2Repeats
from kudurru.adapters.dns.memo import Keeper, Memo
from kudurru.adapters.dns.streams import (
    ANSWERS_HELD_MAX,
    StreamConnection,
    StreamLimits,
    StreamServer,
)
from kudurru.adapters.networks import Networks
from kudurru.adapters.turns import Turns
from kudurru.domain.later import Later
from kudurru.domain.ports import QueryHandler

ALPN = ("h2", "http/1.1")
STREAMS_MAX = 100  # requests under way on a connection
STEPS_PER_TURN = 8  # slices parsed and requests answered, about 2 ms
RESETS_MAX = 100  # by the client, of one connection (CVE-2023-44487, rapid reset)
BODY_WINDOW = MESSAGE_MAX + 1  # a body that is too large is seen to be
BODIES_WINDOW = 2 * (BODY_WINDOW + CREDIT)
"""Of all requests of a connection that are not whole. h2 gives back what was taken when it is half
of this, and `Http2Repeats` when it is CREDIT; one body has room beside both."""
RESPONSES_HELD_MAX = 256 << 10  # octets that HTTP/2 flow control keeps back


class HttpsServer(StreamServer):
    """A `PacketEngine` over HTTPS. `trusted` are proxies whose X-Forwarded-For is believed."""

    def __init__(
        self,
        handler: QueryHandler,
        sockets: Sequence[socket.socket],
        *,
        tls: Callable[[], ssl.SSLContext],
        trusted: Networks | None = None,
        proxies: Networks | None = None,
        limits: StreamLimits | None = None,
        memo: Memo | Keeper | None = None,
        turns: Turns | None = None,
    ) -> None:
        super().__init__(
            handler,
            sockets,
            _Connection,
            proto="https",
            tls=tls,
            proxies=proxies,
            limits=limits,
            memo=memo,
            turns=turns,
        )
        self.trusted = trusted or Networks()
        self.doh = Doh(self.answering, self.trusted)
        self.http1_room, self.http2_room = Room(), Room()

    def network_of(self, peer: str) -> str:
        return "" if peer in self.trusted else super().network_of(peer)


class _Http(Protocol):
    """One version of HTTP on a connection."""

    @property
    def must_wait(self) -> bool:
        """Nothing more can be parsed before an answer that is to come."""
        ...

    def receive(self, arrived: bytearray) -> int:
        """Parse some of what has arrived: octets used. 0: there has to be more first."""
        ...

    def work(self) -> bool:
        """Answer one request if there is a whole one; whether there was."""
        ...

    def started_s(self) -> float | None:
        """Since when the oldest request has been under way, None when none is."""
        ...

    def shut_down(self) -> None: ...


class _Connection(StreamConnection):
    """One client. Its deadline is `request_s` behind the start of its oldest request, and `idle_s`
    behind the last response when there is none."""

    _server: HttpsServer

    def __init__(self, server: HttpsServer) -> None:
        super().__init__(server)
        self._http: _Http
        self._at_end: Callable[[], None] = lambda: None
        self._arrived = bytearray()  # not parsed yet
        # Of this turn, encrypted: one write for all. But a record of TLS for each, since dnsperf
        # (2.10) waits for ever for the second response in a record.
        self._responses = bytearray()
        self._idle_since_s = self.now_s = self._loop.time()

    def opened(self) -> None:
        assert self._tls is not None
        self.now_s = self._idle_since_s = self._loop.time()
        self._http = (_Http2 if self._tls.alpn == "h2" else _Http1)(self)
        self._flush()

    def received(self, octets: bytes | bytearray) -> None:
        self._arrived += octets

    @property
    def must_wait(self) -> bool:
        return self._is_open and self._http.must_wait

    def work(self) -> bool:
        """Parse and answer for a turn."""
        self.now_s = self._loop.time()
        has_more = False
        for _ in range(STEPS_PER_TURN):
            if self._is_waiting_for_client or self._is_over():
                break
            if self._http.work():
                self._idle_since_s = self.now_s
            elif self._arrived and not self._http.must_wait:
                used = self._http.receive(self._arrived)
                if not used:
                    break
                del self._arrived[:used]
            else:
                break
        else:
            has_more = True
        if not self._transport.is_closing():
            self._flush()
            self._set_deadline()
        return has_more

    def shut(self) -> None:
        if self._is_open and not self._transport.is_closing():
            self._http.shut_down()
            self._flush()
        super().shut()

    def write(self, octets: bytes | bytearray) -> None:
        assert self._tls is not None
        self._responses += self._tls.send(octets)
        if len(self._responses) > ANSWERS_HELD_MAX:
            self._flush()

    def write_each(self, parts: Iterable[bytes]) -> None:
        assert self._tls is not None
        self._responses += self._tls.send_each(parts)
        if len(self._responses) > ANSWERS_HELD_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._responses:
            self._transport.write(self._responses)
            self._responses = bytearray()

    def respond(
        self, request: Request, later: Callable[[Response | None], None]
    ) -> Response | Later[Wire] | None:
        """The response; where it is to come `later` gets it, and the rest of the turn follows."""
        found = self._server.doh.respond(request, self._client, self.client_id)
        if isinstance(found, Later):
            deliver = partial(self._respond_late, request.method == b"HEAD", later)
            self._waiting.add(found, deliver)
        return found

    def _respond_late(
        self, is_head: bool, later: Callable[[Response | None], None], wire: Wire
    ) -> None:
        if self._transport.is_closing():
            return
        self.now_s = self._idle_since_s = self._loop.time()
        later(self._server.doh.response_of(wire, is_head=is_head))
        self._want_turn()

    def http1_repeats(self) -> Http1Repeats:
        server = self._server
        repeats = Http1Repeats(server.doh, self._client, self.client_id, server.http1_room)
        self._at_end = repeats.forget
        return repeats

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._at_end()

    def repeats_of(self, http: h2.connection.H2Connection) -> Http2Repeats | Http2NativeRepeats:
        doh, memo = self._server.doh, self._answering.memo
        if isinstance(memo, Memo):
            return Http2Repeats(http, doh, self._client, self.client_id)
        room = self._server.http2_room
        repeats = Http2NativeRepeats(
            http, doh, self._answering, memo.new_http2(), self._client, self.client_id, room
        )
        self._at_end = repeats.forget
        return repeats

    def note_response(self) -> None:
        self._idle_since_s = self.now_s

    def give_up(self, later: Later[Wire]) -> None:
        self._waiting.discard(later)

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def cut(self) -> None:
        """Send what is written, and no more."""
        self._flush()
        super().shut()

    def _set_deadline(self) -> None:
        started_s = self._http.started_s()
        if self._is_waiting_for_client:
            started_s = self._idle_since_s
        if started_s is None:
            self.deadline_s = self._idle_since_s + self._limits.idle_s
        else:
            self.deadline_s = started_s + self._limits.request_s


class _Http1:
    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADERS_MAX)
        self._request: h11.Request | None = None
        self._is_head = False  # of the request at hand: its response has no body
        self._body = bytearray()
        self._started_s: float | None = None
        self._later: Later[Wire] | None = None
        self._repeats = connection.http1_repeats()
        self._is_between = True  # requests: h11 has nothing of one
        self._head: Head | None = None  # of the request at hand
        self._answered: h11.Request | None = None

    @property
    def must_wait(self) -> bool:
        return self._later is not None

    def receive(self, arrived: bytearray) -> int:
        if self._is_between:
            used, responses = self._repeats.take(arrived)
            if used:
                self._connection.write(responses)
                self._connection.note_response()
                return used
            self._head = head_at(arrived, 0)
            self._is_between = False
        self._http.receive_data(bytes(arrived[:SLICE]))
        return min(SLICE, len(arrived))

    def started_s(self) -> float | None:
        return self._started_s

    def shut_down(self) -> None:
        pass

    def work(self) -> bool:
        if self.must_wait or self._is_between:
            return False
        try:
            return self._advance()
        except h11.RemoteProtocolError as fault:
            self._send(refusal(fault.error_status_hint, str(fault)), is_last=True)
            return False

    def _advance(self) -> bool:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._note_start()
                return False
            if isinstance(event, h11.Request):
                self._request = event
                self._is_head = event.method == b"HEAD"
                self._body.clear()
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > MESSAGE_MAX:
                    self._send(refusal(413, f"at most {MESSAGE_MAX} octets"), is_last=True)
                    return False
            elif isinstance(event, h11.EndOfMessage):
                self._answer()
                return True
            else:
                return False

    def _note_start(self) -> None:
        """What has arrived is part of a request: since when?"""
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            self._connection.write(self._http.send(go_on) or b"")
        is_under_way = self._request is not None or bool(self._http.trailing_data[0])
        if not is_under_way:
            self._started_s = None
        elif self._started_s is None:
            self._started_s = self._connection.now_s

    def _answer(self) -> None:
        request = self._request
        assert request is not None
        self._request, self._answered = None, request
        response = self._connection.respond(
            Request(request.method, request.target, list(request.headers), bytes(self._body)),
            self._respond,
        )
        if isinstance(response, Later):
            self._later = response
            self._started_s = self._started_s or self._connection.now_s
        else:
            self._respond(response)

    def _respond(self, response: Response | None) -> None:
        self._later = self._started_s = None
        if response is None:
            self._connection.cut()
            return
        self._send(response)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._is_head = False
            self._is_between = not self._http.trailing_data[0]
            if self._head is not None and self._answered is not None:
                answered = self._answered
                self._repeats.learn(self._head, answered.method, answered.target, answered.headers)
            self._head = self._answered = None

    def _send(self, response: Response, *, is_last: bool = False) -> None:
        headers = response.headers
        if is_last:
            headers = [*headers, (b"connection", b"close")]
        head = h11.Response(
            status_code=response.status, reason=phrase(response.status), headers=headers
        )
        body = b"" if self._is_head else response.body  # RFC 9110 section 9.3.2
        events = [head, h11.Data(data=body), h11.EndOfMessage()]
        self._connection.write(b"".join(self._http.send(event) or b"" for event in events))
        if is_last or self._http.our_state is h11.MUST_CLOSE:
            self._connection.cut()


class _Incoming:
    """A request that is not whole, or whole and not answered, or answered and not taken."""

    __slots__ = ("body", "headers", "held", "is_whole", "later", "size", "started_s")

    def __init__(self, headers: Headers, started_s: float) -> None:
        self.headers = headers
        self.started_s = started_s
        self.body = bytearray()
        self.size = 0  # octets to give back to flow control when it is done
        self.is_whole = False
        self.held = b""  # of the response
        self.later: Later[Wire] | None = None


class _Http2:
    must_wait = False

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        config = h2.config.H2Configuration(
            client_side=False,
            header_encoding=None,
            validate_outbound_headers=False,  # they are ours, and in lower case
            normalize_outbound_headers=False,
        )
        self._http = h2.connection.H2Connection(config=config)
        codes = h2.settings.SettingCodes
        self._http.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
                codes.INITIAL_WINDOW_SIZE: BODY_WINDOW,
                codes.MAX_HEADER_LIST_SIZE: HEADERS_MAX,
            },
        )
        self._streams: dict[int, _Incoming] = {}  # oldest first
        self._whole: list[int] = []
        self._held = 0
        self._resets = 0
        self._repeats = connection.repeats_of(self._http)
        self._http.decoder.max_header_list_size = HEADERS_MAX
        self._http.initiate_connection()
        self._http.increment_flow_control_window(BODIES_WINDOW - 65_535)
        self._flush()

    def started_s(self) -> float | None:
        return next(iter(self._streams.values())).started_s if self._streams else None

    def shut_down(self) -> None:
        self._http.close_connection()
        self._flush()

    def receive(self, arrived: bytearray) -> int:
        if len(self._streams) < STREAMS_MAX:
            used, responses = self._repeats.take(arrived)
            if used:
                self._connection.write_each(responses)
                self._connection.note_response()
                return used
        size, block = self._repeats.next_slice(arrived)
        if size:
            self._receive(bytes(arrived[:size]), block)
        return size

    def _receive(self, octets: bytes, block: bytes) -> None:
        try:
            events = self._http.receive_data(octets)
        except h2.exceptions.ProtocolError:
            self._flush()  # a GOAWAY that says what was wrong
            self._connection.cut()
            return
        for event in events:
            if block and isinstance(event, h2.events.RequestReceived):
                self._repeats.learn(block, event.headers)
            self._take(event)
        if self._held:
            self._send_held()
        self._finish_step()

    def work(self) -> bool:
        while self._whole:
            stream = self._whole.pop(0)
            if stream in self._streams:
                self._answer(stream, self._streams[stream])
                self._finish_step()
                return True
        return False

    def _finish_step(self) -> None:
        is_over = self._resets > RESETS_MAX or self._held > RESPONSES_HELD_MAX
        if is_over:
            self._http.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
        self._flush()
        if is_over:
            self._connection.cut()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int(stream)):
                headers = kept_fields(event.headers)
                self._streams[stream] = _Incoming(headers, self._connection.now_s)
            case h2.events.DataReceived(stream_id=int(stream)):
                self._take_data(stream, event)
            case h2.events.StreamEnded(stream_id=int(stream)):
                if (incoming := self._streams.get(stream)) and not incoming.is_whole:
                    incoming.is_whole = True
                    self._whole.append(stream)
            case h2.events.StreamReset(stream_id=int(stream)):
                self._resets += 1
                self._forget(stream)
            case h2.events.ConnectionTerminated():
                self._connection.cut()
            case _:
                pass

    def _take_data(self, stream: int, event: h2.events.DataReceived) -> None:
        incoming = self._streams.get(stream)
        size = event.flow_controlled_length or 0
        if incoming is None or incoming.is_whole:
            self._http.acknowledge_received_data(size, stream)
            return
        incoming.body += event.data or b""
        incoming.size += size
        if len(incoming.body) > MESSAGE_MAX:
            incoming.is_whole = True
            self._whole.append(stream)

    def _answer(self, stream: int, incoming: _Incoming) -> None:
        fields = dict(incoming.headers)
        response = self._connection.respond(
            Request(
                fields.get(b":method", b""),
                fields.get(b":path", b""),
                incoming.headers,
                bytes(incoming.body),
            ),
            partial(self._respond_late, stream),
        )
        incoming.body.clear()
        if isinstance(response, Later):
            incoming.later = response
        else:
            self._respond(stream, incoming, response)

    def _respond_late(self, stream: int, response: Response | None) -> None:
        if stream in self._streams:
            self._streams[stream].later = None
            self._respond(stream, self._streams[stream], response)
            self._finish_step()

    def _respond(self, stream: int, incoming: _Incoming, response: Response | None) -> None:
        if response is None:
            self._http.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
            self._forget(stream)
            return
        status = (b":status", b"%d" % response.status)
        is_all = not response.body
        self._http.send_headers(stream, [status, *response.headers], end_stream=is_all)
        if is_all:
            self._forget(stream)
        else:
            incoming.held = response.body
            self._held += len(response.body)
            self._send_body(stream, incoming)

    def _send_body(self, stream: int, incoming: _Incoming) -> None:
        """Send as much as flow control allows."""
        while incoming.held:
            room = min(
                self._http.local_flow_control_window(stream), self._http.max_outbound_frame_size
            )
            if room <= 0:
                return
            part, incoming.held = incoming.held[:room], incoming.held[room:]
            self._held -= len(part)
            self._http.send_data(stream, part, end_stream=not incoming.held)
        self._forget(stream)

    def _send_held(self) -> None:
        for stream, incoming in list(self._streams.items()):
            if incoming.held:
                self._send_body(stream, incoming)

    def _forget(self, stream: int) -> None:
        incoming = self._streams.pop(stream, None)
        if incoming is not None:
            if incoming.later is not None:
                self._connection.give_up(incoming.later)
            self._held -= len(incoming.held)
            if incoming.size:
                self._http.acknowledge_received_data(incoming.size, stream)

    def _flush(self) -> None:
        if octets := self._http.data_to_send():
            self._connection.write(octets)
