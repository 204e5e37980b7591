"""Answers of many messages over streams: made as the client takes them, in the order of its
queries, and never passed off as whole."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from kudurru.adapters.dns.streams import ANSWERS_HELD_MAX, StreamLimits
from kudurru.adapters.sockets import split_address
from kudurru.domain.ports import Reply
from tests.dns_clients import framed, open_tls, read_message
from tests.engines import make_engine, serving, until
from tests.packets import ident, query

SIZE = 16_000
KERNEL_MAX = 8 << 20
"""Octets that two loopback sockets of this test hold at most."""


class Sender:
    """Answers `manyN` with N messages, `fail` with one and then a fault, the rest with one."""

    def __init__(self) -> None:
        self.made = 0
        self.open = 0

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        label = packet[13 : 13 + packet[12]].decode()
        head = packet[:2] + b"\x81\x80" + packet[4:]
        if label.startswith("many"):
            messages = self._messages(head, int(label[4:]))
            return Reply(next(messages), False, messages)
        if label == "fail":
            return Reply(head, False, self._fail())
        return Reply(head, False)

    def _messages(self, head: bytes, count: int) -> Iterator[bytes]:
        self.open += 1
        try:
            for number in range(count):
                self.made += 1
                yield head + number.to_bytes(4, "big") + bytes(SIZE)
        finally:
            self.open -= 1

    def _fail(self) -> Iterator[bytes]:
        raise RuntimeError("a record that fits into no message")
        yield b""


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *packets: bytes) -> None:
        self.writer.write(framed(*packets))

    async def numbers(self, count: int, packet: bytes) -> list[int]:
        at = len(packet)
        read = [await read_message(self.reader) for _ in range(count)]
        return [int.from_bytes(wire[at : at + 4], "big") for wire in read]


@contextlib.asynccontextmanager
async def client(engine: Any, proto: str = "tcp", *, slow: bool = False) -> AsyncIterator[Client]:
    """`slow` has small buffers."""
    address = split_address(engine.addresses[0])
    if proto == "tls":
        reader, writer = await open_tls(address)
    else:
        sock = socket.socket()
        if slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
        reader, writer = await asyncio.open_connection(sock=sock, limit=16_384)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("proto", ["tcp", "tls"])
def test_all_messages_come_in_order_and_then_the_answers_to_later_queries(proto: str) -> None:
    async def main() -> None:
        sender = Sender()
        async with serving(proto, sender) as engine, client(engine, proto) as one:
            first, second, third = query("many300"), query("many3"), query("one", ident=9)
            one.send(first, second, third)
            assert await one.numbers(300, first) == list(range(300))
            assert await one.numbers(3, second) == list(range(3))
            assert ident(await read_message(one.reader)) == 9
            assert sender.open == 0

    asyncio.run(main())


def test_messages_are_made_only_as_fast_as_the_client_takes_them() -> None:
    async def main() -> None:
        sender = Sender()
        async with serving("tcp", sender) as engine, client(engine, slow=True) as one:
            packet = query("many100000")
            one.send(packet)
            await until(lambda: any(c._is_waiting_for_client for c in engine.connections))
            held = sender.made * SIZE
            assert held < KERNEL_MAX + ANSWERS_HELD_MAX
            assert await one.numbers(1000, packet) == list(range(1000))
            assert sender.made * SIZE < 1000 * SIZE + KERNEL_MAX + ANSWERS_HELD_MAX

    asyncio.run(main())


def test_other_clients_are_answered_while_a_transfer_is_sent() -> None:
    async def main() -> None:
        sender = Sender()
        async with serving("tcp", sender) as engine, client(engine) as one, client(engine) as two:
            one.send(query("many100000"))
            await read_message(one.reader)
            two.send(query("one", ident=7))
            assert ident(await read_message(two.reader)) == 7
            assert sender.open == 1

    asyncio.run(main())


def test_a_client_that_goes_away_ends_its_transfer() -> None:
    async def main() -> None:
        sender = Sender()
        async with serving("tcp", sender) as engine:
            async with client(engine, slow=True) as one:
                one.send(query("many100000"))
                await read_message(one.reader)
            await until(lambda: not len(engine.connections))
            assert sender.open == 0

    asyncio.run(main())


def test_a_client_that_stops_reading_loses_its_connection() -> None:
    async def main() -> None:
        sender = Sender()
        limits = StreamLimits(request_s=30)
        async with (
            serving("tcp", sender, limits=limits) as engine,
            client(engine, slow=True) as one,
        ):
            one.send(query("many100000"))
            await until(lambda: any(c._is_waiting_for_client for c in engine.connections))
            now_s = asyncio.get_running_loop().time()
            engine.connections.expire(now_s + 29)
            assert sender.open == 1
            engine.connections.expire(now_s + 31)
            await until(lambda: not len(engine.connections))
            assert sender.open == 0

    asyncio.run(main())


def test_a_client_that_sends_no_more_still_gets_all_of_it() -> None:
    async def main() -> None:
        async with serving("tcp", Sender()) as engine, client(engine) as one:
            packet = query("many200")
            one.send(packet)
            one.writer.write_eof()
            assert await one.numbers(200, packet) == list(range(200))
            assert await one.reader.read() == b""

    asyncio.run(main())


def test_an_answer_that_cannot_be_finished_ends_with_its_connection() -> None:
    async def main() -> None:
        faults: list[Any] = []
        engine = make_engine("tcp", Sender())
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        async with asyncio.timeout(60):
            await engine.start()
            async with client(engine) as one:
                one.send(query("fail"), query("one"))
                await read_message(one.reader)
                with contextlib.suppress(ConnectionError):
                    assert await one.reader.read() == b""
            await engine.stop()
        assert engine.statistics().unhandled_exceptions == 1
        assert len(faults) == 1

    asyncio.run(main())
