"""PROXY headers; the suite proxyv2 of tests/conformance has the cases of the specification."""

import asyncio
import contextlib
import socket
import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.connections import ConnectionLimits, Connections
from kudurru.adapters.dns.proxyproto import (
    HEADER_MAX,
    SIGNATURE,
    Malformed,
    read_header,
    refuse_header,
    unwrap,
)
from kudurru.adapters.dns.streams import StreamLimits
from kudurru.adapters.networks import Networks
from kudurru.adapters.sockets import split_address
from kudurru.domain.notation import parse_network
from kudurru.domain.ports import Reply
from tests.dns_clients import framed, is_closed, open_tls, read_message
from tests.engines import LOOPBACK, serving, until
from tests.packets import query

NOBODY = Networks([parse_network("192.0.2.0/24")])


class WhoAsks:
    """Answers with the client's address behind the question."""

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        return Reply(packet[:2] + b"\x81\x80" + packet[4:] + client.encode(), memo=False)


def header(client: str, *, protocol: int = 1, extras: bytes = b"") -> bytes:
    family = socket.AF_INET6 if ":" in client else socket.AF_INET
    address = socket.inet_pton(family, client)
    block = address + address + struct.pack("!2H", 1000, 53) + extras
    kind = (2 if ":" in client else 1) << 4 | protocol
    return SIGNATURE + bytes((0x21, kind)) + len(block).to_bytes(2, "big") + block


addresses = st.ip_addresses().map(str)


@given(addresses, st.integers(1, 2), st.binary(max_size=50))
def test_the_client_is_read_and_what_follows_is_left_alone(client, protocol, rest) -> None:
    whole = header(client, protocol=protocol)
    seen = str(getattr(ip_address(client), "ipv4_mapped", None) or client)
    assert read_header(whole + rest) == (len(whole), seen)
    assert unwrap(whole + rest, "127.0.0.1", is_believed=True) == (rest, seen)


@given(addresses, st.integers(0, 51))
def test_a_header_that_is_not_whole_wants_more(client, size) -> None:
    whole = header(client)
    if size < len(whole):
        assert read_header(whole[:size]) is None
        with pytest.raises(Malformed):
            unwrap(whole[:size], "127.0.0.1", is_believed=True)


@given(st.binary(max_size=200), st.booleans())
def test_octets_are_a_header_malformed_or_not_enough(octets, has_signature) -> None:
    whole = SIGNATURE * has_signature + octets
    with contextlib.suppress(Malformed):
        found = read_header(whole)
        assert found is None or found[0] <= len(whole)
    with contextlib.suppress(Malformed):
        refuse_header(whole)


@given(addresses, st.binary(max_size=60))
def test_one_octet_that_differs_is_seen_where_there_is_a_checksum(client, noise) -> None:
    blank = header(
        client, extras=b"\x04" + len(noise).to_bytes(2, "big") + noise + b"\x03\0\4" + bytes(4)
    )
    good = blank[:-4] + crc32c(blank).to_bytes(4, "big")
    assert read_header(good) is not None
    for at in (16, len(good) - 1):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(Malformed):
            read_header(bad)


def crc32c(octets: bytes) -> int:
    """Bit by bit, as RFC 3720 appendix B.4 defines it."""
    crc = 0xFFFFFFFF
    for octet in octets:
        crc ^= octet
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_a_header_may_not_be_as_long_as_it_likes() -> None:
    start = SIGNATURE + b"\x21\x11"
    assert read_header(start + (HEADER_MAX - 16).to_bytes(2, "big")) is None
    with pytest.raises(Malformed):
        read_header(start + (HEADER_MAX - 15).to_bytes(2, "big"))


