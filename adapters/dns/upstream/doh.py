"""Queries over HTTPS (RFC 8484): HTTP/2, one stream for each, all on one connection."""

import asyncio
from typing import cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from kudurru.adapters.dns.doh import MEDIA_TYPE, MESSAGE_MAX
from kudurru.adapters.dns.upstream.connecting import Connection, Dial, Sink, Target
from kudurru.adapters.dns.upstream.streams import check_certificate
from kudurru.adapters.dns.upstream.tls import Tls
from kudurru.domain.dns.upstreams import UpstreamAddress
from kudurru.domain.ports import Exchange

ALPN = "h2"
BODY_WINDOW = 4 << 20  # octets of answers on their way, for all streams
QUERY_MAX = 512  # octets: a name, a header, an OPT record, padding


def doh_dial(address: UpstreamAddress, tls: Tls) -> Dial:
    async def dial(target: Target, sink: Sink) -> Connection:
        loop = asyncio.get_running_loop()
        host, port = target
        _, connection = await loop.create_connection(
            lambda: _Connection(address, sink),
            host,
            port,
            ssl=tls.context,
            server_hostname=tls.name,
        )
        check_certificate(connection.transport, tls)
        return connection

    return dial


def request_headers(address: UpstreamAddress, size: int) -> list[tuple[bytes, bytes]]:
    """The request for a message of so many octets, for HTTP/2 and /3."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    authority = host if address.port == 443 else f"{host}:{address.port}"
    return [
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":authority", authority.encode()),
        (b":path", address.path.encode()),
        (b"accept", MEDIA_TYPE),
        (b"content-type", MEDIA_TYPE),
        (b"content-length", b"%d" % size),
    ]


class Body:
    """A response on its way."""

    __slots__ = ("body", "status")

    def __init__(self) -> None:
        self.status = b""
        self.body = bytearray()

    def take_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        status = dict(headers).get(b":status", b"")
        if not status.startswith(b"1"):  # not an interim response
            self.status = self.status or status

    def end(self, sink: Sink, stream: int) -> None:
        if self.status == b"200" and len(self.body) <= MESSAGE_MAX:
            sink.answered(stream, b"\0\0" + bytes(self.body[2:]))
        else:
            sink.refused(stream, "http")


class _Connection(asyncio.Protocol):
    """Implements `Connection`. Numbers are streams."""

    def __init__(self, address: UpstreamAddress, sink: Sink) -> None:
        self._address = address
        self._sink = sink
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self._http = h2.connection.H2Connection(config=config)
        self._bodies: dict[int, Body] = {}
        self.transport: asyncio.Transport
        self._is_going = False  # the server takes no more

    @property
    def is_open(self) -> bool:
        if self._is_going or self.transport.is_closing():
            return False
        return bool(self._bodies) or self._has_window()

    def _has_window(self) -> bool:
        """Whether the server takes the octets of one more query (RFC 9113 section 5.2)."""
        http = self._http
        window = min(http.outbound_flow_control_window, http.remote_settings.initial_window_size)
        return window >= QUERY_MAX

    @property
    def room(self) -> int:
        if not self._has_window():
            return 0
        most: int = self._http.remote_settings.max_concurrent_streams
        return min(most, 1 << 16) - len(self._bodies)

    def send(self, exchange: Exchange) -> int:
        packet = exchange.packet
        stream = self._http.get_next_available_stream_id()
        self._bodies[stream] = Body()
        self._http.send_headers(stream, request_headers(self._address, len(packet)))
        self._http.send_data(stream, packet, end_stream=True)
        self._flush()
        return stream

    def cancel(self, number: int) -> None:
        if self._bodies.pop(number, None) is not None and not self.transport.is_closing():
            try:
                self._http.reset_stream(number, h2.errors.ErrorCodes.CANCEL)
            except h2.exceptions.StreamClosedError:
                return
            self._flush()

    def close(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._http.initiate_connection()
        self._http.increment_flow_control_window(BODY_WINDOW)
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            found = self._http.receive_data(data)
        except h2.exceptions.ProtocolError:
            self.transport.abort()
            return
        for event in found:
            self._take(event)
        self._flush()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._sink.lost()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived(stream_id=int(stream)) if stream in self._bodies:
                self._bodies[stream].take_headers(event.headers)
            case h2.events.DataReceived(stream_id=int(stream)):
                self._http.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                if stream in self._bodies:
                    self._bodies[stream].body += event.data or b""
                    if len(self._bodies[stream].body) > MESSAGE_MAX:
                        self.cancel(stream)
                        self._sink.refused(stream, "http")
            case h2.events.StreamEnded(stream_id=int(stream)) if stream in self._bodies:
                self._bodies.pop(stream).end(self._sink, stream)
            case h2.events.StreamReset(stream_id=int(stream)) if stream in self._bodies:
                del self._bodies[stream]
                self._sink.refused(stream, "reset")
            case h2.events.ConnectionTerminated():
                self._is_going = True
                self.transport.close()
            case _:
                pass

    def _flush(self) -> None:
        if octets := self._http.data_to_send():
            self.transport.write(octets)
