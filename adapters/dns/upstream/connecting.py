"""Upstreams behind a connection: opened by the first query, kept while it is used.

What a connection had not answered when the upstream closed it is sent once more on a new one: a
server may close an idle connection in the moment that a query leaves (RFC 7766 section 6.2.4). A
connection on which a query waits while nothing is heard is given up: a network on the way may have
forgotten it, and would not say so.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from kudurru.domain.ports import Exchange

log = logging.getLogger("kudurru")

CONNECT_S = 5  # for connection and handshake
IDLE_S = 30  # then a connection that nobody uses is closed
STUCK_S = 1  # a query unanswered for so long, and nothing heard since: the connection is dead
OUTSTANDING_MAX = 2048  # queries of one connection; a server that reads slowly is no reason to grow

Target = tuple[str, int]


class Unreachable(Exception):
    """No connection; the text is a word that says why."""


class Connection(Protocol):
    """One connection to an upstream, its handshake done."""

    @property
    def is_open(self) -> bool: ...

    @property
    def room(self) -> int:
        """Queries that may be sent now."""
        ...

    def send(self, exchange: Exchange) -> int:
        """Send a query; the number that it has on this connection."""
        ...

    def cancel(self, number: int) -> None:
        """Its answer is not wanted any more."""
        ...

    def close(self) -> None: ...


class Sink(Protocol):
    """Who hears of a connection."""

    def answered(self, number: int, packet: bytes) -> None:
        """A response, its ID set to 0."""
        ...

    def refused(self, number: int, why: str) -> None:
        """There will be no response to one query, and the connection goes on."""
        ...

    def lost(self) -> None: ...


Dial = Callable[[Target, Sink], Awaitable[Connection]]
"""Open a connection. Raises: Unreachable, OSError, ssl.SSLError."""


class ConnectingCarrier:
    """A `Carrier` over one connection at a time. `targets` are tried in order."""

    def __init__(self, targets: Sequence[Target], dial: Dial) -> None:
        self._targets = tuple(targets)
        self._dial = dial
        self._loop = asyncio.get_running_loop()
        self._line: _Line | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._queue: dict[Exchange, bool] = {}  # until there is a connection; True: sent before
        self._is_closed = False

    def send(self, exchange: Exchange) -> None:
        self._send(exchange, was_sent=False)

    def forget(self, exchange: Exchange) -> None:
        self._queue.pop(exchange, None)
        if self._line is not None:
            self._line.give_up(exchange)

    async def close(self) -> None:
        self._is_closed = True
        self._queue.clear()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._line is not None:
            self._line.close()
            self._line = None

    def _send(self, exchange: Exchange, *, was_sent: bool) -> None:
        if self._line is not None and self._line.connection.is_open:
            if not self._line.send(exchange, was_sent=was_sent):
                self._loop.call_soon(exchange.failed, "full")
        elif len(self._queue) >= OUTSTANDING_MAX or self._is_closed:
            self._loop.call_soon(exchange.failed, "full")
        else:
            self._queue[exchange] = was_sent
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Open a connection and send what waits for it. Ends by itself."""
        why = "unreachable"
        line = None
        for target in self._targets:
            made = _Line(self._lost)
            try:
                async with asyncio.timeout(CONNECT_S):
                    made.connection = await self._dial(target, made)
                line = made
                break
            except Unreachable as fault:
                why = str(fault)
            except ssl.SSLError:
                why = "tls"
            except ConnectionRefusedError:
                why = "refused"
            except TimeoutError:
                why = "timeout"
            except OSError:
                why = "unreachable"
            except Exception:  # of a library, about what came: the next query dials again
                log.exception("connecting to an upstream failed in a way that was not foreseen")
                why = "malformed"
        self._connecting = None
        self._line = line
        queue, self._queue = self._queue, {}
        for exchange, was_sent in queue.items():
            if line is None:
                exchange.failed(why)
            elif not line.send(exchange, was_sent=was_sent):
                exchange.failed("full")

    def _lost(self, line: "_Line") -> None:
        if self._line is line:
            self._line = None
        for exchange, was_sent in line.take_waiting():
            # Only what a connection in use may have lost by its end is sent again.
            if was_sent or not line.has_answered:
                exchange.failed("closed")
            else:
                self._send(exchange, was_sent=True)


class _Line:
    """A connection and the queries on it. Implements `Sink`."""

    def __init__(self, on_lost: Callable[["_Line"], None]) -> None:
        self.connection: Connection
        self.has_answered = False
        self._on_lost = on_lost
        self._waiting: dict[int, tuple[Exchange, bool, float]] = {}  # sent before; when
        self._numbers: dict[Exchange, int] = {}
        self._heard_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._idle: asyncio.TimerHandle | None = None

    def send(self, exchange: Exchange, *, was_sent: bool) -> bool:
        """False when there is no room."""
        if len(self._waiting) >= OUTSTANDING_MAX or not self.connection.is_open:
            return False
        if self.connection.room <= 0:
            return False
        try:
            number = self.connection.send(exchange)
        except Exception:  # of a library: one that does not send is no connection any more
            log.exception("sending to an upstream failed in a way that was not foreseen")
            self.connection.close()
            return False
        self._waiting[number] = exchange, was_sent, self._loop.time()
        self._numbers[exchange] = number
        self._watch_idleness()
        return True

    def give_up(self, exchange: Exchange) -> None:
        number = self._numbers.get(exchange)
        if number is None:
            return
        sent_s = self._waiting[number][2]
        self._forget(number)
        self.connection.cancel(number)
        if self._heard_s <= sent_s and self._loop.time() - sent_s >= STUCK_S:
            self.connection.close()

    def take_waiting(self) -> list[tuple[Exchange, bool]]:
        found = [(exchange, was_sent) for exchange, was_sent, _ in self._waiting.values()]
        self._waiting.clear()
        self._numbers.clear()
        return found

    def close(self) -> None:
        self.take_waiting()
        if self._idle is not None:
            self._idle.cancel()
        self.connection.close()

    # --- from the connection ------------------------------------------------------------

    def answered(self, number: int, packet: bytes) -> None:
        known = self._waiting.get(number)
        if known is None:
            return  # given up, or never asked
        self.has_answered = True
        self._heard_s = self._loop.time()
        if known[0].received(packet) and self._waiting.get(number) is known:
            self._forget(number)

    def refused(self, number: int, why: str) -> None:
        known = self._waiting.get(number)
        if known is not None:
            self._heard_s = self._loop.time()
            self._forget(number)
            known[0].failed(why)

    def lost(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._on_lost(self)

    def _forget(self, number: int) -> None:
        exchange = self._waiting.pop(number)[0]
        del self._numbers[exchange]
        self._watch_idleness()

    def _watch_idleness(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._waiting:
            self._idle = self._loop.call_later(IDLE_S, self.connection.close)


def framed(packet: bytes) -> bytes:
    """A message as streams carry it (RFC 1035 section 4.2.2)."""
    return len(packet).to_bytes(2, "big") + packet
