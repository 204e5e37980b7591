"""The contract of PacketEngine over UDP: drops, faults, addresses, what finds no room."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from kudurru.adapters.dns import engine_native, engine_python, mmsg
from kudurru.adapters.sockets import Listener, bind_all
from kudurru.domain.later import Later
from kudurru.domain.ports import Reply
from tests.packets import ident, needs_ipv6, query
from tests.rigs import (
    UDP_KINDS,
    Handler,
    Rig,
    serve,
    until,
)


def test_a_drop_sends_nothing(udp_kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        packets = [query("drop.example" if i % 3 else "www.example", ident=i) for i in range(30)]
        got = await rig.exchange(*packets, answers=10)
        assert sorted(map(ident, got)) == list(range(0, 30, 3))
        seen = rig.engine.statistics()
        assert (seen.received, seen.answered, seen.dropped_by_handler) == (30, 10, 20)

    serve(udp_kind, scenario)


def test_a_fault_of_the_handler_costs_one_query_and_is_shown(udp_kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        got = await rig.exchange(
            query("boom.example"), query("huge.example"), query("www.example"), answers=1
        )
        assert got[0].startswith(query("www.example")[:2])
        assert rig.engine.statistics().unhandled_exceptions == 2
        assert [str(fault["exception"]) for fault in rig.faults] == [
            "a fault of the handler",
            f"a reply of {70_000 + len(query('huge.example'))} octets; at most 4096",
        ]

    serve(udp_kind, scenario)


def test_a_reply_that_is_none_costs_one_query_and_is_shown(udp_kind: str) -> None:
    class Odd(Handler):
        def handle(self, packet: bytes, client: str, proto: str) -> Any:
            if packet[13:16] == b"odd":
                return "no reply"
            reply = super().handle(packet, client, proto)
            if packet[13:17] == b"late":
                reply = Later()
                self.laters.append((reply, "no reply"))  # type: ignore[arg-type]  # what the test is about
            return reply

    async def main() -> None:
        handler = Odd()
        async with Rig(udp_kind, handler, "127.0.0.1:0").running() as rig:
            names = [("odd", "late", "www")[i % 3] + f".{i}.example" for i in range(150)]
            packets = [query(name, ident=i) for i, name in enumerate(names)]
            got = await rig.exchange(*packets, answers=50)
            assert sorted(map(ident, got)) == list(range(2, 150, 3))
            await until(lambda: len(handler.laters) == 100)
            for later, reply in handler.laters:
                later.settle(reply)
            assert rig.engine.statistics().unhandled_exceptions == len(rig.faults) == 100
            assert rig.engine.statistics().waiting == 0
            assert len(await rig.exchange(query("www.example"))) == 1

    asyncio.run(main())


def test_datagrams_that_are_no_query_are_dropped_and_counted(udp_kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        oversized = query("www.example") + bytes(5000)
        largest = (query("largest.example") + bytes(mmsg.SLOT))[: mmsg.SLOT - 4]
        got = await rig.exchange(b"", b"x" * 11, oversized, largest, answers=1)
        assert len(got[0]) == mmsg.SLOT
        assert handler.asked == 1
        assert rig.engine.statistics().dropped_malformed == 3

    serve(udp_kind, scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
@pytest.mark.parametrize("kind", [*UDP_KINDS, "doq"])
def test_datagrams_that_the_system_dropped_are_counted(kind: str) -> None:
    """Before the engine starts nobody reads."""
    rig = Rig(kind, Handler(), "127.0.0.1:0")
    (sock,) = rig.sockets
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        for _ in range(200):
            client.sendto(query("www.example"), rig.target)
    waiting = 0
    with contextlib.suppress(BlockingIOError):
        while sock.recv(4096):
            waiting += 1
    assert waiting < 200

    async def main() -> None:
        async with rig.running():
            assert rig.engine.statistics().dropped_unread == 200 - waiting
        assert rig.engine.statistics().dropped_unread == 200 - waiting
        assert rig.engine.statistics().received == 0

    asyncio.run(main())


class Noting(Handler):
    """Keeps the names in the order in which it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[bytes] = []

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | Later[Reply | None] | None:
        self.names.append(packet[13 : 13 + packet[12]])
        return super().handle(packet, client, proto)


