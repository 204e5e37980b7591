"""What DNS over TCP adds to the contract of packet engines: streams, limits, deadlines."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest

from kudurru.adapters import turns
from kudurru.adapters.dns import tcp
from kudurru.adapters.dns.streams import ANSWERS_HELD_MAX, READ_MAX, StreamLimits
from kudurru.adapters.dns.tcp import MISS, QUERIES_PER_TURN, TcpServer
from kudurru.adapters.sockets import Listener, bind_all, split_address
from kudurru.domain.ports import Reply
from tests.packets import ident, query


class Echo:
    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        if b"drop" in packet:
            return None
        size = 60_000 if b"large" in packet else 0
        return Reply(packet[:2] + b"\x81\x80" + packet[4:] + bytes(size), memo=False)


@contextlib.asynccontextmanager
async def serving(limits: StreamLimits | None = None) -> AsyncIterator[TcpServer]:
    (bound,) = bind_all([Listener("tcp", "127.0.0.1:0")])
    server = TcpServer(Echo(), bound.sockets, limits=limits)
    async with asyncio.timeout(60):
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *packets: bytes) -> None:
        self.writer.write(b"".join(len(one).to_bytes(2, "big") + one for one in packets))

    async def read(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(2), "big")
        return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        """Wait for the end: nothing more came before it."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


@contextlib.asynccontextmanager
async def client(server: TcpServer) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*split_address(server.addresses[0]))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def test_a_message_may_arrive_octet_by_octet() -> None:
    async def main() -> None:
        async with serving() as server, client(server) as one:
            packet = query("www.example", ident=5)
            for octet in len(packet).to_bytes(2, "big") + packet:
                one.writer.write(bytes((octet,)))
                await one.writer.drain()
                await asyncio.sleep(0)
            assert ident(await one.read()) == 5

    asyncio.run(main())


def test_an_answer_does_not_wait_for_the_one_before_it_to_be_acknowledged() -> None:
    async def main() -> None:
        async with serving() as server, client(server) as one:
            one.send(query("www.example"))
            await one.read()
            (connection,) = server.connections
            sock = connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    asyncio.run(main())


def test_the_largest_message_is_answered() -> None:
    async def main() -> None:
        async with serving() as server, client(server) as one:
            one.send((query("www.example") + bytes(70_000))[:65_535])
            assert len(await one.read()) == 65_535

    asyncio.run(main())


def test_one_connection_does_not_keep_another_waiting(monkeypatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0)  # a turn is over after one piece of work

    async def main() -> None:
        async with serving() as server, client(server) as greedy, client(server) as modest:
            greedy.send(*[query("www.example")] * 1400)
            modest.send(query("www.example"))
            await modest.read()
            assert server.statistics().received < 1000
            for _ in range(1400):
                await greedy.read()


def test_answers_of_one_connection_are_made_a_few_at_a_time(monkeypatch) -> None:
    """So that a thousand connections together do not keep the loop from DNS over UDP."""
    monkeypatch.setattr(turns, "TURN_S", 0)
    count = 300

    async def main() -> list[int]:
        async with serving() as server, client(server) as one:
            one.send(*[query("www.example")] * count)
            seen = [0]
            while seen[-1] < count:
                await asyncio.sleep(0)
                seen.append(server.statistics().received)
            return seen

    seen = asyncio.run(main())
    assert max(b - a for a, b in pairwise(seen)) <= QUERIES_PER_TURN // MISS


def test_nothing_is_read_while_the_client_takes_nothing(monkeypatch) -> None:
    """Whatever made us write, an answer or the protocol below: what it makes us hold is bounded."""
    monkeypatch.setattr(turns, "TURN_S", 1000)

    async def main() -> None:
        async with serving() as server, client(server) as one:
            await until(lambda: len(server.connections) == 1)
            (connection,) = server.connections
            connection.pause_writing()
            assert not connection._transport.is_reading()
            one.send(query("www.example"))
            connection.resume_writing()
            assert connection._transport.is_reading()
            await one.read()

    asyncio.run(main())


def test_a_client_that_has_shut_down_its_side_still_gets_its_answers() -> None:
    async def main() -> None:
        async with serving() as server, client(server) as one:
            one.send(*(query("www.example", ident=number) for number in range(350)))
            one.writer.write_eof()
            assert [ident(await one.read()) for _ in range(350)] == list(range(350))
            assert await one.is_closed()

    asyncio.run(main())


