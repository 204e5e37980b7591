"""Queries over QUIC (RFC 9250) and HTTP/3: aioquic speaks it, one stream for each query."""

import asyncio
import ssl
from typing import Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from cryptography.hazmat.primitives.serialization import Encoding

from kudurru.adapters.dns.doh import MESSAGE_MAX
from kudurru.adapters.dns.quic_applications import DOQ_NO_ERROR, DOQ_REQUEST_CANCELLED
from kudurru.adapters.dns.upstream.connecting import (
    OUTSTANDING_MAX,
    Connection,
    Dial,
    Sink,
    Target,
    Unreachable,
    framed,
)
from kudurru.adapters.dns.upstream.doh import Body, request_headers
from kudurru.adapters.dns.upstream.tls import Tls
from kudurru.domain.dns.upstreams import UpstreamAddress
from kudurru.domain.ports import Exchange

IDLE_S = 30.0


def quic_dial(address: UpstreamAddress, tls: Tls, ca: str) -> Dial:
    kind = _H3 if address.transport == "doh3" else _Doq

    async def dial(target: Target, sink: Sink) -> Connection:
        loop = asyncio.get_running_loop()
        configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=[kind.alpn],
            server_name=tls.name,
            idle_timeout=IDLE_S,
            verify_mode=ssl.CERT_NONE if address.pins else ssl.CERT_REQUIRED,
            cafile=ca or None,
        )
        host, port = target
        transport, connection = await loop.create_datagram_endpoint(
            lambda: kind(address, sink, QuicConnection(configuration=configuration)),
            local_addr=("::", 0) if ":" in host else ("0.0.0.0", 0),  # noqa: S104  # any port
        )
        connection.transport = transport
        try:
            connection.connect((host, port, 0, 0) if ":" in host else (host, port))
            try:
                await connection.wait_connected()
            except ConnectionError:
                raise Unreachable("tls") from None
            connection.check(tls)
        except BaseException:
            connection.close()
            raise
        return connection

    return dial


class _Quic(QuicConnectionProtocol):
    """What both have in common. Numbers are streams."""

    alpn = ""
    no_error = 0
    cancelled = 0

    def __init__(self, address: UpstreamAddress, sink: Sink, quic: QuicConnection) -> None:
        super().__init__(quic)
        self.transport: asyncio.DatagramTransport
        self._address = address
        self._sink = sink
        self._is_up = self._is_over = False
        self._streams: dict[int, Any] = {}

    @property
    def is_open(self) -> bool:
        return not self._is_over

    @property
    def room(self) -> int:
        return OUTSTANDING_MAX - len(self._streams)

    def check(self, tls: Tls) -> None:
        shown = self._quic.tls._peer_certificate  # no public name tells
        rest = self._quic.tls._peer_certificate_chain
        assert shown is not None
        tls.check_chain([one.public_bytes(Encoding.DER) for one in (shown, *rest)])
        self._is_up = True

    def cancel(self, number: int) -> None:
        if self._streams.pop(number, None) is not None and not self._is_over:
            self._quic.stop_stream(number, self.cancelled)
            self.transmit()

    def close(self, error_code: int | None = None, reason_phrase: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        super().close(self.no_error if error_code is None else error_code, reason_phrase)
        if self._timer is not None:
            self._timer.cancel()
        self.transport.close()
        if self._is_up:
            self._sink.lost()

    def quic_event_received(self, event: events.QuicEvent) -> None:
        match event:
            case events.StreamReset(stream_id=stream) if stream in self._streams:
                del self._streams[stream]
                self._sink.refused(stream, "reset")
            case events.ConnectionTerminated():
                self.close()
            case _:
                self.take(event)

    def take(self, event: events.QuicEvent) -> None:
        raise NotImplementedError


class _Doq(_Quic):
    alpn = "doq"
    no_error, cancelled = DOQ_NO_ERROR, DOQ_REQUEST_CANCELLED

    def send(self, exchange: Exchange) -> int:
        stream = self._quic.get_next_available_stream_id()
        self._streams[stream] = bytearray()
        self._quic.send_stream_data(stream, framed(exchange.packet), end_stream=True)
        self.transmit()
        return stream

    def take(self, event: events.QuicEvent) -> None:
        match event:
            case events.StreamDataReceived(stream_id=stream) if stream in self._streams:
                body: bytearray = self._streams[stream]
                body += event.data
                if event.end_stream or len(body) > MESSAGE_MAX + 2:
                    del self._streams[stream]
                    self._end(stream, bytes(body))
            case _:
                pass

    def _end(self, stream: int, body: bytes) -> None:
        if len(body) > 3 and int.from_bytes(body[:2], "big") == len(body) - 2:
            self._sink.answered(stream, b"\0\0" + body[4:])
        else:
            self._sink.refused(stream, "malformed")


class _H3(_Quic):
    alpn = "h3"
    no_error, cancelled = int(ErrorCode.H3_NO_ERROR), int(ErrorCode.H3_REQUEST_CANCELLED)

    def __init__(self, address: UpstreamAddress, sink: Sink, quic: QuicConnection) -> None:
        super().__init__(address, sink, quic)
        self._http = H3Connection(quic)

    def send(self, exchange: Exchange) -> int:
        stream = self._quic.get_next_available_stream_id()
        self._streams[stream] = Body()
        self._http.send_headers(stream, request_headers(self._address, len(exchange.packet)))
        self._http.send_data(stream, exchange.packet, end_stream=True)
        self.transmit()
        return stream

    def take(self, event: events.QuicEvent) -> None:
        for found in self._http.handle_event(event):
            match found:
                case HeadersReceived(stream_id=stream) if stream in self._streams:
                    self._streams[stream].take_headers(found.headers)
                    self._advance(stream, is_whole=found.stream_ended)
                case DataReceived(stream_id=stream) if stream in self._streams:
                    self._streams[stream].body += found.data
                    self._advance(stream, is_whole=found.stream_ended)
                case _:
                    pass

    def _advance(self, stream: int, *, is_whole: bool) -> None:
        body: Body = self._streams[stream]
        if is_whole or len(body.body) > MESSAGE_MAX:
            del self._streams[stream]
            body.end(self._sink, stream)
