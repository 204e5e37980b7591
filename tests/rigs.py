"""A packet engine that runs, of any kind, and a client of it: real sockets on loopback, port 0."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kudurru.adapters.certificates import Certificates
from kudurru.adapters.clock import SystemClock
from kudurru.adapters.dns import engine_native, mmsg
from kudurru.adapters.dns.engine_native import AnswerTable, NativeEngine
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.dns.https import ALPN, HttpsServer
from kudurru.adapters.dns.memo import Memo
from kudurru.adapters.dns.quic import QuicServer
from kudurru.adapters.dns.streams import StreamLimits
from kudurru.adapters.dns.tcp import TcpServer
from kudurru.adapters.sockets import CARRIERS, Listener, bind_all, split_address
from kudurru.domain.later import Later
from kudurru.domain.ports import PacketEngine, QueryLimiter, Reply
from kudurru.projections.pipeline.ratelimit import RateLimiter
from tests.certificates import write_pair
from tests.dns_clients import (
    Answered,
    Http1,
    Http2,
    Http3,
    Quic,
    framed,
    open_doq,
    open_http1,
    open_http2,
    open_http3,
    open_tls,
    post,
    read_message,
)

DEADLINE_S = 60  # nothing takes as long, whoever else uses the machine


DRAIN_S = 0.3  # at stop, for answers that are to come


class Handler:
    """Answers with QR, the question, and how often it was asked. Names say what else it does."""

    def __init__(self) -> None:
        self.asked = 0
        self.laters: list[tuple[Later[Reply | None], Reply]] = []

    def settle(self, *order: int, reply: Reply | None = None) -> None:
        """Answer what waits, in this order; `reply` in the place of the right one."""
        for i in order:
            later, right = self.laters[i]
            later.settle(reply or right)

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | Later[Reply | None] | None:
        self.asked += 1
        first = packet[13 : 13 + packet[12]].lower()
        if first == b"drop":
            return None
        if first == b"boom":
            raise RuntimeError("a fault of the handler")
        if first == b"huge":
            return Reply(packet + bytes(70_000), memo=True)
        wire = packet[:2] + b"\x81\x83" + packet[4:] + self.asked.to_bytes(4, "big")
        if first == b"who":
            wire += f"{proto} {client}".encode()
        if first == b"late":
            later: Later[Reply | None] = Later()
            self.laters.append((later, Reply(wire, memo=True)))
            return later
        return Reply(wire, memo=first != b"private")


class Rig:
    """One engine that runs, and a client of it."""

    def __init__(self, kind: str, handler: Handler, address: str, count: int = 1) -> None:
        self.kind, self.handler = kind, handler
        self.client = kind.removesuffix(WITH_TABLE)  # what it speaks
        self.proto = PROTOCOLS[kind]
        self.carrier = CARRIERS[self.proto]
        (bound,) = bind_all([Listener(self.proto, address)], count)
        self.sockets = bound.sockets
        self.engine = self._engine(handler)
        self.target = split_address(bound.address)
        self.faults: list[dict[str, Any]] = []

    def _engine(self, handler: Handler) -> PacketEngine:
        limits = StreamLimits(drain_s=DRAIN_S)
        if self.kind == "native":
            return NativeEngine(handler, self.sockets, table=table_of(handler), drain_s=DRAIN_S)
        if self.proto == "udp":
            batched = self.kind == "batched"
            return PythonEngine(handler, self.sockets, batched=batched, drain_s=DRAIN_S)
        memo = table_of(handler).new_scope() if self.kind.endswith(WITH_TABLE) else Memo()
        if self.proto == "tcp":
            return TcpServer(handler, self.sockets, limits=limits, memo=memo)
        with tempfile.TemporaryDirectory() as folder:
            cert, key = write_pair(Path(folder))
            certificates = Certificates(str(cert), str(key), SystemClock())
            tls, https = certificates.context("dot"), certificates.context(*ALPN)
        if self.proto == "tls":
            return TcpServer(handler, self.sockets, tls=tls, limits=limits, memo=memo)
        if self.proto == "https":
            return HttpsServer(handler, self.sockets, tls=https, limits=limits, memo=memo)
        return QuicServer(
            handler,
            self.sockets,
            proto=self.proto,
            certificate=lambda: certificates.current,
            limits=limits,
            memo=memo,
        )

    def limit_by(self, limiter: QueryLimiter) -> None:
        if self.kind == "native":
            assert isinstance(limiter, RateLimiter)  # the threads count by its buckets
            self.engine = NativeEngine(self.handler, self.sockets, limiter=limiter)
        else:
            self.engine = PythonEngine(
                self.handler, self.sockets, batched=self.kind == "batched", limiter=limiter
            )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Rig"]:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: self.faults.append(fault))
        async with asyncio.timeout(DEADLINE_S):
            await self.engine.start()
            try:
                yield self
            finally:
                await self.engine.stop()

    async def exchange(self, *packets: bytes, answers: int | None = None) -> list[bytes]:
        """Over a connection of its own."""
        async with self.connected() as exchange:
            return await exchange(*packets, answers=answers)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator["Exchange"]:
        """A connection, for one exchange after the other."""
        match self.client:
            case "tcp" | "tls":
                is_tls = self.client == "tls"
                opening = open_tls(self.target) if is_tls else asyncio.open_connection(*self.target)
                reader, writer = await opening
                try:
                    yield partial(over_stream, reader, writer)
                finally:
                    writer.close()
            case "http1":
                async with open_http1(self.target) as one:
                    yield partial(over_http1, one)
            case "http2":
                async with open_http2(self.target) as two:
                    yield partial(over_http2, two)
            case "http3":
                async with open_http3(self.target) as three:
                    yield partial(over_http3, three)
            case "doq":
                async with open_doq(self.target) as doq:
                    yield partial(over_doq, doq)
            case _:
                family = socket.AF_INET6 if ":" in self.target[0] else socket.AF_INET
                with socket.socket(family, socket.SOCK_DGRAM) as sock:
                    sock.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(sock, self.target)
                    yield partial(over_datagrams, sock)


class Exchange(Protocol):
    async def __call__(self, *packets: bytes, answers: int | None = None) -> list[bytes]:
        """Send all, then read as many answers as queries, or `answers`."""


async def over_stream(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *packets: bytes,
    answers: int | None = None,
) -> list[bytes]:
    writer.write(framed(*packets))
    count = len(packets) if answers is None else answers
    return [await read_message(reader) for _ in range(count)]


async def over_http1(client: Http1, *packets: bytes, answers: int | None = None) -> list[bytes]:
    return [ok(await client.request(*post(packet))) for packet in packets]


async def over_http2(client: Http2, *packets: bytes, answers: int | None = None) -> list[bytes]:
    return [ok(found) for found in await client.all(*map(post, packets))]


async def over_http3(client: Http3, *packets: bytes, answers: int | None = None) -> list[bytes]:
    asked = [client.request(*post(packet)) for packet in packets]
    return [ok(found) for found in await asyncio.gather(*asked)]


async def over_doq(client: Quic, *packets: bytes, answers: int | None = None) -> list[bytes]:
    return await asyncio.gather(*map(client.ask, packets))


async def over_datagrams(
    sock: socket.socket, *packets: bytes, answers: int | None = None
) -> list[bytes]:
    loop = asyncio.get_running_loop()
    for one in packets:
        await loop.sock_sendall(sock, one)
    count = len(packets) if answers is None else answers
    return [await loop.sock_recv(sock, 65_535) for _ in range(count)]


def table_of(handler: Handler) -> AnswerTable:
    table = AnswerTable()
    table.sample(getattr(handler, "ONE_IN", 1))
    return table


def ok(found: Answered) -> bytes:
    if found.is_reset:
        raise ConnectionResetError
    assert found.status == 200
    return found.body


STREAMS = {
    "tcp": "tcp",
    "tls": "tls",
    "http1": "https",
    "http2": "https",
    "http3": "h3",
    "doq": "quic",
}


WITH_TABLE = " with table"  # in C; else with a memo in Python


PROTOCOLS = {"plain": "udp", "batched": "udp", "native": "udp", **STREAMS}
if engine_native.is_available():
    PROTOCOLS |= {kind + WITH_TABLE: proto for kind, proto in STREAMS.items()}


BURSTS = {"udp": 200, "h3": 100, "quic": 100}  # queries at once


IS_HERE = {"batched": mmsg.is_available(), "native": engine_native.is_available()}


KINDS = [kind for kind in PROTOCOLS if IS_HERE.get(kind, True)]


UDP_KINDS = [kind for kind in KINDS if PROTOCOLS[kind] == "udp"]


OTHER_KINDS = [kind for kind in KINDS if PROTOCOLS[kind] != "udp"]


def serve(
    kind: str,
    scenario: Callable[[Rig, Handler], Coroutine[Any, Any, None]],
    address: str = "127.0.0.1:0",
    count: int = 1,
) -> None:
    async def main() -> None:
        handler = Handler()
        async with Rig(kind, handler, address, count).running() as rig:
            await scenario(rig, handler)

    asyncio.run(main())


def count_of(answer: bytes, question: bytes) -> int:
    """Which asking of the handler an answer comes from."""
    return int.from_bytes(answer[len(question) : len(question) + 4], "big")


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until it holds; the scenario's deadline bounds it."""
    while not condition():
        await asyncio.sleep(0)
