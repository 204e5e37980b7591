"""Fuzz targets of the transports: connections in memory, in front of a real pipeline.

The first octet of an input says how the rest is cut into what arrives together.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, TypeVar

from aioquic.quic.connection import QuicConnection

from kudurru.adapters.dns.answering import Answering
from kudurru.adapters.dns.doh import Doh, Request
from kudurru.adapters.dns.engine_native import AnswerTable, is_available
from kudurru.adapters.dns.https import HttpsServer
from kudurru.adapters.dns.memo import Keeper, Memo
from kudurru.adapters.dns.proxyproto import Malformed, read_header, refuse_header, unwrap
from kudurru.adapters.dns.quic import QuicServer
from kudurru.adapters.dns.streams import StreamServer
from kudurru.adapters.dns.tcp import TcpServer
from kudurru.adapters.turns import Turns
from tests.conformance.answers import pipeline_of
from tests.dns_clients import quic_configuration
from tests.engines import LOOPBACK, certificates
from tests.zone_files import zone_from_text

ZONE = """
z. 60 IN SOA ns.z. host.z. 1 3600 600 86400 300
z. 60 IN NS ns.z.
*.z. 60 IN TXT "text"
a.z. 60 IN A 192.0.2.1
"""

Target = Callable[[bytes], None]
Result = TypeVar("Result")


def pipeline() -> Any:
    return pipeline_of(zone_from_text(ZONE, "z."))


def pieces(octets: bytes) -> list[bytes]:
    size = octets[0] or 4096 if octets else 1
    rest = octets[1:]
    return [rest[at : at + size] for at in range(0, len(rest), size)]


class Loop:
    """A loop that stands still between inputs. What falls through to it, as the faults of handlers
    do, fails the input."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, fault: self._faults.append(fault))
        self._faults: list[dict[str, Any]] = []

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        result = self._loop.run_until_complete(work)
        if self._faults:
            fault = self._faults[0]
            self._faults = []
            raise AssertionError(fault["message"]) from fault.get("exception")
        return result


def proxy() -> Target:
    def run(octets: bytes) -> None:
        for whole in (octets, b"\r\n\r\n\0\r\nQUIT\n" + octets):
            with contextlib.suppress(Malformed):
                read_header(whole)
            with contextlib.suppress(Malformed):
                refuse_header(whole)
            with contextlib.suppress(Malformed):
                unwrap(whole, "127.0.0.1", is_believed=bool(octets[:1] > b"\x80"))

    return run


def doh() -> Target:
    resource = Doh(Answering(pipeline(), "https", 65_535), LOOPBACK)
    methods = (b"GET", b"POST", b"HEAD", b"PUT")

    def run(octets: bytes) -> None:
        method = methods[octets[0] % 4] if octets else b"GET"
        rest = octets[1:]
        headers = [(b"content-type", b"application/dns-message"), (b"x-forwarded-for", rest[:40])]
        target = b"/dns-query?dns=" + rest
        response = resource.respond(Request(method, target, headers, rest), "127.0.0.1")
        assert response is None or 200 <= response.status < 500

    return run


# Streams


