"""Bounds on connections, shared by DNS over TCP, HTTP and QUIC: how many, per client network, and
until when. And what listens for those over TCP.

A connection has one deadline, a number that its protocol moves; one sweep a second looks at all of
them. That is cheaper than a timer per connection, and a test needs no waiting: it calls
`expire(now)` with a later now.
"""

import asyncio
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

import msgspec

from kudurru.adapters.accepting import Acceptor
from kudurru.adapters.sockets import address_of

log = logging.getLogger("kudurru")

CUT_SHOWN = 10  # clients whose connections were cut, by address
SWEEP_S = 1.0  # how late a deadline may be noticed


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    connections: int = 1000
    connections_per_network: int = 50  # an IPv4 address or an IPv6 /64
    request_s: float = 30  # for one request to arrive, or its answers to be taken
    drain_s: float = 5  # at stop, for answers to leave


class Connection(Protocol):
    deadline_s: float  # in the loop's time
    network: str  # by `network_of`; "" is not counted per network

    def expire(self) -> None:
        """The deadline has passed: close."""
        ...

    def close(self) -> None:
        """Send what is written and close. Harmless when closing already."""
        ...

    def abort(self) -> None:
        """Close now."""
        ...


AConnection = TypeVar("AConnection", bound=Connection)


class Connections(Generic[AConnection]):
    """The open connections of one server."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open: set[AConnection] = set()
        self._per_network: Counter[str] = Counter()
        self._per_site: Counter[str] = Counter()
        # Who has a /48 has 65,536 networks: the last quarter is not for one that has half.
        self._last_from = limits.connections - limits.connections // 4
        self._site_max = max(limits.connections // 2, limits.connections_per_network)
        self._gone = asyncio.Event()
        self._sweep: asyncio.TimerHandle | None = None
        self.accepted = 0
        self.refused = 0
        self.timed_out = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[AConnection]:
        return iter(self._open)

    def counts(self) -> dict[str, int]:
        """For the statistics of a server."""
        return {
            "connections": len(self._open),
            "connections_accepted": self.accepted,
            "connections_refused": self.refused,
            "connections_timed_out": self.timed_out,
        }

    def admit(self, network: str) -> bool:
        """Whether there is room; if not, it is counted and the caller aborts."""
        if len(self._open) < self._limits.connections and self._has_room(network):
            return True
        self.refused += 1
        return False

    def add(self, connection: AConnection) -> bool:
        """Count a connection in; False as `admit`."""
        if not self.admit(connection.network):
            return False
        self.accepted += 1
        self._open.add(connection)
        self._enter_network(connection)
        return True

    def move(self, connection: AConnection, network: str) -> bool:
        """Count one that is open under another network, its client's; False as `add`."""
        if not self._has_room(network):
            self.refused += 1
            return False
        self._leave_network(connection)
        connection.network = network
        self._enter_network(connection)
        return True

    def _has_room(self, network: str) -> bool:
        if not network:
            return True
        if self._per_network[network] >= self._limits.connections_per_network:
            return False
        if len(self._open) < self._last_from:
            return True
        site = site_of(network)
        return not site or self._per_site[site] < self._site_max

    def discard(self, connection: AConnection) -> None:
        """Forget one that is closed, or was never added."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        self._leave_network(connection)
        if not self._open:
            self._gone.set()

    def _enter_network(self, connection: AConnection) -> None:
        self._per_network[connection.network] += 1
        if site := site_of(connection.network):
            self._per_site[site] += 1

    def _leave_network(self, connection: AConnection) -> None:
        network = connection.network
        self._per_network[network] -= 1
        if not self._per_network[network]:
            del self._per_network[network]
        if site := site_of(network):
            self._per_site[site] -= 1
            if not self._per_site[site]:
                del self._per_site[site]

    def start(self) -> None:
        """Sweep from now on, on the running loop."""
        self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep_and_go_on)

    def expire(self, now_s: float) -> None:
        """Close what is past its deadline at `now_s` (the loop's time)."""
        for connection in [one for one in self._open if one.deadline_s <= now_s]:
            self.timed_out += 1
            connection.expire()

    async def stop(self) -> None:
        """Close all. What is written may leave for `drain_s` seconds, then connections are cut."""
        drain_s = self._limits.drain_s
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.close()
        if not await self._are_gone(drain_s):
            self._tell_cut()
            for connection in list(self._open):
                connection.abort()
            await self._are_gone(drain_s)

    def _tell_cut(self) -> None:
        clients = sorted({connection.network or "a proxy" for connection in self._open})
        shown = ", ".join(clients[:CUT_SHOWN]) + (" ..." if len(clients) > CUT_SHOWN else "")
        log.warning(
            "%d connections are cut, as they did not end in %g s: of %s",
            *(len(self._open), self._limits.drain_s, shown),
        )

    async def _are_gone(self, within_s: float) -> bool:
        self._gone.clear()
        try:
            if self._open:
                async with asyncio.timeout(within_s):
                    await self._gone.wait()
        except TimeoutError:
            return False
        return True

    def _sweep_and_go_on(self) -> None:
        self.expire(asyncio.get_running_loop().time())
        self.start()


class ConnectionServer(Generic[AConnection]):
    """Connections over TCP, on sockets that listen already. A subclass makes their protocols."""

    def __init__(self, sockets: Sequence[socket.socket], limits: ConnectionLimits) -> None:
        self._sockets = tuple(sockets)
        self._addresses = tuple(dict.fromkeys(address_of(sock) for sock in sockets))
        self._acceptors = [Acceptor(sock, self._admit, self.make_protocol) for sock in sockets]
        self.connections: Connections[AConnection] = Connections(limits)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def make_protocol(self) -> asyncio.BaseProtocol:
        raise NotImplementedError

    def network_of(self, peer: str) -> str:
        """Where a connection from a peer's address counts."""
        return network_of(peer)

    async def start(self) -> None:
        for acceptor in self._acceptors:
            acceptor.start()
        self.connections.start()

    async def stop(self) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()
        for sock in self._sockets:
            sock.close()
        await self.connections.stop()

    def _admit(self, peer: str) -> bool:
        return self.connections.admit(self.network_of(peer))


@lru_cache(1024)  # of clients that come again and again
def network_of(address: str) -> str:
    """What counts as one client: an IPv4 address, or an IPv6 /64, which one host has whole."""
    if ":" not in address:
        return address
    return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))


@lru_cache(1024)
def site_of(network: str) -> str:
    """The IPv6 /48 that a network by `network_of` is in: what one customer has at most (RFC 6177).
    "" of others."""
    if ":" not in network:
        return ""
    return str(ipaddress.IPv6Network(network).supernet(new_prefix=48))
