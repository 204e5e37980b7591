"""DNSCrypt upstreams, against a server made here after the protocol's text."""

import asyncio
import base64
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.public import Box, PrivateKey, PublicKey

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.dns.upstream.connecting import Unreachable
from kudurru.adapters.dns.upstream.dnscrypt import newest
from tests.adapters.test_upstreams import ask, opened, run
from tests.dns_clients import framed, read_message
from tests.packets import name

PROVIDER = "2.dnscrypt-cert.example.test"
MAGIC = b"clientmg"
DAY_S = 86_400


class Provider:
    """A provider and its resolver, over UDP and TCP on one port."""

    def __init__(self) -> None:
        self.signing = Ed25519PrivateKey.generate()
        self.key = PrivateKey.generate()
        self.now_s = SystemClock().now_us() // 1_000_000
        self.records = [self.certificate()]
        self.seen: list[bytes] = []
        self.is_lying = self.is_attacked = False

    @property
    def public_key(self) -> bytes:
        return self.signing.public_key().public_bytes_raw()

    def certificate(
        self, serial: int = 1, *, since: int = -10, until: int = DAY_S, version: int = 1
    ) -> bytes:
        signed = bytes(self.key.public_key) + MAGIC
        signed += struct.pack("!III", serial, self.now_s + since, self.now_s + until)
        return b"DNSC" + struct.pack("!HH", version, 0) + self.signing.sign(signed) + signed

    def answer(self, octets: bytes) -> bytes | None:
        if not octets.startswith(MAGIC):
            return self._certificates(octets)
        client, nonce, sealed = octets[8:40], octets[40:52], octets[52:]
        box = Box(self.key, PublicKey(client))
        padded = box.decrypt(sealed, nonce + bytes(12))
        assert len(padded) % 64 == 0
        query = padded.rpartition(b"\x80")[0]
        self.seen.append(query)
        reply = query[:2] + b"\x81\x80" + query[4:] + b"crypt\x80\x80"
        both = nonce + b"r" * 12
        sealed = box.encrypt(reply + b"\x80" + bytes(13), both).ciphertext
        if self.is_lying:
            sealed = sealed[:-1] + bytes((sealed[-1] ^ 1,))
        return b"r6fnvWj8" + both + sealed

    def forged(self, reply: bytes) -> Iterator[bytes]:
        """What somebody who sees neither sends before the reply."""
        if self.is_attacked:
            yield from (b"", b"x", bytes(400), b"r6fnvWj8" + bytes(300))
            yield bytes((reply[0] ^ 1,)) + reply[1:]
            yield reply[:20] + b"another" + reply[27:]

    def _certificates(self, query: bytes) -> bytes:
        wire = query[:2] + b"\x81\x80\0\1" + len(self.records).to_bytes(2, "big") + bytes(4)
        wire += name(PROVIDER) + b"\0\x10\0\1"
        for octets in self.records:
            rdata = bytes((len(octets),)) + octets
            wire += b"\xc0\x0c\0\x10\0\1\0\0\0\x3c" + len(rdata).to_bytes(2, "big") + rdata
        return wire

    def stamp(self, at: str) -> str:
        fields = (at.encode(), self.public_key, PROVIDER.encode())
        octets = b"\1" + bytes(8) + b"".join(bytes((len(one),)) + one for one in fields)
        return "sdns://" + base64.urlsafe_b64encode(octets).decode().rstrip("=")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Where it listens."""
        loop = asyncio.get_running_loop()
        provider = self

        class Udp(asyncio.DatagramProtocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def datagram_received(self, data: bytes, addr: Any) -> None:
                if (reply := provider.answer(data)) is not None:
                    for forged in provider.forged(reply):
                        self.transport.sendto(forged, addr)
                    assert len(data) >= 256 or not data.startswith(MAGIC)
                    self.transport.sendto(reply, addr)

        connections: list[asyncio.Task[None]] = []

        async def tcp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.append(task)
            try:
                while True:
                    reply = provider.answer(await read_message(reader))
                    if reply is not None:
                        writer.write(framed(reply))
            except (asyncio.IncompleteReadError, ConnectionResetError):
                writer.close()
                await asyncio.gather(writer.wait_closed(), return_exceptions=True)

        while True:
            transport, _ = await loop.create_datagram_endpoint(Udp, local_addr=("127.0.0.1", 0))
            port = transport.get_extra_info("sockname")[1]
            try:
                server = await asyncio.start_server(tcp, "127.0.0.1", port)
                break
            except OSError:  # somebody has it over TCP
                transport.close()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            transport.close()
            server.close()
            await asyncio.gather(*connections)


@pytest.mark.parametrize("over_tcp", [False, True])
def test_queries_are_encrypted_and_answers_are_told_apart(over_tcp: bool) -> None:
    async def scenario() -> None:
        provider = Provider()
        async with provider.running() as at:
            carrier = opened(provider.stamp(at), over_tcp=over_tcp)
            found = await asyncio.gather(*(ask(carrier, f"h{i}.example") for i in range(20)))
            for i, packet in enumerate(found):
                assert isinstance(packet, bytes)
                assert packet[12:].startswith(name(f"h{i}.example"))
                assert packet.endswith(b"crypt\x80\x80")
            assert len(provider.seen) == 20
            await carrier.close()

    run(scenario)


def test_a_certificate_that_the_provider_did_not_sign_is_refused() -> None:
    async def scenario() -> None:
        provider, other = Provider(), Provider()
        async with provider.running() as at:
            carrier = opened(other.stamp(at))
            assert await ask(carrier) == "certificate"
            assert not provider.seen
            await carrier.close()

    run(scenario)


def test_an_answer_that_was_tampered_with_is_none() -> None:
    async def scenario() -> None:
        provider = Provider()
        async with provider.running() as at:
            carrier = opened(provider.stamp(at))
            assert isinstance(await ask(carrier), bytes)
            provider.is_lying = True
            waiting = asyncio.create_task(ask(carrier))
            while len(provider.seen) < 2:
                await asyncio.sleep(0)
            provider.is_lying = False
            assert isinstance(await ask(carrier), bytes)
            assert not waiting.done()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await carrier.close()

    run(scenario)


def test_what_others_throw_in_ends_no_exchange() -> None:
    async def scenario() -> None:
        provider = Provider()
        provider.is_attacked = True
        async with provider.running() as at:
            carrier = opened(provider.stamp(at))
            for _ in range(2):  # the first one asks for the certificates
                assert isinstance(await ask(carrier), bytes)
            await carrier.close()

    run(scenario)


def test_the_newest_valid_certificate_is_used() -> None:
    provider = Provider()
    records = [
        provider.certificate(3),
        provider.certificate(7, until=-1),
        provider.certificate(8, since=60),
        provider.certificate(9, version=2),
        provider.certificate(5),
        b"DNSC",
        b"",
    ]
    assert newest(records, provider.public_key, provider.now_s).serial == 5
    with pytest.raises(Unreachable):
        newest(records[1:4], provider.public_key, provider.now_s)


def test_a_resolver_that_was_away_is_asked_again() -> None:
    async def scenario() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        carrier = opened(Provider().stamp(f"127.0.0.1:{port}"))  # nobody is there
        assert await ask(carrier) == "closed"
        assert await ask(carrier) == "closed"
        await carrier.close()

    run(scenario)
