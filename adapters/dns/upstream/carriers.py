"""Opens the way to an upstream, whatever it speaks."""

import asyncio
from collections.abc import Callable, Sequence

from kudurru.adapters.dns.upstream.streams import StreamCarrier
from kudurru.adapters.dns.upstream.udp import UdpCarrier
from kudurru.domain.chance import Chance
from kudurru.domain.dns.upstreams import UpstreamAddress
from kudurru.domain.later import Later
from kudurru.domain.ports import Carrier, Exchange

LookUp = Callable[[str], Later[tuple[str, ...]]]
"""Addresses of a host, later; none where it cannot be found."""


class Carriers:
    """Implements `domain.ports.Carriers`. `look_up` asks the bootstrap servers."""

    def __init__(self, chance: Chance, look_up: LookUp) -> None:
        self._chance = chance
        self._look_up = look_up

    def open(self, address: UpstreamAddress, *, over_tcp: bool = False) -> Carrier:
        if address.addresses:
            return self._open(address, address.addresses, over_tcp=over_tcp)
        return NamedCarrier(
            lambda: self._look_up(address.host),
            lambda addresses: self._open(address, addresses, over_tcp=over_tcp),
        )

    def _open(
        self, address: UpstreamAddress, addresses: Sequence[str], *, over_tcp: bool
    ) -> Carrier:
        targets = [(one, address.port) for one in addresses]
        match address.transport:
            case "udp" if not over_tcp:
                return UdpCarrier(targets[0], self._chance)
            case "udp" | "tcp":
                return StreamCarrier(targets, self._chance)
            case _:
                raise NotImplementedError(address.transport)


class NamedCarrier:
    """A `Carrier` to an upstream that is known by name: its address is looked up before the first
    query, and again when nothing could be reached any more."""

    def __init__(
        self,
        look_up: Callable[[], Later[tuple[str, ...]]],
        open_to: Callable[[Sequence[str]], Carrier],
    ) -> None:
        self._look_up = look_up
        self._open_to = open_to
        self._carrier: Carrier | None = None
        self._queue: dict[Exchange, None] = {}
        self._is_looking = False

    def send(self, exchange: Exchange) -> None:
        if self._carrier is not None:
            self._carrier.send(exchange)
            return
        self._queue[exchange] = None
        if not self._is_looking:
            self._is_looking = True
            self._look_up().then(self._found)

    def forget(self, exchange: Exchange) -> None:
        self._queue.pop(exchange, None)
        if self._carrier is not None:
            self._carrier.forget(exchange)

    async def close(self) -> None:
        self._queue.clear()
        if self._carrier is not None:
            await self._carrier.close()

    def _found(self, addresses: tuple[str, ...]) -> None:
        self._is_looking = False
        queue, self._queue = self._queue, {}
        if addresses:
            self._carrier = self._open_to(addresses)
        for exchange in queue:
            if self._carrier is not None:
                self._carrier.send(exchange)
            else:
                asyncio.get_running_loop().call_soon(exchange.failed, "no address")
