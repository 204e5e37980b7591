"""What is spoken over QUIC: DNS itself (RFC 9250), or HTTP/3 that carries it (RFC 8484).

An application is told what arrived on the streams of its connection and answers through it.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from aioquic.h3.connection import ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic import events

from kudurru.adapters.dns.answering import HEADER, Answering, Wire
from kudurru.adapters.dns.doh import MESSAGE_MAX, Doh, Headers, Request, Response, kept_fields
from kudurru.adapters.dns.quic_names import NamedConnection
from kudurru.domain.dns.messages import KEEPALIVE, Query, find_option, parse_query
from kudurru.domain.later import Later

UNIDIRECTIONAL = 2  # bit of a stream's number (RFC 9000 section 2.1)

# RFC 9250 section 8.4.
DOQ_NO_ERROR, DOQ_PROTOCOL_ERROR, DOQ_REQUEST_CANCELLED = 0, 2, 3
DOQ_EXCESSIVE_LOAD, DOQ_UNSPECIFIED_ERROR = 4, 5


class Incoming:
    """A request that is not whole, or whole and not answered."""

    __slots__ = ("body", "headers", "later", "started_s")

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        self.body = bytearray()
        self.headers: Headers = []  # of HTTP
        self.later: Later[Wire] | None = None  # the answer to come


class Connection(Protocol):
    """What an application needs of its connection."""

    quic: NamedConnection
    streams: dict[int, Incoming]

    @property
    def answering(self) -> Answering: ...

    @property
    def doh(self) -> Doh: ...

    @property
    def client(self) -> str: ...

    @property
    def client_id(self) -> str: ...

    def wait(
        self, stream: int, later: Later[Wire], deliver: Callable[[Wire], None], busy: int
    ) -> None: ...

    def answer(self, stream: int, octets: bytes) -> None: ...

    def answered(self, stream: int, size: int) -> None: ...

    def drop(self, stream: int, code: int) -> None: ...

    def stop_reading(self, stream: int, code: int) -> None: ...

    def close_with(self, code: int) -> None: ...


class Application(Protocol):
    @property
    def no_error(self) -> int: ...

    @property
    def excessive_load(self) -> int: ...

    def take(self, event: events.QuicEvent) -> None:
        """Handle what arrived on a stream."""
        ...


class Doq:
    """DNS over QUIC: one query for each stream, two octets of length before each message."""

    alpn = "doq"
    no_error, excessive_load = DOQ_NO_ERROR, DOQ_EXCESSIVE_LOAD

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answering = connection.answering

    def take(self, event: events.QuicEvent) -> None:
        match event:
            case events.StreamReset():
                self._connection.quic.reset_stream(event.stream_id, DOQ_REQUEST_CANCELLED)
            case events.StreamDataReceived(stream_id=stream) if stream & UNIDIRECTIONAL:
                self._connection.close_with(DOQ_PROTOCOL_ERROR)
            case events.StreamDataReceived():
                self._take_data(event)
            case _:
                pass

    def _take_data(self, event: events.StreamDataReceived) -> None:
        body = self._connection.streams[event.stream_id].body
        body += event.data
        size = 2 + int.from_bytes(body[:2], "big")
        is_too_long = len(body) >= 2 and len(body) > size
        if is_too_long or (event.end_stream and len(body) != size):
            self._refuse()
        elif event.end_stream:
            self._answer(event.stream_id, bytes(body[2:]))

    def _answer(self, stream: int, packet: bytes) -> None:
        answering = self._answering
        answering.received += 1
        if len(packet) < HEADER or packet[:2] != b"\0\0":
            self._refuse()
            return
        client, client_id = self._connection.client, self._connection.client_id
        wire: Wire | Later[Wire] = answering.recall(packet, client, client_id)
        if wire is None:
            if _has_keepalive(packet):
                self._refuse()
                return
            wire = answering.ask(packet, client, client_id)
        if isinstance(wire, Later):
            deliver = partial(self._send, stream)
            self._connection.wait(stream, wire, deliver, DOQ_EXCESSIVE_LOAD)
        else:
            self._send(stream, wire)

    def _send(self, stream: int, wire: Wire) -> None:
        if wire is None:
            self._connection.drop(stream, DOQ_UNSPECIFIED_ERROR)
        else:
            self._connection.answer(stream, len(wire).to_bytes(2, "big") + wire)
            self._answering.answered += 1

    def _refuse(self) -> None:
        """RFC 9250 section 4.3.3 lists what is an error of the whole connection."""
        self._answering.malformed += 1
        self._connection.close_with(DOQ_PROTOCOL_ERROR)


def _has_keepalive(packet: bytes) -> bool:
    query = parse_query(packet)
    return isinstance(query, Query) and find_option(query.options, KEEPALIVE) is not None


class H3:
    """DNS over HTTP/3."""

    alpn = "h3"
    no_error, excessive_load = int(ErrorCode.H3_NO_ERROR), int(ErrorCode.H3_EXCESSIVE_LOAD)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._http = H3Connection(connection.quic)

    def take(self, event: events.QuicEvent) -> None:
        for found in self._http.handle_event(event):
            match found:
                case HeadersReceived(stream_id=stream) if stream in self._connection.streams:
                    incoming = self._connection.streams[stream]
                    if not incoming.headers:  # else they are trailers
                        incoming.headers = kept_fields(found.headers)
                    self._advance(stream, incoming, is_whole=found.stream_ended)
                case DataReceived(stream_id=stream) if stream in self._connection.streams:
                    incoming = self._connection.streams[stream]
                    incoming.body += found.data
                    self._advance(stream, incoming, is_whole=found.stream_ended)
                case _:
                    pass

    def _advance(self, stream: int, incoming: Incoming, *, is_whole: bool) -> None:
        if incoming.later is not None:
            return  # what follows a body that is too long
        if not is_whole and len(incoming.body) <= MESSAGE_MAX:
            return
        fields = dict(incoming.headers)
        request = Request(
            fields.get(b":method", b""),
            fields.get(b":path", b""),
            incoming.headers,
            bytes(incoming.body),
        )
        doh = self._connection.doh
        response = doh.respond(request, self._connection.client, self._connection.client_id)
        if not is_whole:
            self._connection.stop_reading(stream, ErrorCode.H3_NO_ERROR)
        if isinstance(response, Later):
            is_head = request.method == b"HEAD"
            deliver = partial(self._send_late, stream, is_head=is_head)
            self._connection.wait(stream, response, deliver, ErrorCode.H3_REQUEST_REJECTED)
        else:
            self._send(stream, response)

    def _send_late(self, stream: int, wire: Wire, *, is_head: bool) -> None:
        self._send(stream, self._connection.doh.response_of(wire, is_head=is_head))

    def _send(self, stream: int, response: Response | None) -> None:
        if response is None:
            self._connection.drop(stream, ErrorCode.H3_REQUEST_CANCELLED)
            return
        status = (b":status", b"%d" % response.status)
        is_all = not response.body
        self._http.send_headers(stream, [status, *response.headers], end_stream=is_all)
        if not is_all:
            self._http.send_data(stream, response.body, end_stream=True)
        self._connection.answered(stream, len(response.body))


APPLICATIONS: dict[str, type[Doq] | type[H3]] = {"quic": Doq, "h3": H3}
"""By protocol of the listener."""