def test_peers_that_are_not_believed_are_served_as_themselves_and_may_send_no_header() -> None:
    async def main() -> None:
        packet = query("www.example")
        async with serving("tcp", WhoAsks(), proxies=NOBODY) as engine:
            assert await over_tcp(engine, framed(packet)) == "127.0.0.1"
            assert await over_tcp(engine, header("203.0.113.9") + framed(packet)) is None
            assert engine.statistics().dropped_proxyproto == 1
        async with serving("udp", WhoAsks(), proxies=NOBODY) as engine:
            assert await over_udp(engine, header("203.0.113.9") + packet, packet) == "127.0.0.1"
            assert engine.statistics().dropped_proxyproto == 1

    asyncio.run(main())


async def over_tcp(engine, octets: bytes) -> str | None:
    reader, writer = await asyncio.open_connection(*split_address(engine.addresses[0]))
    writer.write(octets)
    try:
        return (await read_message(reader))[len(query("www.example")) :].decode()
    except (EOFError, ConnectionResetError):
        return None
    finally:
        writer.close()


async def over_udp(engine, *datagrams: bytes) -> str:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, split_address(engine.addresses[0]))
        for datagram in datagrams:
            await loop.sock_sendall(sock, datagram)
        return (await loop.sock_recv(sock, 4096))[len(query("www.example")) :].decode()


def test_a_header_comes_before_the_handshake_of_tls() -> None:
    async def main() -> None:
        async with serving("tls", WhoAsks(), proxies=LOOPBACK) as engine:
            target = split_address(engine.addresses[0])
            sock = socket.create_connection(target)
            sock.sendall(header("2001:db8::7"))
            sock.setblocking(False)
            reader, writer = await open_tls(target, sock=sock)
            writer.write(framed(query("www.example")))
            assert (await read_message(reader)).endswith(b"2001:db8::7")
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("proto", ["tcp", "tls"])
def test_who_never_finishes_the_header_is_cut_after_five_seconds(proto: str) -> None:
    async def main() -> None:
        async with serving(proto, WhoAsks(), proxies=LOOPBACK) as engine:
            reader, writer = await asyncio.open_connection(*split_address(engine.addresses[0]))
            writer.write(header("203.0.113.9")[:20])
            await until(lambda: len(engine.connections) == 1)
            now = asyncio.get_running_loop().time()
            engine.connections.expire(now + 4.9)
            assert engine.statistics().connections_timed_out == 0
            engine.connections.expire(now + 5)
            assert await is_closed(reader)
            writer.close()

    asyncio.run(main())


def test_connections_behind_a_balancer_count_for_their_clients() -> None:
    async def main() -> None:
        limits = StreamLimits(connections_per_network=2)
        async with serving("tcp", WhoAsks(), proxies=LOOPBACK, limits=limits) as engine:
            target = split_address(engine.addresses[0])
            opened = [await asyncio.open_connection(*target) for _ in range(5)]
            clients = ["203.0.113.1", "203.0.113.2", "203.0.113.1", "203.0.113.2", "203.0.113.1"]
            answered = []
            for (reader, writer), client in zip(opened, clients, strict=True):
                writer.write(header(client) + framed(query("www.example")))
                with contextlib.suppress(EOFError, ConnectionResetError):
                    answered.append((await read_message(reader))[len(query("www.example")) :])
            assert answered == [client.encode() for client in clients[:4]]
            assert engine.statistics().connections_refused == 1
            for _, writer in opened:
                writer.close()
            await until(lambda: len(engine.connections) == 0)

    asyncio.run(main())


def test_a_connection_that_moves_leaves_its_network() -> None:
    class One:
        deadline_s = 0.0
        network = ""

    async def main() -> None:
        limits = ConnectionLimits(connections=10, connections_per_network=1)
        connections: Connections = Connections(limits)
        first, second = One(), One()
        assert connections.add(first)
        assert connections.move(first, "a")
        assert connections.add(second)
        assert not connections.move(second, "a")
        assert connections.move(first, "b")
        assert connections.move(second, "a")
        connections.discard(first)
        assert len(connections) == 1

    asyncio.run(main())
