"""The contract of PacketEngine: the limiter of queries."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from ipaddress import ip_address
from typing import Any

import pytest

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.networks import Networks
from kudurru.adapters.sockets import Listener, bind_all, split_address
from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.messages import COOKIE
from kudurru.domain.filtering.clients import packed_address
from kudurru.domain.notation import parse_network
from kudurru.domain.ports import QueryLimiter
from kudurru.domain.settings import RatelimitSettings
from kudurru.projections.pipeline.ratelimit import RateLimiter
from tests.packets import edns, edns_with, ident, needs_ipv6, query
from tests.rigs import (
    DEADLINE_S,
    UDP_KINDS,
    Handler,
    Rig,
    until,
)


class ByName:
    """A limiter that judges by the first letter of the name."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def admit(
        self,
        clients: Sequence[bytes],
        queries: Sequence[bytes],
        *,
        unknown: Sequence[bytes] | None = None,
    ) -> Sequence[bytes | None] | None:
        self.asked += clients
        verdicts = {b"s": b"slipped-it", b"d": b""}
        found = [verdicts.get(query[11:12]) for query in queries]
        return found if any(verdict is not None for verdict in found) else None


PYTHON_KINDS = [kind for kind in UDP_KINDS if kind != "native"]


ADDRESSES = ["127.0.0.1:0", pytest.param("[::1]:0", marks=needs_ipv6)]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("udp_kind", PYTHON_KINDS)
def test_a_limiter_is_asked_of_every_datagram_also_of_repeats_and_nonsense(
    udp_kind: str, address: str
) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        good, slips, drops = (query(f"{letter}.example") for letter in "asd")
        await rig.engine.start()
        assert len(await rig.exchange(good)) == 1
        short = b"1234567890"
        answers = await rig.exchange(good, slips, drops, short, good, slips, good, drops, answers=5)
        assert b"".join(answer[2:3] for answer in answers) == b"\x81s\x81s\x81"
        assert answers[1] == slips[:2] + b"slipped-it"
        assert handler.asked == 1
        host = address.rpartition(":")[0].strip("[]")
        assert limiter.asked == [ip_address(host).packed] * 9
        assert rig.engine.statistics().answered == 6
        assert rig.engine.statistics().dropped_by_handler == 0

    limiter = ByName()
    run_limited(udp_kind, address, limiter, scenario)


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_is_over_the_limit_is_counted_and_slips_on_every_engine(
    udp_kind: str, address: str
) -> None:
    """Two a minute: none comes back while this runs."""
    settings = RatelimitSettings(ipv4={32: 2}, ipv6={128: 2}, exempt=())
    buckets = engine_native.new_buckets() if udp_kind == "native" else None
    cookies = Cookies(bytes(32))
    limiter = RateLimiter(settings, SystemClock(), cookies, buckets)
    packets = [
        query("www.example", ident=0),
        query("www.example", ident=1),
        query("WWW.example", ident=2),  # slips, like every second one from here on
        query("www.example", ident=3),
        query("www.example", ident=4, rest=edns(4096)),
        query("www.example", ident=5),
        query("www.example", ident=6, rest=edns_with(COOKIE, b"clientck")),
        query("www.example", ident=7),
        query("www.example", ident=8, flags=0x2800),
        query("www.example", ident=9),
        query("www.example", ident=10)[:-1],
        query("www.example", ident=11),
        query("www.example", ident=12, flags=0x8000),  # a response: never answered
        *[query("health.kudurru.INTERNAL", ident=100 + i) for i in range(20)],  # free
    ]

    async def scenario(rig: Rig, handler: Handler) -> None:
        await rig.engine.start()
        got = {ident(one): one for one in await rig.exchange(*packets, answers=27)}
        assert sorted(got) == [0, 1, 2, 4, 6, 8, 10, *range(100, 120)]
        for i in (2, 4, 6, 8, 10):
            client = packed_address(address.rpartition(":")[0].strip("[]"))
            assert got[i][2] & 2
            assert len(got[i]) == 12 or got[i][12:].startswith(packets[i][12:23])
            again = RateLimiter(settings, SystemClock(), cookies).truncated(client, packets[i][2:])
            assert again is not None
            assert got[i][2:-12] == again[:-12]  # but for the time in a cookie, and its hash
        assert (len(got[8]), len(got[10])) == (12, 12)
        seen = limiter.statistics()
        assert (seen.slipped, seen.dropped, seen.buckets) == (5, 6, 1)
        assert handler.asked == 2
        assert rig.engine.statistics().received == len(packets)
        assert rig.engine.statistics().answered == 27

    run_limited(udp_kind, address, limiter, scenario)


def test_a_limiter_that_fails_is_shown_and_the_others_are_answered(udp_kind: str) -> None:
    class Failing(RateLimiter):
        def admit(self, *given: Any, **named: Any) -> Any:
            raise RuntimeError("a fault of the limiter")

        def truncated(self, client: bytes, query: bytes) -> bytes | None:
            raise RuntimeError("a fault of the limiter")

    is_native = udp_kind == "native"  # its threads count by themselves, and ask how to say no
    levels = {32: 1} if is_native else {32: 600}
    buckets = engine_native.new_buckets() if is_native else None
    settings = RatelimitSettings(ipv4=levels, slip=100, exempt=())
    limiter = Failing(settings, SystemClock(), Cookies(bytes(32)), buckets)

    async def scenario(rig: Rig, handler: Handler) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: rig.faults.append(fault))
        await rig.engine.start()
        odd = edns_with(COOKIE, b"clientck")
        packets = [query(f"{i}.example", ident=i, rest=odd) for i in range(1, 150)]
        packets += [query("health.kudurru.internal", ident=200)]
        got = await rig.exchange(*packets, answers=2 if is_native else 150)
        assert 200 in map(ident, got)
        lost = 148 if is_native else 0
        await until(lambda: rig.engine.statistics().unhandled_exceptions == lost)
        seen = rig.engine.statistics()
        assert {str(fault["exception"]) for fault in rig.faults} == {"a fault of the limiter"}
        assert len(rig.faults) == seen.unhandled_exceptions + seen.faults

    run_limited(udp_kind, "127.0.0.1:0", limiter, scenario)


def run_limited(
    kind: str,
    address: str,
    limiter: QueryLimiter,
    scenario: Callable[[Rig, Handler], Coroutine[Any, Any, None]],
) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            handler = Handler()
            rig = Rig(kind, handler, address)
            rig.limit_by(limiter)
            try:
                await scenario(rig, handler)
            finally:
                await rig.engine.stop()

    asyncio.run(main())


def test_the_client_that_a_proxy_tells_of_is_charged() -> None:
    """PROXY protocol v2, section 2.2: version 2, PROXY; UDP over IPv4; 12 octets of addresses."""
    head = b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c"
    limiter = ByName()

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            (bound,) = bind_all([Listener("udp", "127.0.0.1:0")])
            loopback = Networks([parse_network("127.0.0.0/8")])
            engine = PythonEngine(Handler(), bound.sockets, proxies=loopback, limiter=limiter)
            await engine.start()
            try:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    sock.connect(split_address(bound.address))
                    for last in (1, 2, 1):
                        client = bytes((192, 0, 2, last))
                        addresses = client + bytes((127, 0, 0, 1)) + bytes(4)
                        sock.send(head + addresses + query("a.example"))
                    await until(lambda: len(limiter.asked) == 3)
            finally:
                await engine.stop()

    asyncio.run(main())
    assert limiter.asked == [bytes((192, 0, 2, last)) for last in (1, 2, 1)]
