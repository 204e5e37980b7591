"""Asks a listener of this node one question, as a client would.

A listener of QUIC is asked which versions it speaks (RFC 9000 section 6.1), as a handshake costs
more than some hundred queries, and it is the turning of the listener that is asked for.
"""

import asyncio
import errno
import os
import ssl
from functools import cache
from typing import Any

from kudurru.adapters.dns.proxyproto import SIGNATURE
from kudurru.adapters.sockets import CARRIERS, split_address
from kudurru.domain.errors import Unreachable

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # what is bound, not what we bind
LOCAL = SIGNATURE + b"\x20\0\0\0"
"""The PROXY header of a balancer that speaks for itself."""

NO_WAY = frozenset(
    {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EPERM}
)
"""A machine without IPv6 on its loopback, or a firewall in front of it: no fault of a listener."""

_QUIC_PACKET = b"\xc0" + b"\x1a\x2a\x3a\x4a" + b"\x08kudurru." + b"\x08kudurru?"
"""A long header of a version that is reserved to be unknown (RFC 9000 section 15)."""
_QUIC_SIZE = 1200
_REPLY_MAX = 65_535


async def probe(proto: str, address: str, query: bytes, *, is_proxied: bool = False) -> None:
    """Returns when the listener answered, or cannot be asked from here. `address` is as it was
    bound; `is_proxied`: a PROXY header is due from loopback. Waits as long as it takes. Raises:
    Unreachable."""
    target = target_of(address)
    before = LOCAL if is_proxied else b""
    try:
        if proto in ("quic", "h3"):
            reply = await _datagram(target, before + _QUIC_PACKET.ljust(_QUIC_SIZE, b"\0"))
            is_right = reply[1:5] == b"\0\0\0\0"
        elif CARRIERS[proto] == "udp":
            reply = await _datagram(target, before + query)
            is_right = reply[:2] == query[:2]
        else:
            is_right = await _over_stream(proto, target, before, query)
    except (ssl.SSLError, EOFError) as error:  # whose errno is no errno
        raise Unreachable(str(error) or "it closes the connection") from None
    except OSError as error:
        if error.errno in NO_WAY:
            return
        raise Unreachable(os.strerror(error.errno) if error.errno else str(error)) from None
    if not is_right:
        raise Unreachable("it answers something else")


def target_of(address: str) -> tuple[str, int]:
    """Where this machine reaches what is bound to an address. It comes from the same host."""
    host, port = split_address(address)
    return ANYWHERE.get(host, host), port


async def _over_stream(proto: str, target: tuple[str, int], before: bytes, query: bytes) -> bool:
    tls = _tls() if proto in ("tls", "https") else None
    reader, writer = await asyncio.open_connection(*target, ssl=None if before else tls)
    try:
        if before:
            writer.write(before)
            if tls is not None:
                await writer.start_tls(tls)
        if proto == "https":
            return await _over_http(reader, writer, query)
        writer.write(len(query).to_bytes(2, "big") + query)
        size = int.from_bytes(await reader.readexactly(2), "big")
        return (await reader.readexactly(size))[:2] == query[:2]
    finally:
        writer.transport.abort()


async def _over_http(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, query: bytes
) -> bool:
    writer.write(
        b"POST /dns-query HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/dns-message\r\nContent-Length: %d\r\n\r\n%s"
        % (len(query), query)
    )
    reply = await reader.read(_REPLY_MAX)
    return reply.startswith(b"HTTP/1.1 200 ")


@cache
def _tls() -> ssl.SSLContext:
    """Whose certificate it is does not matter: it is this process that is asked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class _Asking(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _address: Any) -> None:
        if not self.reply.done():
            self.reply.set_result(data)

    def error_received(self, error: Exception) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


async def _datagram(target: tuple[str, int], packet: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    transport, asking = await loop.create_datagram_endpoint(_Asking, remote_addr=target)
    try:
        transport.sendto(packet)
        return await asking.reply
    finally:
        transport.close()
