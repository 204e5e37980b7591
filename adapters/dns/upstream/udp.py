"""Queries over UDP, from connected sockets on random ports.

A connected socket takes datagrams of its upstream only, so the kernel checks where an answer comes
from (RFC 5452 section 9.1). The ID is random, and so is the port: the kernel gives each socket one,
a pool of sockets takes turns by chance, and a socket that has sent enough is replaced by one on
another port (RFC 5452 section 9.2).
"""

import asyncio
import socket

from kudurru.domain.chance import Chance
from kudurru.domain.ports import Exchange

SOCKETS_MAX = 32
"""Of one upstream. Each is a port that a forger would have to guess."""

QUERIES_PER_SOCKET = 512
"""After so many it is closed, when the last answer is there or given up."""

WAITING_PER_SOCKET = 2048
"""A sixteenth of all IDs at most is in use, so that a free one is found soon and guesses miss."""

RECEIVED_PER_TURN = 64
DATAGRAM_MAX = 4096
BUFFER = 1 << 20  # octets that the kernel keeps for us while we are busy


class UdpCarrier:
    """A `Carrier`. `target` is the upstream's address and port."""

    def __init__(self, target: tuple[str, int], chance: Chance) -> None:
        self._target = target
        self._family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._pool: list[_Socket] = []
        self._by_exchange: dict[Exchange, tuple[_Socket, int]] = {}

    def send(self, exchange: Exchange) -> None:
        try:
            one = self._socket()
        except OSError as fault:
            self._loop.call_soon(exchange.failed, _reason(fault))
            return
        if one is None:
            self._loop.call_soon(exchange.failed, "full")
            return
        ident = self._free_id(one)
        one.waiting[ident] = exchange
        self._by_exchange[exchange] = one, ident
        one.sent += 1
        packet = ident.to_bytes(2, "big") + exchange.packet[2:]
        try:
            one.sock.send(packet)
        except BlockingIOError:
            pass  # lost, as on any path: it is asked again
        except OSError as fault:
            self._forget(one, ident)
            self._loop.call_soon(exchange.failed, _reason(fault))
        if one.sent >= QUERIES_PER_SOCKET:
            self._pool.remove(one)

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
        exchange = one.waiting.pop(ident)
        del self._by_exchange[exchange]
        if not one.waiting and one.sent >= QUERIES_PER_SOCKET:
            self._close(one)

    def _socket(self) -> "_Socket | None":
        """One to send from, by chance; None when all are full. Raises OSError."""
        if len(self._pool) < SOCKETS_MAX:
            self._pool.append(self._open())
            return self._pool[-1]
        one = self._pool[self._chance.below(SOCKETS_MAX)]
        return one if len(one.waiting) < WAITING_PER_SOCKET else None

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

    def _free_id(self, one: "_Socket") -> int:
        while True:
            ident = self._chance.bits(2)
            if ident not in one.waiting:
                return ident

    def _receive(self, one: "_Socket") -> None:
        sock, waiting = one.sock, one.waiting
        for _ in range(RECEIVED_PER_TURN):
            try:
                packet = sock.recv(DATAGRAM_MAX)
            except BlockingIOError:
                return
            except OSError as fault:  # an ICMP message: nobody is there
                self._fail_all(one, _reason(fault))
                return
            ident = int.from_bytes(packet[:2], "big")
            exchange = waiting.get(ident)
            if exchange is not None and exchange.received(b"\0\0" + packet[2:]):
                if waiting.get(ident) is exchange:
                    self._forget(one, ident)
                if sock.fileno() < 0:
                    return
            elif not waiting:
                return

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


def _reason(fault: OSError) -> str:
    return "refused" if isinstance(fault, ConnectionRefusedError) else "unreachable"