class Pipe(asyncio.Transport):
    """The end of a connection in memory; what is written is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.has_ended = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.has_ended

    def close(self) -> None:
        self.has_ended = True

    abort = close


class NoTls:
    """In place of TLS: the octets are what they are."""

    is_ready, has_ended = True, False
    client_id = ""

    def __init__(self, alpn: str) -> None:
        self.alpn = alpn

    def receive(self, octets: Any) -> bytes:
        return bytes(octets)

    def send(self, octets: Any) -> Any:
        return octets

    def pending(self) -> bytes:
        return b""

    close = pending


def connected(server: StreamServer, alpn: str, start: bytes) -> Target:
    """Runs a connection of the server on what arrives after `start`."""
    loop = Loop()

    async def serve(octets: bytes) -> None:
        connection: Any = server._make(server)
        if alpn:
            connection._tls = NoTls(alpn)
        pipe = Pipe()
        connection.connection_made(pipe)
        for piece in (start, *pieces(octets)):
            if pipe.has_ended:
                break
            server.buffer[: len(piece)] = piece
            connection.buffer_updated(len(piece))
            await asyncio.sleep(0)
        if not pipe.has_ended:
            connection.eof_received()
        turns = 0
        while not pipe.has_ended and turns < 1000:
            await asyncio.sleep(0)
            turns += 1
        assert pipe.has_ended, "the connection stays"
        connection.connection_lost(None)
        assert len(server.connections) == 0

    def run(octets: bytes) -> None:
        loop.run(serve(octets))

    return run


WORK_S = 0.0005


def _made(make: Callable[[Turns], StreamServer]) -> StreamServer:
    """Servers want a running loop to be made. Every piece of work takes as long as any other, so
    that an input goes the same way on every machine."""
    ticks = count()

    async def on_loop() -> StreamServer:
        return make(Turns(lambda: next(ticks) * WORK_S))

    return asyncio.run(on_loop())


def tcp() -> Target:
    server = _made(lambda turns: TcpServer(pipeline(), (), proxies=LOOPBACK, turns=turns))
    return connected(server, "", b"")


def http1() -> Target:
    return connected(_https(), "http/1.1", b"")


def http2() -> Target:
    start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    # By the library with a memo beside it, and from a table in C.
    memos = [Memo(), *([AnswerTable().new_scope()] if is_available() else [])]
    targets = [connected(_https(memo), "h2", start) for memo in memos]

    def run(octets: bytes) -> None:
        for target in targets:
            target(octets)

    return run


def _https(memo: Memo | Keeper | None = None) -> StreamServer:
    context = certificates()._contexts[("dot",)]
    return _made(
        lambda turns: HttpsServer(
            pipeline(), (), tls=lambda: context, trusted=LOOPBACK, memo=memo, turns=turns
        )
    )


# QUIC


class Wire:
    """A socket in memory: what was put in comes out, and what is sent is kept."""

    def __init__(self) -> None:
        self.incoming: deque[bytes] = deque()
        self.outgoing: list[bytes] = []

    def fileno(self) -> int:
        return 0

    def recvmsg_into(self, buffers: Any, _size: int) -> Any:
        if not self.incoming:
            raise BlockingIOError
        datagram = self.incoming.popleft()
        buffers[0][: len(datagram)] = datagram
        return len(datagram), [], 0, CLIENT

    def sendmsg(self, parts: Any, _control: Any, _flags: int, _address: Any) -> None:
        self.outgoing.append(parts[0])


CLIENT = ("127.0.0.1", 40_000)
SERVER = ("127.0.0.1", 853)


class InMemory:
    """A QUIC server and, for as long as its connection holds, one client."""

    def __init__(self, proto: str) -> None:
        self.proto = proto
        self.wire: Any = Wire()
        self.server = QuicServer(
            pipeline(), (), proto=proto, certificate=lambda: certificates().current
        )
        self.buffer = memoryview(bytearray(4097))
        self.client: Any = None

    def exchange(self) -> None:
        """Let all that is on its way arrive."""
        now = asyncio.get_running_loop().time()
        for _ in range(20):
            if self.client is not None:
                self.wire.incoming += [one for one, _ in self.client.datagrams_to_send(now=now)]
            if not self.wire.incoming:
                return
            while self.wire.incoming:
                self.server._serve(self.wire, self.buffer)
            for datagram in self.wire.outgoing:
                if self.client is not None:
                    self.client.receive_datagram(datagram, SERVER, now=now)
            self.wire.outgoing.clear()

    def connect(self) -> None:
        """A new client, when there is none whose connection holds."""
        if len(self.server.connections) and self.client is not None and not self.is_over():
            return
        for connection in list(self.server.connections):
            connection.abort()
        alpn = "h3" if self.proto == "h3" else "doq"
        self.client = QuicConnection(configuration=quic_configuration(alpn))
        self.client.connect(SERVER, now=asyncio.get_running_loop().time())
        self.exchange()
        assert len(self.server.connections) == 1

    def is_over(self) -> bool:
        return self.client._close_event is not None


def _over_streams(proto: str) -> Target:
    loop = Loop()

    async def make() -> InMemory:
        return InMemory(proto)

    memory = loop.run(make())

    async def serve(octets: bytes) -> None:
        memory.connect()
        kind = octets[:1] or b"\0"
        stream = memory.client.get_next_available_stream_id(is_unidirectional=kind[0] % 16 == 1)
        for piece in pieces(octets[1:]):
            memory.client.send_stream_data(stream, piece)
            if octets[1:2] < b"\x10":
                memory.exchange()
        if kind[0] % 16 == 2:
            memory.client.reset_stream(stream, 0)
        else:
            memory.client.send_stream_data(stream, b"", end_stream=True)
        memory.exchange()
        for connection in memory.server.connections:
            assert len(connection.streams) <= 100

    def run(octets: bytes) -> None:
        loop.run(serve(octets))

    return run


def doq() -> Target:
    return _over_streams("quic")


def h3() -> Target:
    return _over_streams("h3")


def quic() -> Target:
    """Datagrams that are no client's."""
    loop = Loop()

    async def make() -> InMemory:
        return InMemory("quic")

    memory = loop.run(make())

    async def serve(octets: bytes) -> None:
        memory.wire.incoming += [octets[:4096], (octets + bytes(1200))[:4096]]
        memory.exchange()
        for connection in list(memory.server.connections):
            connection.expire()
        assert not memory.server.by_id

    def run(octets: bytes) -> None:
        loop.run(serve(octets))

    return run
