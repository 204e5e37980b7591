"""Opens the way to an upstream, whatever it speaks."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import assert_never

from kudurru.adapters.dns.upstream.connecting import ConnectingCarrier
from kudurru.adapters.dns.upstream.streams import stream_dial
from kudurru.adapters.dns.upstream.udp import UdpCarrier
from kudurru.domain.chance import Chance
from kudurru.domain.dns.upstreams import Transport, UpstreamAddress
from kudurru.domain.extras import how_to_install
from kudurru.domain.later import Later
from kudurru.domain.ports import Carrier, Clock, Exchange

_EXTRAS: dict[Transport, tuple[str, str]] = {
    "doq": ("aioquic", "quic"), "doh3": ("aioquic", "quic"), "dnscrypt": ("nacl", "dnscrypt"),
}  # fmt: skip
"""Module and extra that a transport wants."""

LOOK_UP_S = 600
"""An address is used for so long, whatever its TTL: upstreams move seldom, and looking one up is no
hurry."""

LookUp = Callable[[str], Later[tuple[str, ...]]]
"""Addresses of a host, later; none where it cannot be found."""


class Carriers:
    """Implements `domain.ports.Carriers`. `look_up` asks the bootstrap servers; `ca` is a file of
    further CAs for certificates of upstreams. What encrypted transports need is imported when there
    is one."""

    def __init__(self, chance: Chance, clock: Clock, look_up: LookUp, ca: str = "") -> None:
        self._chance = chance
        self._clock = clock
        self._look_up = look_up
        self.ca = ca

    def open(self, address: UpstreamAddress, *, over_tcp: bool = False) -> Carrier:
        if why_not_spoken(address.transport) is not None:
            return DeadCarrier()
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
                return ConnectingCarrier(targets, stream_dial(self._chance))
            case "dot":
                from kudurru.adapters.dns.upstream.tls import Tls

                tls = Tls(address, self.ca)
                return ConnectingCarrier(targets, stream_dial(self._chance, tls))
            case "doh":
                from kudurru.adapters.dns.upstream.doh import ALPN, doh_dial
                from kudurru.adapters.dns.upstream.tls import Tls

                return ConnectingCarrier(targets, doh_dial(address, Tls(address, self.ca, ALPN)))
            case "doh3" | "doq":
                from kudurru.adapters.dns.upstream.quic import quic_dial
                from kudurru.adapters.dns.upstream.tls import Tls

                return ConnectingCarrier(
                    targets, quic_dial(address, Tls(address, self.ca), self.ca)
                )
            case "dnscrypt":
                from kudurru.adapters.dns.upstream.dnscrypt import dnscrypt_dial

                dial = dnscrypt_dial(address, self._chance, self._clock, over_tcp=over_tcp)
                return ConnectingCarrier(targets, dial)
            case _:
                assert_never(address.transport)


@cache
def why_not_spoken(transport: Transport) -> str | None:
    """What is missing for a transport, and what to do; None: nothing."""
    module, extra = _EXTRAS.get(transport, ("", ""))
    if not module or find_spec(module) is not None:
        return None
    return f"{transport} wants the extra {extra}: {how_to_install(extra)}"


class DeadCarrier:
    """A `Carrier` over what is not installed here."""

    def send(self, exchange: Exchange) -> None:
        asyncio.get_running_loop().call_soon(exchange.failed, "not installed")

    def forget(self, exchange: Exchange) -> None:
        """There is nothing to forget."""

    async def close(self) -> None:
        """There is nothing to close."""


class NamedCarrier:
    """A `Carrier` to an upstream that is known by name: its address is looked up before the first
    query, and again, beside the queries, when that was a while ago."""

    def __init__(
        self,
        look_up: Callable[[], Later[tuple[str, ...]]],
        open_to: Callable[[Sequence[str]], Carrier],
    ) -> None:
        self._look_up = look_up
        self._open_to = open_to
        self._carrier: Carrier | None = None
        self._before: Carrier | None = None  # to other addresses; what is under way ends there
        self._addresses: tuple[str, ...] = ()
        self._looked_s = 0.0
        self._queue: dict[Exchange, None] = {}
        self._is_looking = False
        self._loop = asyncio.get_running_loop()
        self._closing: set[asyncio.Task[None]] = set()

    def send(self, exchange: Exchange) -> None:
        is_due = self._loop.time() - self._looked_s > LOOK_UP_S
        if self._carrier is not None:
            self._carrier.send(exchange)
        else:
            self._queue[exchange] = None
            is_due = True
        if is_due and not self._is_looking:
            self._is_looking = True
            self._look_up().then(self._found)

    def forget(self, exchange: Exchange) -> None:
        self._queue.pop(exchange, None)
        for carrier in (self._carrier, self._before):
            if carrier is not None:
                carrier.forget(exchange)

    async def close(self) -> None:
        self._queue.clear()
        await asyncio.gather(*self._closing)
        for carrier in (self._carrier, self._before):
            if carrier is not None:
                await carrier.close()

    def _found(self, addresses: tuple[str, ...]) -> None:
        self._is_looking = False
        queue, self._queue = self._queue, {}
        self._looked_s = self._loop.time()
        if addresses and addresses != self._addresses:
            self._addresses = addresses
            if self._before is not None:
                task = self._loop.create_task(self._before.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
            self._before, self._carrier = self._carrier, self._open_to(addresses)
        for exchange in queue:
            if self._carrier is not None:
                self._carrier.send(exchange)
            else:
                self._loop.call_soon(exchange.failed, "no address")
