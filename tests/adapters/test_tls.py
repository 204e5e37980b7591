"""What TLS adds to DNS over TCP: handshakes, their deadline, the end that is said."""

import asyncio
import contextlib
import socket
import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.adapters.dns.streams import StreamLimits
from kudurru.adapters.sockets import split_address
from kudurru.domain.ports import Reply
from tests.certificates import SERVER_NAME, pair
from tests.dns_clients import framed, is_closed, open_tls, read_message
from tests.engines import serving, until
from tests.packets import ident, query


class Echo:
    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        assert proto == "tls"
        if b"drop" in packet:
            return None
        size = 60_000 if b"large" in packet else 0
        return Reply(packet[:2] + b"\x81\x80" + packet[4:] + bytes(size), memo=False)


def target_of(engine) -> tuple[str, int]:
    return split_address(engine.addresses[0])


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def test_the_certificate_is_the_one_of_the_files_and_dot_is_agreed_on() -> None:
    async def main() -> None:
        async with serving("tls", Echo()) as engine:
            context = ssl.create_default_context(cadata=pair()[0].decode())
            context.set_alpn_protocols(["dot"])
            reader, writer = await asyncio.open_connection(
                *target_of(engine), ssl=context, server_hostname=SERVER_NAME
            )
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "dot"
            writer.write(framed(query("www.example", ident=9)))
            assert ident(await read_message(reader)) == 9
            writer.close()

    asyncio.run(main())


def test_many_queries_in_one_record_or_one_over_many_are_all_answered() -> None:
    async def main() -> None:
        async with serving("tls", Echo()) as engine:
            reader, writer = await open_tls(target_of(engine))
            writer.write(framed(*(query("www.example", ident=number) for number in range(350))))
            for number in range(350):
                assert ident(await read_message(reader)) == number
            for octet in framed(query("www.example", ident=5)):
                writer.write(bytes((octet,)))
                await writer.drain()
            assert ident(await read_message(reader)) == 5
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("early", [b"", b"\x16\x03\x01\x02\x00", b"\x16"])
def test_a_handshake_that_stalls_is_cut_after_five_seconds(early: bytes) -> None:
    async def main() -> None:
        async with serving("tls", Echo()) as engine:
            reader, writer = await asyncio.open_connection(*target_of(engine))
            writer.write(early)
            await until(lambda: len(engine.connections) == 1)
            engine.connections.expire(after(4.9))
            assert engine.statistics().connections_timed_out == 0
            engine.connections.expire(after(5))
            assert await is_closed(reader)
            writer.close()

    asyncio.run(main())


def test_connections_that_shake_hands_count_against_the_limits() -> None:
    async def main() -> None:
        limits = StreamLimits(connections_per_network=2)
        async with serving("tls", Echo(), limits=limits) as engine:
            stalled = [await asyncio.open_connection(*target_of(engine)) for _ in range(2)]
            await until(lambda: len(engine.connections) == 2)
            with pytest.raises((OSError, EOFError)):
                await open_tls(target_of(engine))
            assert engine.statistics().connections_refused == 1
            for _, writer in stalled:
                writer.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "octets", [b"GET / HTTP/1.1\r\n\r\n", framed(query("www.example")), bytes(64)]
)
def test_what_is_no_tls_fails_its_handshake_and_is_counted(octets: bytes) -> None:
    async def main() -> None:
        async with serving("tls", Echo()) as engine:
            reader, writer = await asyncio.open_connection(*target_of(engine))
            writer.write(octets)
            with contextlib.suppress(ConnectionResetError):
                alert = await reader.read()
                assert alert[:1] in (b"", b"\x15")
            assert engine.statistics().handshakes_failed == 1
            writer.close()

    asyncio.run(main())


def test_a_drop_and_an_idle_connection_end_with_a_close_that_is_said() -> None:
    """A client can tell it from a cut: `read` would raise."""

    async def main() -> None:
        async with serving("tls", Echo()) as engine:
            reader, writer = await open_tls(target_of(engine))
            writer.write(framed(query("www.example", ident=1), query("drop.example")))
            assert ident(await read_message(reader)) == 1
            assert await reader.read() == b""
            reader, writer = await open_tls(target_of(engine))
            writer.write(framed(query("www.example")))
            await read_message(reader)
            engine.connections.expire(after(10))
            assert await reader.read() == b""

    asyncio.run(main())


