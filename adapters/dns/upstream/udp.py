"""Queries over UDP, from connected sockets on random ports.

A connected socket takes datagrams of its upstream only, so the kernel checks where an answer comes
from (RFC 5452 section 9.1). The ID is random, and so is the port: the kernel gives each socket one,
a pool of sockets takes turns by chance, and a socket that has sent enough is replaced by one on
another port (RFC 5452 section 9.2).
"""

import asyncio
import socket
from functools import cache

from kudurru.adapters.dns import mmsg
from kudurru.domain.chance import Chance
from kudurru.domain.ports import Exchange

SOCKETS_MAX = 32
"""Of one upstream. Each is a port that a forger would have to guess."""

QUERIES_PER_SOCKET = 512
"""After so many it is closed, when the last answer is there or given up."""

WAITING_PER_SOCKET = 2048
"""A sixteenth of all IDs at most is in use, so that a free one is found soon and guesses miss."""

RECEIVED_PER_TURN = mmsg.BATCH
DATAGRAM_MAX = 4096
QUERY_MAX = 512  # octets: a name, a header, an OPT record
BUFFER = 1 << 20  # octets that the kernel keeps for us while we are busy


class UdpCarrier:
    """A `Carrier`. `target` is the upstream's address and port."""

    def __init__(self, target: tuple[str, int], chance: Chance) -> None:
        self._target = target
        self._family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._pool: list[_Socket] = []
        self._current: _Socket | None = None  # for the queries of this turn of the loop
        self._outgoing: list[tuple[int, bytes]] = []  # IDs and queries on it
        self._by_exchange: dict[Exchange, tuple[_Socket, int]] = {}

    def send(self, exchange: Exchange) -> None:
        """Queries of one turn of the loop leave together, from one socket: a call for each would
        be half of what a query costs."""
        one = self._current
        if one is None:
            try:
                one = self._socket()
            except OSError as fault:
                self._loop.call_soon(exchange.failed, _reason(fault))
                return
            self._current = one
            self._loop.call_soon(self._flush)
        if len(one.waiting) >= WAITING_PER_SOCKET:
            self._loop.call_soon(exchange.failed, "full")
            return
        waiting = one.waiting
        ident = self._chance.bits(2)
        while ident in waiting:
            ident = self._chance.bits(2)
        waiting[ident] = exchange
        self._by_exchange[exchange] = one, ident
        self._outgoing.append((ident, ident.to_bytes(2, "big") + exchange.packet[2:]))
        if len(self._outgoing) >= mmsg.BATCH:
            self._flush()

    def _flush(self) -> None:
        one, outgoing = self._current, self._outgoing
        self._current, self._outgoing = None, []
        if one is None or one.sock.fileno() < 0:
            return
        one.sent += len(outgoing)
        try:
            self._send(one.sock, [packet for _, packet in outgoing])
        except BlockingIOError:
            pass  # lost, as on any path: they are asked again
        except OSError as fault:
            for ident, _ in outgoing:
                exchange = one.waiting.get(ident)
                if exchange is not None:
                    self._forget(one, ident)
                    exchange.failed(_reason(fault))
        if one.sent >= QUERIES_PER_SOCKET and one in self._pool:
            self._pool.remove(one)
            self._close_when_done(one)

    def _send(self, sock: socket.socket, packets: list[bytes]) -> None:
        """Raises OSError."""
        if len(packets) == 1 or not mmsg.is_available():
            for packet in packets:
                sock.send(packet)
        else:
            _sender().send(sock, packets)  # what finds no room is asked again

    def forget(self, exchange: Exchange) -> None:
        known = self._by_exchange.get(exchange)
        if known is not None:
            self._forget(*known)

    async def close(self) -> None:
        for one, ident in list(self._by_exchange.values()):
            self._forget(one, ident)
        while self._pool:
            self._close(self._pool.pop())

    def _forget(self, one: "_Socket", ident: int) -> None:
        del self._by_exchange[one.waiting.pop(ident)]
        if one.sent >= QUERIES_PER_SOCKET:
            self._close_when_done(one)

    def _close_when_done(self, one: "_Socket") -> None:
        if not one.waiting and one is not self._current:
            self._close(one)

    def _socket(self) -> "_Socket":
        """One to send from, by chance. Raises OSError."""
        if len(self._pool) < SOCKETS_MAX:
            self._pool.append(self._open())
            return self._pool[-1]
        return self._pool[self._chance.below(SOCKETS_MAX)]

    def _open(self) -> "_Socket":
        sock = socket.socket(self._family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            sock.connect(self._target)
        except OSError:
            sock.close()
            raise
        one = _Socket(sock)
        self._loop.add_reader(sock, self._receive, one)
        return one

    def _close(self, one: "_Socket") -> None:
        if one.sock.fileno() >= 0:
            self._loop.remove_reader(one.sock)
            one.sock.close()

    def _receive(self, one: "_Socket") -> None:
        waiting = one.waiting
        try:
            packets = self._received(one.sock)
        except OSError as fault:  # an ICMP message: nobody is there
            self._fail_all(one, _reason(fault))
            return
        for packet in packets:
            if len(packet) < 2:
                continue
            ident = packet[0] << 8 | packet[1]
            exchange = waiting.get(ident)
            if (
                exchange is not None
                and exchange.received(packet)
                and waiting.get(ident) is exchange
            ):
                self._forget(one, ident)

    def _received(self, sock: socket.socket) -> list[bytes]:
        """What there is, as much as one turn of the loop should take. Raises OSError."""
        if mmsg.is_available():
            return _receiver().receive(sock)
        packets: list[bytes] = []
        try:
            while len(packets) < RECEIVED_PER_TURN:
                packets.append(sock.recv(DATAGRAM_MAX))
        except BlockingIOError:
            pass
        except OSError:
            if not packets:
                raise
        return packets

    def _fail_all(self, one: "_Socket", why: str) -> None:
        for ident, exchange in list(one.waiting.items()):
            if one.waiting.get(ident) is exchange:
                self._forget(one, ident)
                exchange.failed(why)


class _Socket:
    __slots__ = ("sent", "sock", "waiting")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sent = 0
        self.waiting: dict[int, Exchange] = {}


@cache
def _sender() -> mmsg.Sender:
    """One for all: it is done with when its call returns."""
    return mmsg.Sender(QUERY_MAX)


@cache
def _receiver() -> mmsg.Receiver:
    return mmsg.Receiver(DATAGRAM_MAX)


def _reason(fault: OSError) -> str:
    return "refused" if isinstance(fault, ConnectionRefusedError) else "unreachable"
