"""Asking a listener of one's own, over every transport."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kudurru.adapters.dns.probe import probe, target_of
from kudurru.domain.errors import Unreachable
from kudurru.domain.ports import Reply
from tests.engines import DEADLINE_S, LOOPBACK, serving
from tests.packets import query

PACKET = query("health.kudurru.internal", ident=4711)


class Echo:
    """Sends every message back as a response, and counts."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def handle(self, packet: bytes, client: str, proto: str) -> Reply:
        self.asked.append((client, proto))
        return Reply(packet[:2] + b"\x80" + packet[3:], False)


@pytest.mark.parametrize("proto", ["udp", "tcp", "tls", "https", "h3", "quic"])
def test_a_listener_that_serves_answers(proto: str) -> None:
    async def main() -> None:
        handler = Echo()
        async with serving(proto, handler) as engine:
            for _ in range(2):
                await probe(proto, engine.addresses[0], PACKET)
        if proto not in ("h3", "quic"):  # those are asked for their versions only
            assert handler.asked == [("127.0.0.1", proto)] * 2

    asyncio.run(main())


@pytest.mark.parametrize("proto", ["udp", "tcp", "tls", "https"])
def test_a_listener_behind_a_balancer_on_this_machine_gets_the_header_that_is_due(
    proto: str,
) -> None:
    async def main() -> None:
        handler = Echo()
        async with serving(proto, handler, proxies=LOOPBACK) as engine:
            await probe(proto, engine.addresses[0], PACKET, is_proxied=True)
        assert handler.asked == [("127.0.0.1", proto)]

    asyncio.run(main())


@contextmanager
def bound(kind: socket.SocketKind) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock


def address(sock: socket.socket) -> str:
    return "{}:{}".format(*sock.getsockname())


@pytest.mark.parametrize("proto", ["tcp", "tls", "https"])
def test_a_port_that_nobody_listens_on_is_unreachable(proto: str) -> None:
    with bound(socket.SOCK_STREAM) as sock, pytest.raises(Unreachable, match="refused"):
        asyncio.run(probe(proto, address(sock), PACKET))


@pytest.mark.parametrize("proto", ["udp", "quic", "tcp", "tls", "https"])
def test_a_socket_that_nobody_serves_is_waited_for(proto: str) -> None:
    """Until the caller gives it up."""

    async def main(sock: socket.socket) -> None:
        asking = asyncio.create_task(probe(proto, address(sock), PACKET))
        done, _ = await asyncio.wait({asking}, timeout=0.2)
        assert not done
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    kind = socket.SOCK_DGRAM if proto in ("udp", "quic") else socket.SOCK_STREAM
    with bound(kind) as sock:
        if kind is socket.SOCK_STREAM:
            sock.listen()
        asyncio.run(main(sock))


@pytest.mark.parametrize("proto", ["udp", "tcp", "tls", "https", "quic"])
def test_what_answers_something_else_is_not_this_listener(proto: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        if proto in ("udp", "quic"):

            class Other(asyncio.DatagramProtocol):
                def connection_made(self, transport: asyncio.BaseTransport) -> None:
                    self.transport = transport

                def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
                    self.transport.sendto(b"something else", addr)  # type: ignore[attr-defined]  # of a datagram

            transport, _ = await loop.create_datagram_endpoint(Other, local_addr=("127.0.0.1", 0))
            where = "{}:{}".format(*transport.get_extra_info("sockname"))
        else:

            async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read(1)
                writer.write(b"\x00\x04else")
                writer.close()

            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            where = "{}:{}".format(*server.sockets[0].getsockname())
            transport = server  # type: ignore[assignment]  # both are closed alike
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(Unreachable):
                await probe(proto, where, PACKET)
        transport.close()
        for _ in range(10):  # in which the sockets of both ends are closed
            await asyncio.sleep(0)

    asyncio.run(main())


def test_a_machine_that_cannot_ask_itself_says_nothing_of_the_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(asyncio, "open_connection", refuses)
    asyncio.run(probe("tcp", "[::]:53", PACKET))


def test_what_is_bound_everywhere_is_asked_over_loopback() -> None:
    assert target_of("0.0.0.0:53") == ("127.0.0.1", 53)
    assert target_of("[::]:53") == ("::1", 53)
    assert target_of("192.0.2.1:53") == ("192.0.2.1", 53)
