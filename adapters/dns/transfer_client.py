"""Asks primaries: a question over UDP, TCP or TLS, and zone transfers (RFC 5936, RFC 9103).

What comes back is octets; whether they mean anything is for `domain.dns.transfer` to say. Every
wait ends, nothing is held but one message, and a peer that sends octets without an end is left
when the caller has seen too many.
"""

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncGenerator

import msgspec

from kudurru.domain.errors import Unreachable
from kudurru.domain.ports import Peer

ALPN = "dot"  # RFC 9103 section 7.1


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    udp_s: float = 2.0  # for one try
    udp_tries: int = 2
    connect_s: float = 5.0
    message_s: float = 15.0  # for the next whole message
    transfer_s: float = 3600.0  # for all of one transfer


class AsyncTransferClient:
    """Implements `domain.ports.TransferClient` on the running loop."""

    def __init__(self, limits: ClientLimits | None = None) -> None:
        self._limits = limits or ClientLimits()

    async def ask(self, peer: Peer, query: bytes, *, stream: bool = False) -> bytes:
        if not (stream or peer.is_tls):
            return await self._ask_udp(peer, query)
        async with contextlib.aclosing(self._messages(peer, query)) as messages:
            async for message in messages:
                return message
        raise Unreachable("it closes the connection without an answer")

    def fetch(self, peer: Peer, query: bytes) -> AsyncGenerator[bytes, None]:
        return self._messages(peer, query)

    async def _ask_udp(self, peer: Peer, query: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.create_datagram_endpoint(
                _Datagrams, remote_addr=(peer.address, peer.port)
            )
        except OSError as error:
            raise _unreachable(error) from error
        try:
            for _ in range(self._limits.udp_tries):
                transport.sendto(query)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.udp_s):
                        return await protocol.answer(query[:2])
        except OSError as error:
            raise _unreachable(error) from error
        finally:
            transport.close()
        raise Unreachable("it does not answer")

    async def _messages(self, peer: Peer, query: bytes) -> AsyncGenerator[bytes, None]:
        limits = self._limits
        reader, writer = await self._connect(peer)
        try:
            loop = asyncio.get_running_loop()
            until = loop.time() + limits.transfer_s
            writer.write(len(query).to_bytes(2, "big") + query)
            while True:
                deadline = min(until, loop.time() + limits.message_s)
                async with asyncio.timeout_at(deadline):
                    size = int.from_bytes(await reader.readexactly(2), "big")
                    message = await reader.readexactly(size)
                yield message
        except asyncio.IncompleteReadError:
            return  # it closed the connection: what that means is the caller's to say
        except TimeoutError:
            raise Unreachable("it stalls: no message within the time for it") from None
        except OSError as error:
            raise _unreachable(error) from error
        finally:
            # Not a graceful end: the peer may still be sending, and nobody reads it.
            writer.transport.abort()

    async def _connect(self, peer: Peer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # To read the certificates of all authorities takes a while.
        context = await asyncio.to_thread(_context, peer) if peer.is_tls else None
        try:
            async with asyncio.timeout(self._limits.connect_s):
                return await asyncio.open_connection(
                    peer.address,
                    peer.port,
                    ssl=context,
                    server_hostname=(peer.server_name or "") if peer.is_tls else None,
                )
        except TimeoutError:
            raise Unreachable("it does not take the connection in time") from None
        except OSError as error:  # ssl.SSLError is one
            raise _unreachable(error) from error


def _context(peer: Peer) -> ssl.SSLContext:
    """RFC 9103 section 7: TLS 1.3. Without a name to hold the certificate against, TLS keeps the
    zone from being read on its way, and TSIG proves who sent it."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    if peer.server_name is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _unreachable(error: OSError) -> Unreachable:
    # asyncio's own text of a failed connection repeats the address instead of saying why.
    is_plain = error.errno is not None and not isinstance(error, ssl.SSLError)
    why = os.strerror(error.errno) if is_plain and error.errno else str(error)
    return Unreachable(why)


class _Datagrams(asyncio.DatagramProtocol):
    """Answers of one peer: the socket is connected, so nobody else's arrive."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue(8)

    def datagram_received(self, data: bytes, _addr: object) -> None:
        self._put(data)

    def error_received(self, exc: Exception) -> None:
        if isinstance(exc, OSError):
            self._put(exc)

    def _put(self, item: "bytes | OSError") -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._arrived.put_nowait(item)

    async def answer(self, id_: bytes) -> bytes:
        """The next datagram with an ID. Raises: OSError."""
        while True:
            item = await self._arrived.get()
            if isinstance(item, OSError):
                raise item
            if item[:2] == id_:
                return item
