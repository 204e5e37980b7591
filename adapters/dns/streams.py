"""What connections that carry DNS have in common: admission, PROXY header, TLS, deadlines, and a
client that does not take its answers.

A connection is a pipe of steps: a PROXY header when one is due, then TLS when the listener is
encrypted, then the protocol's own `received` and `work`. It counts as a connection from its first
octet, so what never finishes its handshake is bounded like everything else.

What arrives is looked at when it is the connection's turn. Until then, and while its client does
not take what we say, nothing more is read from it: a connection holds at most one read, whatever
its client does.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from kudurru.adapters.connections import ConnectionLimits, ConnectionServer, network_of
from kudurru.adapters.dns.answering import Answering, Waiting
from kudurru.adapters.dns.memo import Keeper, Memo
from kudurru.adapters.dns.proxyproto import Malformed, read_header, refuse_header
from kudurru.adapters.dns.tls_stream import TlsStream
from kudurru.adapters.networks import Networks
from kudurru.adapters.turns import Turns
from kudurru.domain.ports import STREAM_IDLE_S, EngineStatistics, Origins, QueryHandler

MESSAGE_MAX = 65_535  # what two octets of length can say
READ_MAX = 64 << 10  # octets taken from a connection at a time
ANSWERS_HELD_MAX = 64 << 10  # octets written that the client has not taken; then we wait for it
OUTSTANDING_MAX = 100  # queries of a connection whose answers are to come


class StreamLimits(ConnectionLimits, frozen=True, kw_only=True):
    handshake_s: float = 5  # PROXY header and TLS
    idle_s: float = STREAM_IDLE_S


class StreamServer(ConnectionServer["StreamConnection"]):
    """A `PacketEngine` over connections. Its sockets listen already.

    `tls` gives the context for a new connection, and so a renewed certificate; None serves in the
    clear. `proxies` are the peers that must send a PROXY header. `turns` are shared with other
    servers on the same loop.
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
        memo: Memo | Keeper | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.limits = limits or StreamLimits()
        super().__init__(sockets, self.limits)
        self._make = make
        self.tls = tls
        self.proxies = proxies
        self.answering = Answering(handler, proto, MESSAGE_MAX, Memo() if memo is None else memo)
        self.handshakes_failed = 0
        self.turns = turns or Turns()
        # One for all: the loop fills it and hands it over before it serves anything else.
        self.buffer = memoryview(bytearray(READ_MAX))

    def make_protocol(self) -> "StreamConnection":
        return self._make(self)

    def is_proxy(self, peer: str) -> bool:
        return self.proxies is not None and peer in self.proxies

    def network_of(self, peer: str) -> str:
        # A balancer stands for many clients: its connections count where they come from.
        return "" if self.is_proxy(peer) else super().network_of(peer)

    def invalidate(self, changed: Origins = None) -> None:
        self.answering.memo.invalidate(changed)

    def statistics(self) -> EngineStatistics:
        return msgspec.structs.replace(
            self.answering.statistics(),
            handshakes_failed=self.handshakes_failed,
            **self.connections.counts(),
        )


class StreamConnection(asyncio.BufferedProtocol):
    """One client. A subclass says what `opened`, `received` and `work` do and moves the deadline
    in them."""

    @property
    def client_id(self) -> str:
        """What the client calls itself; "" where it does not."""
        return self._tls.client_id if self._tls is not None else ""

    def __init__(self, server: StreamServer) -> None:
        self._server = server
        self._limits = server.limits
        self._answering = server.answering
        self._buffer = server.buffer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._client = self.network = ""
        self._read = bytearray()  # not looked at yet
        self._head: bytearray | None = None if server.proxies is None else bytearray()
        self._is_proxy = False
        self._tls = None if server.tls is None else TlsStream(server.tls())
        self._is_open = False
        self._is_waiting_for_turn = False
        self._is_waiting_for_client = False
        self._is_ending = False  # closes when the answers to come are there
        self._waiting = Waiting(self._none_waiting)
        self.has_ended = False  # the client sends no more
        self.deadline_s = self._loop.time() + server.limits.handshake_s

    # --- for subclasses -----------------------------------------------------------------

    def opened(self) -> None:
        """What comes before `received` is done."""
        raise NotImplementedError

    def received(self, octets: bytes | bytearray) -> None:
        """Octets of the protocol; `work` comes next."""
        raise NotImplementedError

    def work(self) -> bool:
        """Answer, for a turn; whether there is more to do."""
        raise NotImplementedError

    @property
    def must_wait(self) -> bool:
        """Nothing more can be done before an answer that is to come."""
        return len(self._waiting) >= OUTSTANDING_MAX

    def write(self, octets: bytes | bytearray) -> None:
        self._transport.write(octets if self._tls is None else self._tls.send(octets))

    # --- the transport's calls ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")  # None: it is gone already
        self._client = peer[0] if peer else ""
        self._is_proxy = self._server.is_proxy(self._client)
        self.network = self._server.network_of(self._client)
        if not peer or not self._server.connections.add(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=ANSWERS_HELD_MAX)
        if self._head is None and self._tls is None:
            self._open()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._waiting.cancel()
        self._server.connections.discard(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        self._read += self._buffer[:size]
        self._want_turn()

    def eof_received(self) -> bool:
        """A client may shut down its side and still read (RFC 7766 section 6.2.4)."""
        self.has_ended = True
        self._want_turn()
        return True

    def pause_writing(self) -> None:
        self._is_waiting_for_client = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_waiting_for_client = False
        self._want_turn()

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

    # --- turns --------------------------------------------------------------------------

    def _want_turn(self) -> None:
        if self._is_waiting_for_turn:
            return
        self._is_waiting_for_turn = True
        self._server.turns.take(self._take_turn)
        if self._is_waiting_for_turn:
            self._transport.pause_reading()

    def _take_turn(self) -> None:
        self._is_waiting_for_turn = False
        if self._read and not self._is_over():
            octets, self._read = self._read, bytearray()
            self._look_at(octets)
        has_more = False
        if self._is_open and not self._transport.is_closing():
            has_more = self.work()
        if self._transport.is_closing():
            return
        if self._is_waiting_for_client or self._is_ending or self.must_wait:
            self._transport.pause_reading()
        elif has_more:
            self._is_waiting_for_turn = True
            self._transport.pause_reading()
            self._server.turns.wait(self._take_turn)
        elif self.has_ended:
            self.close()
        else:
            self._transport.resume_reading()

    def _is_over(self) -> bool:
        """Whether no more queries are taken."""
        return self._is_ending or self._transport.is_closing()

    def _look_at(self, octets: bytes | bytearray) -> None:
        if self._head is not None:
            octets = self._behind_header(octets)
        if self._tls is not None and octets:
            octets = self._decrypted(octets)
            self.has_ended = self.has_ended or self._tls.has_ended
        if self._is_open and octets and not self._transport.is_closing():
            self.received(octets)

    # --- before the protocol ------------------------------------------------------------

    def _open(self) -> None:
        self._is_open = True
        self.deadline_s = self._loop.time() + self._limits.idle_s
        self.opened()

    def _behind_header(self, octets: bytes | bytearray) -> bytes:
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

    def _decrypted(self, octets: bytes | bytearray) -> bytes:
        assert self._tls is not None
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
