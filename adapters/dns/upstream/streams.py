"""Queries over TCP (RFC 7766) and TLS (RFC 7858), pipelined: messages with two octets of length
before each, told apart by their IDs."""

import asyncio
import ssl
from typing import cast

from kudurru.adapters.dns.upstream.connecting import (
    OUTSTANDING_MAX,
    Connection,
    Dial,
    Sink,
    Target,
    framed,
)
from kudurru.adapters.dns.upstream.tls import Tls
from kudurru.domain.chance import Chance
from kudurru.domain.ports import Exchange


def stream_dial(chance: Chance, tls: Tls | None = None) -> Dial:
    async def dial(target: Target, sink: Sink) -> Connection:
        loop = asyncio.get_running_loop()
        host, port = target
        _, connection = await loop.create_connection(
            lambda: _Connection(chance, sink),
            host,
            port,
            ssl=None if tls is None else tls.context,
            server_hostname=None if tls is None else tls.name,
        )
        if tls is not None:
            check_certificate(connection.transport, tls)
        return connection

    return dial


def check_certificate(transport: asyncio.BaseTransport, tls: Tls) -> None:
    """Raises Unreachable, and closes, where the certificate is not the one."""
    try:
        tls.check(cast(ssl.SSLObject, transport.get_extra_info("ssl_object")))
    except Exception:
        transport.close()
        raise


class _Connection(asyncio.Protocol):
    """Implements `Connection`. Numbers are IDs."""

    def __init__(self, chance: Chance, sink: Sink) -> None:
        self._chance = chance
        self._sink = sink
        self._used: set[int] = set()
        self._arrived = bytearray()
        self.transport: asyncio.Transport

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing()

    @property
    def room(self) -> int:
        return OUTSTANDING_MAX - len(self._used)

    def send(self, exchange: Exchange) -> int:
        number = self._chance.bits(2)
        while number in self._used:
            number = self._chance.bits(2)
        self._used.add(number)
        self.transport.write(framed(number.to_bytes(2, "big") + exchange.packet[2:]))
        return number

    def cancel(self, number: int) -> None:
        # The ID stays in use: its answer may still come, and must not meet another question.
        if len(self._used) > OUTSTANDING_MAX // 2:
            self._used.discard(number)

    def close(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        arrived = self._arrived
        arrived += data
        at = 0
        while len(arrived) >= at + 2:
            size = int.from_bytes(arrived[at : at + 2], "big")
            if len(arrived) < at + 2 + size:
                break
            packet = bytes(arrived[at + 2 : at + 2 + size])
            at += 2 + size
            number = int.from_bytes(packet[:2], "big")
            self._used.discard(number)
            self._sink.answered(number, b"\0\0" + packet[2:])
        del arrived[:at]

    def connection_lost(self, _exc: Exception | None) -> None:
        self._sink.lost()