def test_octets_that_trickle_do_not_move_the_deadline_of_their_message() -> None:
    async def main() -> None:
        async with serving("tls", Echo(), limits=StreamLimits(idle_s=1000)) as engine:
            reader, writer = await open_tls(target_of(engine))
            writer.write(b"\0")
            await until(lambda: any(one._arrived for one in engine.connections))
            (connection,) = engine.connections
            begun = connection.deadline_s
            assert begun <= after(30)
            for octet in b"\x20abcdef":
                writer.write(bytes((octet,)))
                await writer.drain()
            await until(lambda: len(connection._arrived) == 8)
            assert connection.deadline_s == begun
            engine.connections.expire(begun)
            assert await is_closed(reader)

    asyncio.run(main())


def test_a_client_that_takes_no_answers_is_not_read_from_and_then_cut() -> None:
    async def main() -> None:
        async with serving("tls", Echo()) as engine:
            _, writer = await open_tls(target_of(engine))
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.transport.pause_reading()
            writer.write(framed(*[query("large.example")] * 2000))
            await until(lambda: any(one._is_waiting_for_client for one in engine.connections))
            received = engine.statistics().received
            for _ in range(100):
                await asyncio.sleep(0)
            assert engine.statistics().received == received < 1000
            engine.connections.expire(after(30))
            await until(lambda: len(engine.connections) == 0)
            writer.transport.abort()

    asyncio.run(main())


def test_a_client_that_says_its_end_still_gets_its_answers() -> None:
    async def main() -> None:
        async with serving("tls", Echo()) as engine:
            sock = socket.create_connection(target_of(engine))
            loop = asyncio.get_running_loop()
            answers = await loop.run_in_executor(None, ask_and_say_end, sock)
            assert answers == [0, 1, 2]

    asyncio.run(main())


def ask_and_say_end(sock: socket.socket) -> list[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(65_536))
    tls.write(framed(*(query("www.example", ident=number) for number in range(3))))
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.unwrap()
    sock.sendall(outgoing.read())
    while octets := sock.recv(65_536):
        incoming.write(octets)
    sock.close()
    plain = b""
    with contextlib.suppress(ssl.SSLError):
        while part := tls.read(65_536):
            plain += part
    found = []
    while plain:
        size = int.from_bytes(plain[:2], "big")
        found.append(ident(plain[2 : 2 + size]))
        plain = plain[2 + size :]
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4), st.booleans())
def test_no_octets_before_or_after_the_handshake_harm_the_listener(pieces, is_inside) -> None:
    async def main() -> None:
        async with serving("tls", Echo()) as engine:
            opened = open_tls if is_inside else open_plain
            _, writer = await opened(target_of(engine))
            for piece in pieces:
                writer.write(piece)
            with contextlib.suppress(OSError):
                await writer.drain()
            reader2, writer2 = await open_tls(target_of(engine))
            writer2.write(framed(query("www.example", ident=3)))
            assert ident(await read_message(reader2)) == 3
            for one in (writer, writer2):
                one.transport.abort()

    asyncio.run(main())


async def open_plain(target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*target)


class Who:
    """Answers with what the client calls itself."""

    takes_client_ids = tells_clients_apart = True

    def names_id(self, client_id: str) -> bool:
        return True

    def handle(self, packet: bytes, client: str, proto: str, client_id: str = "") -> Reply:
        return Reply(packet + client_id.encode(), memo=False)


@pytest.mark.parametrize(
    ("name", "told"),
    [("Anna-Phone.dns.example", "anna-phone"), ("localhost", ""), (None, "")],
)
def test_a_client_says_who_it_is_by_the_name_that_it_asks_for(name: str | None, told: str) -> None:
    async def main() -> None:
        async with serving("tls", Who()) as engine:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            reader, writer = await asyncio.open_connection(
                *target_of(engine), ssl=context, server_hostname=name or ""
            )
            sent = query("www.example")
            writer.write(framed(sent))
            assert (await read_message(reader))[len(sent) :].decode().lower() == told
            writer.close()

    asyncio.run(main())
