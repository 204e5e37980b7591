"""What connections that carry DNS have in common: admission, PROXY header, TLS, deadlines, and a
client that does not take its answers.

A connection is a pipe of steps: a PROXY header when one is due, then TLS when the listener is
encrypted, then the protocol's own `received`. It counts as a connection from its first octet, so
what never finishes its handshake is bounded like everything else.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from kudurru.adapters.connections import Connections, network_of
from kudurru.adapters.dns.answering import Answering, Waiting
from kudurru.adapters.dns.memo import Memo
from kudurru.adapters.dns.proxyproto import Malformed, read_header, refuse_header
from kudurru.adapters.dns.tls_stream import TlsStream
from kudurru.adapters.networks import Networks
from kudurru.adapters.sockets import BACKLOG, address_of
from kudurru.domain.ports import STREAM_IDLE_S, EngineStatistics, QueryHandler

MESSAGE_MAX = 65_535  # what two octets of length can say
READ_MAX = 64 << 10  # octets taken from a connection at a time
ANSWERS_HELD_MAX = 64 << 10  # octets written that the client has not taken; then we wait for it
OUTSTANDING_MAX = 100  # queries of a connection whose answers are to come


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    connections: int = 1000
    connections_per_network: int = 50  # an IPv4 address or an IPv6 /64
    handshake_s: float = 5  # PROXY header and TLS
    idle_s: float = STREAM_IDLE_S
    request_s: float = 30  # for one message to arrive, or the answers to be taken
    drain_s: float = 5  # at stop, for answers to leave


class StreamServer:
    """A `PacketEngine` over connections. Its sockets listen already.

    `tls` gives the context for a new connection, and so a renewed certificate; None serves in the
    clear. `proxies` are the peers that must send a PROXY header.
    """

    def __init__(
        self,
        handler: QueryHandler,
        sockets: Sequence[socket.socket],
        make: "Callable[[Any], StreamConnection]",
        *,
        proto: str,
        tls: Callable[[], ssl.SSLContext] | None = None,
        proxies: Networks | None = None,
        limits: StreamLimits | None = None,
        memo: Memo | None = None,
    ) -> None:
        self._sockets = tuple(sockets)
        self._make = make
        self.tls = tls
        self.proxies = proxies
        self.limits = limits or StreamLimits()
        self.answering = Answering(handler, proto, MESSAGE_MAX, memo or Memo())
        self.handshakes_failed = 0
        self._addresses = tuple(dict.fromkeys(address_of(sock) for sock in sockets))
        self._servers: list[asyncio.Server] = []
        # One for all: the loop fills it and hands it over before it serves anything else.
        self.buffer = memoryview(bytearray(READ_MAX))
        self.connections: Connections[StreamConnection] = Connections(
            self.limits.connections, self.limits.connections_per_network
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            make = partial(self._make, self)
            self._servers.append(await loop.create_server(make, sock=sock, backlog=BACKLOG))
        self.connections.start()

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        await self.connections.stop(self.limits.drain_s)

    def invalidate(self) -> None:
        self.answering.memo.invalidate()

    def statistics(self) -> EngineStatistics:
        return msgspec.structs.replace(
            self.answering.statistics(),
            connections=len(self.connections),
            connections_accepted=self.connections.accepted,
            connections_refused=self.connections.refused,
            connections_timed_out=self.connections.timed_out,
            handshakes_failed=self.handshakes_failed,
        )


class StreamConnection(asyncio.BufferedProtocol):
    """One client. A subclass says what `opened` and `received` do and moves the deadline."""

    def __init__(self, server: StreamServer) -> None:
        self._server = server
        self._limits = server.limits
        self._answering = server.answering
        self._buffer = server.buffer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._client = self.network = ""
        self._head: bytearray | None = None if server.proxies is None else bytearray()
        self._is_proxy = False
        self._tls = None if server.tls is None else TlsStream(server.tls())
        self._is_open = False
        self._is_waiting_for_client = False
        self._is_ending = False  # closes when the answers to come are there
        self._waiting = Waiting(self._none_waiting)
        self.has_ended = False  # the client sends no more
        self.deadline_s = self._loop.time() + server.limits.handshake_s

    # --- for subclasses -----------------------------------------------------------------

    def opened(self) -> None:
        """What comes before `received` is done."""
        raise NotImplementedError

    def received(self, octets: bytes | memoryview) -> None:
        """Octets of the protocol; a view holds only during the call."""
        raise NotImplementedError

    def ended(self) -> None:
        """The client sends no more, and may still read."""
        raise NotImplementedError

    def client_caught_up(self) -> None:
        """Answers may be written again."""
        raise NotImplementedError

    def write(self, octets: bytes | bytearray) -> None:
        self._transport.write(octets if self._tls is None else self._tls.send(octets))

    # --- the transport's calls ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")  # None: it is gone already
        self._client = peer[0] if peer else ""
        self._is_proxy = self._server.proxies is not None and self._client in self._server.proxies
        # A balancer stands for many clients: its connections count where they come from.
        self.network = "" if self._is_proxy else self._network()
        if not peer or not self._server.connections.add(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=ANSWERS_HELD_MAX)
        if self._head is None and self._tls is None:
            self._open()

    def _network(self) -> str:
        return network_of(self._client)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._waiting.cancel()
        self._server.connections.discard(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        octets: bytes | memoryview = self._buffer[:size]
        if self._transport.is_closing():
            return
        if self._head is not None:
            octets = self._behind_header(octets)
        if self._tls is not None:
            octets = self._decrypted(octets)
        if self._is_open and len(octets) and not self._transport.is_closing():
            self.received(octets)
        if self._tls is not None and self._tls.has_ended:
            self.eof_received()

    def eof_received(self) -> bool:
        """A client may shut down its side and still read (RFC 7766 section 6.2.4)."""
        if not self.has_ended and not self._transport.is_closing():
            self.has_ended = True
            if self._is_open:
                self.ended()
            else:
                self._transport.close()
        return True

    def pause_writing(self) -> None:
        self._is_waiting_for_client = True

    def resume_writing(self) -> None:
        self._is_waiting_for_client = False
        self.client_caught_up()

    def expire(self) -> None:
        if self._is_waiting_for_client or self._transport.is_closing():
            self._transport.abort()
        else:
            self.shut()

    def close(self) -> None:
        """Take no more queries, and close when the answers to come are there."""
        if self._waiting and not self._transport.is_closing():
            self._is_ending = True
            self._transport.pause_reading()
        else:
            self.shut()

    def shut(self) -> None:
        """Close when what is written has left."""
        self._waiting.cancel()
        if self._tls is not None and not self._transport.is_closing():
            self._transport.write(self._tls.close())
        self._transport.close()

    def _none_waiting(self) -> None:
        if self._is_ending:
            self.shut()

    def abort(self) -> None:
        self._transport.abort()

    # --- before the protocol ------------------------------------------------------------

    def _open(self) -> None:
        self._is_open = True
        self.deadline_s = self._loop.time() + self._limits.idle_s
        self.opened()

    def _behind_header(self, octets: bytes | memoryview) -> bytes:
        """What follows the PROXY header, empty while it is not whole."""
        assert self._head is not None
        self._head += octets
        try:
            size = self._read_head()
        except Malformed:
            self._answering.proxyproto += 1
            self._transport.abort()
            return b""
        if size is None:
            return b""
        rest = bytes(self._head[size:])
        self._head = None
        if self._tls is None:
            self._open()
        return rest

    def _read_head(self) -> int | None:
        """Octets of the header that is whole. Raises Malformed."""
        assert self._head is not None
        if not self._is_proxy:
            return 0 if refuse_header(self._head) else None
        found = read_header(self._head)
        if found is None:
            return None
        size, client = found
        if client is not None:
            self._client = client
            if not self._server.connections.move(self, network_of(client)):
                self._transport.abort()
        return size

    def _decrypted(self, octets: bytes | memoryview) -> bytes:
        assert self._tls is not None
        if not len(octets):
            return b""
        plain = b""
        try:
            plain = self._tls.receive(octets)
        except ssl.SSLError:
            self._server.handshakes_failed += not self._is_open
            self._transport.write(self._tls.pending())
            self._transport.close()
            return b""
        if pending := self._tls.pending():
            self._transport.write(pending)
        if self._tls.is_ready and not self._is_open:
            self._open()
        return plain
