"""The client that asks primaries, over real sockets."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import dns.message
import pytest

from kudurru.adapters.dns.transfer_client import AsyncTransferClient, ClientLimits
from kudurru.domain.errors import Unreachable
from kudurru.domain.ports import Peer
from tests.certificates import SERVER_NAME, write_pair
from tests.primaries import Script, SocketPrimary, whole

QUERY = dns.message.make_query("sec.example.", "AXFR").to_wire()
SOA_QUERY = dns.message.make_query("sec.example.", "SOA").to_wire()
SHORT = ClientLimits(udp_s=0.05, connect_s=0.5, message_s=0.1)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def framed(octets: bytes) -> bytes:
    return len(octets).to_bytes(2, "big") + octets


@asynccontextmanager
async def server(serve: Serve, tls: ssl.SSLContext | None = None):
    """A primary that does as `serve` says with each connection."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield Peer("127.0.0.1", port, is_tls=tls is not None)


async def collected(peer: Peer, limits: ClientLimits = SHORT) -> list[bytes]:
    return [message async for message in AsyncTransferClient(limits).fetch(peer, QUERY)]


async def two_messages(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(framed(b"one") + framed(b"two"))
    await writer.drain()


async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(framed(b"one") + b"\0\7half")
    await writer.drain()
    await reader.read()


def test_messages_come_one_by_one_until_the_peer_closes() -> None:
    async def main() -> None:
        async with server(two_messages) as peer:
            assert await collected(peer) == [b"one", b"two"]
            assert await AsyncTransferClient(SHORT).ask(peer, QUERY, stream=True) == b"one"

    asyncio.run(main())


def test_a_peer_that_stalls_is_left() -> None:
    async def main() -> None:
        async with server(stalls) as peer:
            with pytest.raises(Unreachable, match="stalls"):
                await collected(peer)

    asyncio.run(main())


def test_an_octet_now_and_then_does_not_lengthen_a_transfer() -> None:
    async def drips(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(framed(b"x"))
            await writer.drain()
            await asyncio.sleep(0.01)

    async def main() -> None:
        limits = ClientLimits(message_s=5, transfer_s=0.2)
        async with server(drips) as peer:
            with pytest.raises(Unreachable, match="stalls"):
                await collected(peer, limits)

    asyncio.run(main())


def test_who_takes_no_connection_is_unreachable() -> None:
    async def main() -> None:
        async with server(two_messages) as peer:
            pass
        with pytest.raises(Unreachable, match="refused"):
            await collected(peer)
        with pytest.raises(Unreachable):
            await AsyncTransferClient(SHORT).ask(peer, SOA_QUERY)

    asyncio.run(main())


def test_a_question_goes_over_udp_and_is_asked_twice_at_most() -> None:
    script = Script()

    async def main(port: int) -> None:
        client, peer = AsyncTransferClient(SHORT), Peer("127.0.0.1", port)
        script.steps["sec.example"] = whole(7)
        answer = dns.message.from_wire(await client.ask(peer, SOA_QUERY))
        assert answer.answer[0][0].serial == 7
        script.is_down = True
        script.asked.clear()
        with pytest.raises(Unreachable, match="does not answer"):
            await client.ask(peer, SOA_QUERY)

    with SocketPrimary(script).serving() as primary:
        asyncio.run(main(primary.port))
    assert len(script.asked) == 2


def tls_context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write_pair(folder))
    context.set_alpn_protocols(["dot"])
    return context


def test_a_transfer_over_tls_hides_the_zone_and_with_a_name_proves_the_primary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tls_context(tmp_path)

    async def main() -> None:
        async with server(two_messages, context) as peer:
            assert await collected(peer) == [b"one", b"two"]
            assert await AsyncTransferClient(SHORT).ask(peer, SOA_QUERY) == b"one"
            with pytest.raises(Unreachable, match="certificate"):
                await collected(peer._replace(server_name=SERVER_NAME))
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
            assert await collected(peer._replace(server_name=SERVER_NAME)) == [b"one", b"two"]
            with pytest.raises(Unreachable, match="certificate"):
                await collected(peer._replace(server_name="other.test"))

    asyncio.run(main())