def burst(rig: Rig, packets: Sequence[bytes]) -> socket.socket:
    """Send them while the loop stands still; the native engine's threads have taken them then."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(rig.target)
    sock.setblocking(False)
    for packet in packets:
        sock.send(packet)
    while rig.kind == "native" and rig.engine.statistics().received < len(packets):
        pass
    return sock


FLOOD = 200  # as many as any system's buffer holds


def test_the_health_name_waits_for_no_other_query(udp_kind: str) -> None:
    async def main() -> None:
        handler = Noting()
        async with Rig(udp_kind, handler, "127.0.0.1:0").running() as rig:
            packets = [query(f"{i}.example", ident=i) for i in range(FLOOD)]
            packets += [query("Health.kudurru.internal", ident=FLOOD)]
            with burst(rig, packets) as sock:
                loop = asyncio.get_running_loop()
                got = [ident(await loop.sock_recv(sock, 4096)) for _ in packets]
            assert sorted(got) == list(range(FLOOD + 1))
            assert handler.names.index(b"Health") <= 64

    asyncio.run(main())


def test_a_flood_of_the_health_name_takes_turns_with_other_queries(udp_kind: str) -> None:
    async def main() -> None:
        handler = Noting()
        async with Rig(udp_kind, handler, "127.0.0.1:0").running() as rig:
            packets = [query("health.kudurru.internal", ident=i) for i in range(FLOOD)]
            packets[70] = query("www.example", ident=70)
            with burst(rig, packets):
                await until(lambda: b"www" in handler.names)
            assert handler.names.index(b"www") <= 128  # of 199 others

    asyncio.run(main())


def test_what_finds_no_room_to_wait_is_dropped_and_the_health_name_is_answered(
    udp_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_python, "MISSES_MAX", 50)
    monkeypatch.setattr(engine_native, "MISSES_BYTES", 1 << 13)

    async def main() -> None:
        handler = Noting()
        async with Rig(udp_kind, handler, "127.0.0.1:0").running() as rig:
            packets = [query(f"{i}.example", ident=i) for i in range(FLOOD)]
            packets += [query("health.kudurru.internal", ident=FLOOD)]
            with burst(rig, packets) as sock:

                def is_over() -> bool:
                    seen = rig.engine.statistics()
                    return seen.answered + seen.dropped_busy == FLOOD + 1

                await until(is_over)
                seen = rig.engine.statistics()
                assert seen.dropped_busy > 50
                got = [ident(sock.recv(4096)) for _ in range(seen.answered)]
            assert FLOOD in got
            assert len(await rig.exchange(query("www.example"))) == 1

    asyncio.run(main())


def test_an_answer_leaves_from_the_address_that_was_asked(udp_kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        for host in ("127.0.0.2", "127.0.0.1", "127.0.0.3"):
            rig.target = (host, rig.target[1])  # the client's socket is connected to it
            assert len(await rig.exchange(query("www.example"))) == 1

    serve(udp_kind, scenario, "0.0.0.0:0")


@needs_ipv6
def test_all_ipv6_addresses_are_served_and_no_ipv4_one(udp_kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        bind_all([Listener("udp", f"127.0.0.1:{rig.target[1]}")])[0].sockets[0].close()
        rig.target = ("::1", rig.target[1])
        assert len(await rig.exchange(query("www.example"))) == 1

    serve(udp_kind, scenario, "[::]:0")


def test_answers_the_system_refuses_are_counted(udp_kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        with contextlib.suppress(OSError):  # ENOTCONN, but from now on sends fail with EPIPE
            rig.sockets[0].shutdown(socket.SHUT_WR)
        await rig.exchange(query("a.example"), query("b.example"), answers=0)
        await until(lambda: rig.engine.statistics().send_errors == 2)
        assert rig.engine.statistics().answered == 0

    serve(udp_kind, scenario)


@pytest.mark.parametrize("udp_kind", [kind for kind in UDP_KINDS if kind != "plain"])
def test_a_repeat_that_is_not_sent_is_no_hit_and_counted_apart(udp_kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        packets = [query("www.example", ident=i) for i in range(20)]
        assert len(await rig.exchange(packets[0])) == 1
        assert len(await rig.exchange(*packets)) == 20
        with contextlib.suppress(OSError):  # as above
            rig.sockets[0].shutdown(socket.SHUT_WR)
        await rig.exchange(*packets, answers=0)
        await until(lambda: rig.engine.statistics().send_errors == 20)
        seen = rig.engine.statistics()
        assert (seen.answered, seen.memo_hits, seen.memo_unsent) == (21, {(1, 3): 20}, 20)

    serve(udp_kind, scenario)
