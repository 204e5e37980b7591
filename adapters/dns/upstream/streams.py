"""Queries over connections that carry messages with two octets of length before each, pipelined:
TCP (RFC 7766) and TLS (RFC 7858).

A connection is opened by the first query and kept while it is used. What it had not answered when
the upstream closed it is sent once more on a new one: a server may close an idle connection in the
moment that a query leaves (RFC 7766 section 6.2.4).
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence

from kudurru.domain.chance import Chance
from kudurru.domain.ports import Exchange

CONNECT_S = 5  # for connection and handshake
IDLE_S = 30  # then a connection that nobody uses is closed
STUCK_S = 1  # a query unanswered for so long, and nothing heard since: the connection is dead
OUTSTANDING_MAX = 2048  # queries of one connection; a server that reads slowly is no reason to grow
MESSAGE_MAX = 65_535


class StreamCarrier:
    """A `Carrier`. `targets` are addresses and ports, tried in order; `tls` gives the context and
    the name of the server, None leaves the connection in the clear. `check` looks at the
    certificate that was shown and says what is wrong with it."""

    def __init__(
        self,
        targets: Sequence[tuple[str, int]],
        chance: Chance,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        check: Callable[[ssl.SSLObject], str | None] | None = None,
    ) -> None:
        self._targets = tuple(targets)
        self._chance = chance
        self._tls = tls
        self._server_name = server_name
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._queue: dict[Exchange, bool] = {}  # until there is a connection; True: sent once

    def send(self, exchange: Exchange) -> None:
        self._send(exchange, was_sent=False)

    def forget(self, exchange: Exchange) -> None:
        self._queue.pop(exchange, None)
        if self._connection is not None:
            self._connection.give_up(exchange)

    async def close(self) -> None:
        self._queue.clear()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()

    def _send(self, exchange: Exchange, *, was_sent: bool) -> None:
        connection = self._connection
        if connection is not None and connection.is_open:
            if not connection.send(exchange, was_sent=was_sent):
                self._loop.call_soon(exchange.failed, "full")
            return
        if len(self._queue) >= OUTSTANDING_MAX:
            self._loop.call_soon(exchange.failed, "full")
            return
        self._queue[exchange] = was_sent
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Open a connection and send what waits for it. Ends by itself within CONNECT_S."""
        why = "unreachable"
        connection: _Connection | None = None
        for host, port in self._targets:
            try:
                async with asyncio.timeout(CONNECT_S):
                    _, connection = await self._loop.create_connection(
                        lambda: _Connection(self._chance, self._lost),
                        host,
                        port,
                        ssl=self._tls,
                        server_hostname=self._server_name if self._tls else None,
                    )
                if (fault := self._fault_of(connection)) is None:
                    break
                connection.close()
                connection, why = None, fault
            except ssl.SSLError:
                why = "tls"
            except ConnectionRefusedError:
                why = "refused"
            except TimeoutError:
                why = "timeout"
            except OSError:
                why = "unreachable"
        self._connecting = None
        self._connection = connection
        queue, self._queue = self._queue, {}
        for exchange, was_sent in queue.items():
            if connection is None:
                exchange.failed(why)
            elif not connection.send(exchange, was_sent=was_sent):
                exchange.failed("full")

    def _fault_of(self, connection: "_Connection") -> str | None:
        if self._check is None:
            return None
        shown = connection.transport.get_extra_info("ssl_object")
        return self._check(shown)

    def _lost(self, connection: "_Connection") -> None:
        if self._connection is connection:
            self._connection = None
        for exchange, was_sent in connection.take_waiting():
            # Only what a connection in use may have lost by its end is sent again.
            if was_sent or not connection.has_answered:
                exchange.failed("closed")
            else:
                self._send(exchange, was_sent=True)


class _Connection(asyncio.Protocol):
    def __init__(self, chance: Chance, lost: Callable[["_Connection"], None]) -> None:
        self._chance = chance
        self._on_lost = lost
        self._waiting: dict[int, tuple[Exchange, bool]] = {}  # True: it was sent before
        self._sent_s: dict[int, float] = {}
        self._heard_s = 0.0
        self._ids: dict[Exchange, int] = {}
        self._arrived = bytearray()
        self._idle: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.has_answered = False

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing()

    def send(self, exchange: Exchange, *, was_sent: bool) -> bool:
        """False when there is no room."""
        if len(self._waiting) >= OUTSTANDING_MAX:
            return False
        ident = self._chance.bits(2)
        while ident in self._waiting:
            ident = self._chance.bits(2)
        self._waiting[ident] = exchange, was_sent
        self._ids[exchange] = ident
        self._sent_s[ident] = self._loop.time()
        packet = exchange.packet
        head = len(packet).to_bytes(2, "big") + ident.to_bytes(2, "big")
        self.transport.write(head + packet[2:])
        self._watch_idleness()
        return True

    def give_up(self, exchange: Exchange) -> None:
        """Nobody waits for it any more. When nothing was heard since it left, a network on the
        way has forgotten the connection, and the next query gets another one."""
        ident = self._ids.get(exchange)
        if ident is None:
            return
        sent_s = self._sent_s[ident]
        self._forget(exchange, ident)
        if self._heard_s <= sent_s and self._loop.time() - sent_s >= STUCK_S:
            self.transport.abort()

    def _forget(self, exchange: Exchange, ident: int) -> None:
        del self._ids[exchange], self._waiting[ident], self._sent_s[ident]
        self._watch_idleness()

    def take_waiting(self) -> list[tuple[Exchange, bool]]:
        found = list(self._waiting.values())
        self._waiting.clear()
        self._ids.clear()
        self._sent_s.clear()
        return found

    def close(self) -> None:
        self.take_waiting()
        if self._idle is not None:
            self._idle.cancel()
        self.transport.close()

    # --- the transport's calls ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        arrived = self._arrived
        arrived += data
        at = 0
        while len(arrived) >= at + 2:
            size = int.from_bytes(arrived[at : at + 2], "big")
            if len(arrived) < at + 2 + size:
                break
            self._take(bytes(arrived[at + 2 : at + 2 + size]))
            at += 2 + size
        del arrived[:at]

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._on_lost(self)

    def _take(self, packet: bytes) -> None:
        ident = int.from_bytes(packet[:2], "big")
        known = self._waiting.get(ident)
        if known is None:
            return  # given up, or never asked
        self.has_answered = True
        self._heard_s = self._loop.time()
        exchange = known[0]
        if exchange.received(b"\0\0" + packet[2:]) and self._ids.get(exchange) == ident:
            self._forget(exchange, ident)

    def _watch_idleness(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._waiting:
            self._idle = self._loop.call_later(IDLE_S, self.transport.close)
