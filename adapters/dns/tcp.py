"""DNS over TCP (RFC 7766): messages with two octets of length before each, pipelined.

Answers are made in the order of the queries, at once, so what is outstanding on a connection is
what it has sent and we have not looked at. At most QUERIES_PER_TURN are answered before others get
their turn, and while a client does not take its answers nothing is read from it. So a connection
holds at most one buffer of queries and one of answers, whatever its client does.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import cast

import msgspec

from kudurru.adapters.connections import Connections, network_of
from kudurru.adapters.dns.answering import HEADER, Answering
from kudurru.adapters.dns.memo import Memo
from kudurru.adapters.sockets import address_of
from kudurru.domain.ports import EngineStatistics, QueryHandler

MESSAGE_MAX = 65_535  # what two octets of length can say
QUERIES_PER_TURN = 100  # below 1 ms when the memo knows them
READ_MAX = 64 << 10  # octets taken from a connection at a time
ANSWERS_HELD_MAX = 64 << 10  # octets written that the client has not taken; then we wait for it


class TcpLimits(msgspec.Struct, frozen=True, kw_only=True):
    connections: int = 1000
    connections_per_network: int = 50  # an IPv4 address or an IPv6 /64
    idle_s: float = 10  # RFC 7766 section 6.2.3: some seconds
    request_s: float = 30  # for one message to arrive, or the answers to be taken
    drain_s: float = 5  # at stop, for answers to leave


class TcpServer:
    """A `PacketEngine` over TCP. Its sockets listen already."""

    def __init__(
        self,
        handler: QueryHandler,
        sockets: Sequence[socket.socket],
        *,
        limits: TcpLimits | None = None,
        memo: Memo | None = None,
    ) -> None:
        self._sockets = tuple(sockets)
        self._limits = limits or TcpLimits()
        self._answering = Answering(handler, "tcp", MESSAGE_MAX, memo or Memo())
        self._addresses = tuple(dict.fromkeys(address_of(sock) for sock in sockets))
        self._servers: list[asyncio.Server] = []
        # One for all: the loop fills it and hands it over before it serves anything else.
        self._buffer = memoryview(bytearray(READ_MAX))
        self.connections: Connections[_Connection] = Connections(
            self._limits.connections, self._limits.connections_per_network
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            self._servers.append(await loop.create_server(self._connection, sock=sock))
        self.connections.start()

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        await self.connections.stop(self._limits.drain_s)

    def invalidate(self) -> None:
        self._answering.memo.invalidate()

    def statistics(self) -> EngineStatistics:
        return msgspec.structs.replace(
            self._answering.statistics(),
            connections=len(self.connections),
            connections_accepted=self.connections.accepted,
            connections_refused=self.connections.refused,
            connections_timed_out=self.connections.timed_out,
        )

    def _connection(self) -> "_Connection":
        return _Connection(self._answering, self._limits, self.connections, self._buffer)


class _Connection(asyncio.BufferedProtocol):
    """One client.

    Its deadline is `idle_s` ahead while nothing is under way, and `request_s` ahead of the moment
    when a message began to arrive or the client stopped taking answers. An octet now and then does
    not move it.
    """

    def __init__(
        self,
        answering: Answering,
        limits: TcpLimits,
        connections: "Connections[_Connection]",
        buffer: memoryview,
    ) -> None:
        self._answering = answering
        self._limits = limits
        self._connections = connections
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._client = self.network = ""
        self._arrived = bytearray()  # not looked at yet
        self._is_waiting_for_client = False
        self._is_waiting_for_turn = False
        self._has_ended = False  # the client sends no more
        self.deadline_s = self._loop.time() + limits.idle_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")  # None: it is gone already
        self._client = peer[0] if peer else ""
        self.network = network_of(self._client)
        if not peer or not self._connections.add(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=ANSWERS_HELD_MAX)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._connections.discard(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        was_under_way = bool(self._arrived)
        self._arrived += self._buffer[:size]
        if self._work() or not was_under_way:
            self._set_deadline()

    def eof_received(self) -> bool:
        """A client may shut down its side and still read (RFC 7766 section 6.2.4)."""
        self._has_ended = True
        self._work()
        return True

    def pause_writing(self) -> None:
        self._is_waiting_for_client = True

    def resume_writing(self) -> None:
        self._is_waiting_for_client = False
        self._work()
        self._set_deadline()

    def expire(self) -> None:
        if self._is_waiting_for_client or self._transport.is_closing():
            self._transport.abort()
        else:
            self._transport.close()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _take_turn(self) -> None:
        self._is_waiting_for_turn = False
        self._work()
        self._set_deadline()

    def _set_deadline(self) -> None:
        under_way = self._arrived or self._is_waiting_for_client or self._transport.is_closing()
        wait_s = self._limits.request_s if under_way else self._limits.idle_s
        self.deadline_s = self._loop.time() + wait_s

    def _work(self) -> bool:
        """Answer what has arrived, as far as this turn and the client's reading allow. Whether a
        message was complete."""
        transport = self._transport
        if self._is_waiting_for_turn or self._is_waiting_for_client or transport.is_closing():
            return False
        used = self._answer_some()
        del self._arrived[:used]
        has_more = self._message_size() is not None
        if has_more and not self._is_waiting_for_client:
            self._is_waiting_for_turn = True
            self._loop.call_soon(self._take_turn)
        if self._has_ended:
            if not has_more:
                transport.close()
        elif has_more or self._is_waiting_for_client:
            transport.pause_reading()
        else:
            transport.resume_reading()
        return used > 0

    def _answer_some(self) -> int:
        """Answer one turn of queries and close where one is malformed or dropped; the answers
        before it still leave. Octets used."""
        answering = self._answering
        answers = bytearray()
        used = count = 0
        is_over = False
        while (
            not is_over
            and count < QUERIES_PER_TURN
            and len(answers) < ANSWERS_HELD_MAX
            and (size := self._message_size(used)) is not None
        ):
            packet = bytes(self._arrived[used + 2 : used + 2 + size])
            used += 2 + size
            answering.received += 1
            wire = None
            if size < HEADER:
                answering.malformed += 1
            else:
                wire = answering.recall(packet) or answering.ask(packet, self._client)
            if wire is None:
                is_over = True
            else:
                answers += len(wire).to_bytes(2, "big") + wire
                count += 1
        if answers:
            self._transport.write(answers)
            answering.answered += count
        if is_over:
            self._transport.close()
        return used

    def _message_size(self, at: int = 0) -> int | None:
        """Octets of the message at an offset of what has arrived, None while it is not whole."""
        if len(self._arrived) < at + 2:
            return None
        size = int.from_bytes(self._arrived[at : at + 2], "big")
        return size if len(self._arrived) >= at + 2 + size else None
