"""A way to a server on which everything goes wrong that can on a network: connections that break
before, in the middle of and after a request, answers that come in pieces, one octet now and then,
or never.

What goes wrong is drawn from a seeded source, so that a failure happens again.
"""

import asyncio
import random
from collections import Counter
from typing import Any, Literal

import httpcore

from kudurru.adapters.kubernetes.fakes.network import Link, MemoryServer

Fault = Literal["pieces", "trickle", "broken", "ended", "silent", "unsent", "unheard"]
"""Of an answer: it comes in pieces; an octet now and then; its connection is reset; is closed;
nothing comes any more. Of a request: it is not sent; its answer is lost, and it was done."""

_OF_ANSWERS: tuple[Fault, ...] = ("pieces", "trickle", "broken", "ended", "silent")
_OF_REQUESTS: tuple[Fault, ...] = ("unsent", "unheard")

PIECE_MAX = 200
"""Octets of one: less than an event of a watch, which so comes apart in all places."""
DRIP_S = 0.5
"""Between two octets: so a whole request runs into its limit, and no read of it does."""
DRIPS_MAX = 200


class FaultyLink(Link):
    """Like `Link`. `rate` is how many reads and writes go wrong, of one."""

    def __init__(self, server: MemoryServer, chance: random.Random, rate: float = 0.0) -> None:
        super().__init__(server)
        self.chance = chance
        self.rate = rate
        self.faults: Counter[Fault] = Counter()
        """What went wrong so far."""

    async def connect_tcp(self, *args: Any, **named: Any) -> httpcore.AsyncNetworkStream:
        return _Faulty(await super().connect_tcp(*args, **named), self)

    def drawn(self, faults: tuple[Fault, ...]) -> Fault | None:
        if self.chance.random() >= self.rate:
            return None
        fault = self.chance.choice(faults)
        self.faults[fault] += 1
        return fault


class _Faulty(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream, link: FaultyLink) -> None:
        self._stream = stream
        self._link = link
        self._fault: Fault | None = None  # of the answer that is read
        self._drips = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._fault = self._fault or self._link.drawn(_OF_ANSWERS)
        match self._fault:
            case None:
                return await self._stream.read(max_bytes, timeout)
            case "pieces":
                self._fault = None
                return await self._stream.read(self._link.chance.randint(1, PIECE_MAX), timeout)
            case "trickle":
                await asyncio.sleep(DRIP_S)
                self._drips += 1
                if self._drips % DRIPS_MAX == 0:
                    self._fault = None
                return await self._stream.read(1, timeout)
            case "ended":
                await self._stream.aclose()
                return b""
            case "silent":
                if timeout is not None:
                    await asyncio.sleep(timeout)
                    raise httpcore.ReadTimeout("nothing was read")
                await asyncio.get_running_loop().create_future()
            case "unheard":
                await self._stream.read(max_bytes, timeout)  # it was done by then
        await self._stream.aclose()
        raise httpcore.ReadError("connection reset")

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        fault = self._link.drawn(_OF_REQUESTS)
        if fault != "unsent":
            await self._stream.write(buffer, timeout)
        if fault == "unsent":
            await self._stream.aclose()
            raise httpcore.WriteError("connection reset")
        if fault == "unheard":
            self._fault = fault

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
