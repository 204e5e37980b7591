"""Bounds on stream connections, shared by DNS over TCP and HTTP: how many, per client network, and
until when.

A connection has one deadline, a number that its protocol moves; one sweep a second looks at all of
them. That is cheaper than a timer per connection, and a test needs no waiting: it calls
`expire(now)` with a later now.
"""

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

SWEEP_S = 1.0  # how late a deadline may be noticed


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

    def __init__(self, limit: int, limit_per_network: int) -> None:
        self._limit = limit
        self._limit_per_network = limit_per_network
        self._open: set[AConnection] = set()
        self._per_network: Counter[str] = Counter()
        self._gone = asyncio.Event()
        self._sweep: asyncio.TimerHandle | None = None
        self.accepted = 0
        self.refused = 0
        self.timed_out = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[AConnection]:
        return iter(self._open)

    def add(self, connection: AConnection) -> bool:
        """Whether there is room; if not, it is counted and the caller aborts."""
        if len(self._open) >= self._limit or not self._has_room(connection.network):
            self.refused += 1
            return False
        self.accepted += 1
        self._open.add(connection)
        self._per_network[connection.network] += 1
        return True

    def move(self, connection: AConnection, network: str) -> bool:
        """Count one that is open under another network, its client's; False as `add`."""
        if not self._has_room(network):
            self.refused += 1
            return False
        self._leave_network(connection)
        connection.network = network
        self._per_network[network] += 1
        return True

    def _has_room(self, network: str) -> bool:
        return not network or self._per_network[network] < self._limit_per_network

    def discard(self, connection: AConnection) -> None:
        """Forget one that is closed, or was never added."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        self._leave_network(connection)
        if not self._open:
            self._gone.set()

    def _leave_network(self, connection: AConnection) -> None:
        self._per_network[connection.network] -= 1
        if not self._per_network[connection.network]:
            del self._per_network[connection.network]

    def start(self) -> None:
        """Sweep from now on, on the running loop."""
        self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep_and_go_on)

    def expire(self, now_s: float) -> None:
        """Close what is past its deadline at `now_s` (the loop's time)."""
        for connection in [one for one in self._open if one.deadline_s <= now_s]:
            self.timed_out += 1
            connection.expire()

    async def stop(self, drain_s: float) -> None:
        """Close all. What is written may leave for `drain_s` seconds, then connections are cut."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.close()
        if not await self._are_gone(drain_s):
            for connection in list(self._open):
                connection.abort()
            await self._are_gone(drain_s)

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


def network_of(address: str) -> str:
    """What counts as one client: an IPv4 address, or an IPv6 /64, which one host has whole."""
    if ":" not in address:
        return address
    return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
