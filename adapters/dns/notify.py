"""NOTIFY messages over UDP: sent from a port of our own, answers believed from whom they were sent
to, with the ID that they were sent with (RFC 1996)."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

log = logging.getLogger("kudurru")

HEADER = 12
RECEIVE = Callable[[bytes, str, int], None]
"""(datagram, address, port)"""


class NotifySocket(asyncio.DatagramProtocol):
    """One socket for each address family, opened when it is first needed."""

    def __init__(self, received: RECEIVE) -> None:
        self._received = received
        self._transports: dict[int, asyncio.DatagramTransport] = {}

    async def send(self, datagram: bytes, address: str, port: int) -> None:
        """A network that refuses is like one that loses the datagram: who sent it tries again."""
        version = ip_address(address).version
        with suppress(OSError):
            transport = self._transports.get(version)
            if transport is None or transport.is_closing():
                transport = self._transports[version] = await self._open(version)
            transport.sendto(datagram, (address, port))

    async def _open(self, version: int) -> asyncio.DatagramTransport:
        loop = asyncio.get_running_loop()
        local = ("::" if version == 6 else "0.0.0.0", 0)  # noqa: S104  # whichever leads there
        transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=local)
        return transport

    def close(self) -> None:
        for transport in self._transports.values():
            transport.close()

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        if len(data) >= HEADER:
            self._received(data, addr[0], addr[1])

    def error_received(self, exc: Exception) -> None:
        """Of a datagram that could not be delivered: the timer sees to it."""
        log.debug("a NOTIFY was not delivered: %s", exc)