@pytest.mark.parametrize("packet", [b"", b"x", b"x" * 11], ids=["empty", "one", "eleven"])
def test_a_message_without_a_whole_header_closes_the_connection(packet: bytes) -> None:
    async def main() -> None:
        async with serving() as server, client(server) as one:
            one.send(query("first.example", ident=1), packet, query("late.example", ident=2))
            assert ident(await one.read()) == 1
            assert await one.is_closed()
            assert server.statistics().dropped_malformed == 1
            assert server.statistics().received == 2

    asyncio.run(main())


def test_a_drop_closes_after_the_answers_before_it() -> None:
    async def main() -> None:
        async with serving() as server, client(server) as one:
            one.send(query("first.example", ident=1), query("drop.example"), query("late.example"))
            assert ident(await one.read()) == 1
            assert await one.is_closed()
            assert server.statistics().dropped_by_handler == 1

    asyncio.run(main())


def test_an_idle_connection_is_closed_after_ten_seconds_and_a_busy_one_is_not() -> None:
    async def main() -> None:
        async with serving() as server, client(server) as one:
            one.send(query("www.example"))
            await one.read()
            server.connections.expire(after(9.9))
            one.send(query("www.example"))
            await one.read()
            server.connections.expire(after(10))
            assert await one.is_closed()
            assert server.statistics().connections_timed_out == 1

    asyncio.run(main())


def test_octets_that_trickle_do_not_move_the_deadline_of_their_message() -> None:
    async def main() -> None:
        limits = StreamLimits(idle_s=1000, request_s=30)
        async with serving(limits) as server, client(server) as one:
            one.writer.write(b"\0")
            await until(lambda: bool(under_way(server)))
            (connection,) = under_way(server)
            begun = connection.deadline_s
            one.writer.write(b"\x20abc")
            await until(lambda: len(connection._arrived) == 5)
            assert connection.deadline_s == begun
            server.connections.expire(begun)
            assert await one.is_closed()

    asyncio.run(main())


def under_way(server: TcpServer) -> list[tcp._Connection]:
    return [one for one in server.connections if one._arrived]


def test_a_client_that_takes_no_answers_is_not_read_from_and_then_cut() -> None:
    async def main() -> None:
        async with serving() as server, client(server) as one:
            sock = one.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.writer.transport.pause_reading()
            one.send(*[query("large.example")] * 2000)
            await until(lambda: any(c._is_waiting_for_client for c in server.connections))
            (connection,) = server.connections
            received = server.statistics().received
            for _ in range(100):
                await asyncio.sleep(0)
            assert server.statistics().received == received < 1000
            held = connection._transport.get_write_buffer_size()
            assert held <= ANSWERS_HELD_MAX + 65_537
            assert len(connection._arrived) <= READ_MAX + 65_537
            server.connections.expire(after(29))
            assert len(server.connections) == 1
            server.connections.expire(after(30))
            await until(lambda: len(server.connections) == 0)

    asyncio.run(main())


def test_answers_go_on_when_a_slow_client_reads_again() -> None:
    async def main() -> None:
        async with serving() as server, client(server) as one:
            one.writer.transport.pause_reading()
            one.send(*(query("large.example", ident=number) for number in range(200)))
            await until(lambda: any(c._is_waiting_for_client for c in server.connections))
            one.writer.transport.resume_reading()
            assert [ident(await one.read()) for _ in range(200)] == list(range(200))

    asyncio.run(main())


def test_connections_over_a_limit_are_refused_and_room_comes_back() -> None:
    async def main() -> None:
        limits = StreamLimits(connections=3, connections_per_network=2)
        async with serving(limits) as server:
            async with client(server) as first, client(server) as second, client(server) as third:
                for one in (first, second):
                    one.send(query("www.example"))
                    await one.read()
                assert await third.is_closed()
                assert server.statistics().connections_refused == 1
            await until(lambda: len(server.connections) == 0)
            async with client(server) as fourth:
                fourth.send(query("www.example"))
                await fourth.read()
            assert server.statistics().connections_accepted == 3

    asyncio.run(main())


def test_stopping_lets_answers_leave_and_cuts_who_does_not_take_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with serving(StreamLimits(drain_s=0.01)) as server, client(server) as one:
            one.writer.transport.pause_reading()
            one.send(*[query("large.example")] * 2000)
            await until(lambda: any(c._is_waiting_for_client for c in server.connections))
            await server.stop()
            assert len(server.connections) == 0
            said = "1 connections are cut, as they did not end in 0.01 s: of 127.0.0.1"
            assert said in caplog.text

    asyncio.run(main())
