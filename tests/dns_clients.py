"""Small DNS clients for every transport, made for tests: they send what they are told to."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any, TypeVar

import h2.config
import h2.connection
import h2.events
import h11
from aioquic.asyncio import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from tests.certificates import SERVER_NAME

Target = tuple[str, int]
Headers = list[tuple[bytes, bytes]]
MEDIA_TYPE = (b"content-type", b"application/dns-message")


class Answered:
    """A response of HTTP. `is_reset`: the server gave it up."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.is_reset = False

    def take_headers(self, headers: Headers) -> None:
        self.headers = {bytes(name).lower(): bytes(value) for name, value in headers}
        self.status = int(self.headers.get(b":status", b"0"))


def framed(*packets: bytes) -> bytes:
    return b"".join(len(one).to_bytes(2, "big") + one for one in packets)


async def read_message(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))


@cache
def client_context(*alpn: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


async def open_tls(
    target: Target, *alpn: str, sock: socket.socket | None = None, name: str = SERVER_NAME
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with TLS, on a socket that is connected when one is given."""
    place: dict[str, Any] = {"host": target[0], "port": target[1]}
    return await asyncio.open_connection(
        **({"sock": sock} if sock else place),
        ssl=client_context(*alpn),
        server_hostname=name,
    )


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait for the end: nothing more came before it."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def post(packet: bytes, path: bytes = b"/dns-query") -> tuple[bytes, bytes, Headers, bytes]:
    return b"POST", path, [MEDIA_TYPE, (b"content-length", b"%d" % len(packet))], packet


class Http1:
    """HTTP/1.1 on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)

    async def request(
        self, method: bytes, path: bytes, headers: Headers, body: bytes = b""
    ) -> Answered:
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        fields = [(b"host", SERVER_NAME.encode()), *headers]
        head = h11.Request(method=method, target=path, headers=fields)
        for event in (head, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()):
            self.writer.write(self._http.send(event) or b"")
        return await self._response()

    async def _response(self) -> Answered:
        found = Answered()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                octets = await self.reader.read(65_536)
                if not octets and not found.status:
                    found.is_reset = True
                    return found
                self._http.receive_data(octets)
            elif isinstance(event, h11.Response):
                found.take_headers(list(event.headers))
                found.status = event.status_code
            elif isinstance(event, h11.Data):
                found.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return found


class Http2:
    """HTTP/2 on one connection; requests may be under way together."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.http.initiate_connection()
        self.http.increment_flow_control_window(1 << 24)
        self.terminated: int | None = None  # the code of a GOAWAY

    async def request(
        self, method: bytes, path: bytes, headers: Headers, body: bytes = b""
    ) -> Answered:
        (found,) = await self.all((method, path, headers, body))
        return found

    async def hear_settings(self) -> None:
        """Until then a client goes by the defaults."""
        self.writer.write(self.http.data_to_send())
        is_known = False
        while not is_known:
            events = self.http.receive_data(await self.reader.read(65_536))
            is_known = any(isinstance(one, h2.events.RemoteSettingsChanged) for one in events)

    async def all(self, *requests: tuple[bytes, bytes, Headers, bytes]) -> list[Answered]:
        """Send all at once, as far as the server allows, and wait for every response."""
        waiting = list(requests)
        order: list[int] = []
        found: dict[int, Answered] = {}
        done: set[int] = set()
        while len(done) < len(requests):
            while waiting and len(order) - len(done) < 100:
                order.append(self.send(*waiting.pop(0)))
                found[order[-1]] = Answered()
            self.writer.write(self.http.data_to_send())
            octets = await self.reader.read(65_536)
            if not octets:
                raise EOFError
            for event in self.http.receive_data(octets):
                self._take(event, found, done)
        return [found[stream] for stream in order]

    def send(self, method: bytes, path: bytes, headers: Headers, body: bytes = b"") -> int:
        stream = self.http.get_next_available_stream_id()
        pseudo = [
            (b":method", method),
            (b":scheme", b"https"),
            (b":authority", SERVER_NAME.encode()),
            (b":path", path),
        ]
        self.http.send_headers(stream, [*pseudo, *headers], end_stream=not body)
        for at in range(0, len(body), 16_384):
            part = body[at : at + 16_384]
            self.http.send_data(stream, part, end_stream=at + 16_384 >= len(body))
        return stream

    def _take(self, event: Any, found: dict[int, Answered], done: set[int]) -> None:
        match event:
            case h2.events.ResponseReceived():
                found[event.stream_id].take_headers(event.headers)
            case h2.events.DataReceived():
                found[event.stream_id].body += event.data
                self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                done.add(event.stream_id)
            case h2.events.StreamReset():
                found[event.stream_id].is_reset = True
                done.add(event.stream_id)
            case h2.events.ConnectionTerminated():
                self.terminated = event.error_code


class Quic(QuicConnectionProtocol):
    """A QUIC connection. Of each stream: what came, and the end or the reset as a future."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.arrived: dict[int, bytes] = {}
        self.ends: dict[int, asyncio.Future[int | None]] = {}  # None, or the code of a reset
        self.terminated: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def expect(self, stream: int) -> asyncio.Future[int | None]:
        return self.ends.setdefault(stream, asyncio.get_running_loop().create_future())

    def quic_event_received(self, event: events.QuicEvent) -> None:
        match event:
            case events.StreamDataReceived(stream_id=stream):
                self.arrived[stream] = self.arrived.get(stream, b"") + event.data
                if event.end_stream:
                    self._end(stream, None)
            case events.StreamReset(stream_id=stream):
                self._end(stream, event.error_code)
            case events.ConnectionTerminated():
                if not self.terminated.done():
                    self.terminated.set_result(event.error_code)
                for future in self.ends.values():
                    if not future.done():
                        future.set_exception(ConnectionError(f"code {event.error_code}"))
                        future.exception()  # a test may never ask

    def _end(self, stream: int, code: int | None) -> None:
        if not (future := self.expect(stream)).done():
            future.set_result(code)

    def send(self, octets: bytes, *, fin: bool = True, stream: int | None = None) -> int:
        if stream is None:
            stream = self._quic.get_next_available_stream_id()
        self._quic.send_stream_data(stream, octets, end_stream=fin)
        self.expect(stream)
        self.transmit()
        return stream

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def ask(self, packet: bytes) -> bytes:
        """The answer to a query, as a DoQ client asks it: with an ID of zero."""
        stream = self.send(framed(b"\0\0" + packet[2:]))
        if (code := await self.ends[stream]) is not None:
            raise ConnectionResetError(code)
        octets = self.arrived[stream]
        assert int.from_bytes(octets[:2], "big") == len(octets) - 2
        assert octets[2:4] == b"\0\0"
        return packet[:2] + octets[4:]


class Http3(Quic):
    """HTTP/3 on one connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.http = H3Connection(self._quic)
        self.responses: dict[int, Answered] = {}

    def quic_event_received(self, event: events.QuicEvent) -> None:
        for found in self.http.handle_event(event):
            response = self.responses.setdefault(found.stream_id, Answered())
            if isinstance(found, HeadersReceived):
                response.take_headers(found.headers)
            elif isinstance(found, DataReceived):
                response.body += found.data
            if found.stream_ended:
                self._end(found.stream_id, None)
        if not isinstance(event, events.StreamDataReceived):
            super().quic_event_received(event)

    async def request(
        self, method: bytes, path: bytes, headers: Headers, body: bytes = b""
    ) -> Answered:
        stream = self._quic.get_next_available_stream_id()
        self.expect(stream)
        pseudo = [
            (b":method", method),
            (b":scheme", b"https"),
            (b":authority", SERVER_NAME.encode()),
            (b":path", path),
        ]
        self.http.send_headers(stream, [*pseudo, *headers], end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)
        self.transmit()
        code = await self.ends[stream]
        response = self.responses.setdefault(stream, Answered())
        response.is_reset = code is not None
        return response


@asynccontextmanager
async def open_http1(target: Target) -> AsyncIterator[Http1]:
    reader, writer = await open_tls(target, "http/1.1")
    try:
        yield Http1(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def open_http2(target: Target, name: str = SERVER_NAME) -> AsyncIterator[Http2]:
    reader, writer = await open_tls(target, "h2", name=name)
    try:
        client = Http2(reader, writer)
        await client.hear_settings()
        yield client
    finally:
        writer.close()


def quic_configuration(alpn: str) -> QuicConfiguration:
    return QuicConfiguration(
        is_client=True,
        alpn_protocols=[alpn],
        server_name=SERVER_NAME,
        verify_mode=ssl.CERT_NONE,
        max_datagram_size=1350,
    )


AQuic = TypeVar("AQuic", bound=Quic)


@asynccontextmanager
async def open_quic(
    target: Target, alpn: str, kind: type[AQuic], configuration: QuicConfiguration | None = None
) -> AsyncIterator[AQuic]:
    """aioquic's own `connect` wants IPv6, and waits at the end for what may come late."""
    loop = asyncio.get_running_loop()
    configuration = configuration or quic_configuration(alpn)
    transport, client = await loop.create_datagram_endpoint(
        lambda: kind(QuicConnection(configuration=configuration)),
        local_addr=("::1" if ":" in target[0] else "127.0.0.1", 0),
    )
    try:
        client.connect((*target, 0, 0) if ":" in target[0] else target)
        await client.wait_connected()
        yield client
    finally:
        client.close()
        client.stop_timer()
        transport.close()


def open_doq(
    target: Target, alpn: str = "doq", configuration: QuicConfiguration | None = None
) -> AbstractAsyncContextManager[Quic]:
    return open_quic(target, alpn, Quic, configuration)


def open_http3(
    target: Target, configuration: QuicConfiguration | None = None
) -> AbstractAsyncContextManager[Http3]:
    return open_quic(target, "h3", Http3, configuration)
