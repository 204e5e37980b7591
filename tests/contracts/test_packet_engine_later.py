"""The contract of PacketEngine: answers that come later, and how it stops."""

import asyncio
import socket
import struct

import pytest

from kudurru.adapters.dns.streams import OUTSTANDING_MAX
from tests.dns_clients import (
    framed,
    open_http2,
    open_tls,
    post,
)
from tests.packets import ident, query
from tests.rigs import (
    KINDS,
    Handler,
    Rig,
    count_of,
    ok,
    serve,
    until,
)


def test_an_answer_may_come_later(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        question = query("late.example", ident=7)
        asking = asyncio.create_task(rig.exchange(question))
        await until(lambda: bool(handler.laters))
        assert rig.engine.statistics().waiting == 1
        assert len(await rig.exchange(query("www.example"))) == 1  # nobody waits for it
        handler.settle(0)
        (answer,) = await asking
        assert (ident(answer), count_of(answer, question)) == (7, 1)
        assert len(await rig.exchange(question)) == 1  # remembered, as it may be
        assert handler.asked == 2
        assert (rig.engine.statistics().waiting, rig.engine.statistics().answered) == (0, 3)

    serve(kind, scenario)


PARALLEL = [kind for kind in KINDS if not kind.startswith("http1")]


@pytest.mark.parametrize("kind", PARALLEL)
def test_answers_that_come_later_overtake_each_other(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        packets = [query(f"late.{i}.example", ident=i) for i in range(4)]
        asking = asyncio.create_task(rig.exchange(*packets, query("now.example", ident=9)))
        await until(lambda: len(handler.laters) == 4 and rig.engine.statistics().answered == 1)
        handler.settle(2, 0, 3, 1)
        answers = await asking
        assert sorted(map(ident, answers)) == [0, 1, 2, 3, 9]
        if rig.proto in ("tcp", "tls"):
            assert [ident(answer) for answer in answers] == [9, 2, 0, 3, 1]

    serve(kind, scenario)


def test_a_late_drop_sends_nothing(other_kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        asking = asyncio.create_task(rig.exchange(query("late.example")))
        await until(lambda: bool(handler.laters))
        handler.laters[0][0].settle(None)
        with pytest.raises((EOFError, ConnectionResetError)):
            await asking
        assert rig.engine.statistics().dropped_by_handler == 1

    serve(other_kind, scenario)


@pytest.mark.parametrize("kind", ["tcp", "tls", "doq", "http3"])
def test_what_a_client_that_left_waited_for_is_cancelled(kind: str) -> None:
    """One that ends its side of a connection only may still read: this one is gone."""

    async def scenario(rig: Rig, handler: Handler) -> None:
        if rig.client in ("tcp", "tls"):
            opening = (
                open_tls(rig.target)
                if rig.client == "tls"
                else asyncio.open_connection(*rig.target)
            )
            _, writer = await opening
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.write(framed(query("late.example")))
            await until(lambda: bool(handler.laters))
            writer.transport.abort()
        else:
            asking = asyncio.create_task(rig.exchange(query("late.example")))
            await until(lambda: bool(handler.laters))
            asking.cancel()
        await until(lambda: handler.laters[0][0].is_over)
        assert rig.engine.statistics().waiting == 0
        handler.settle(0)
        assert len(await rig.exchange(query("www.example"))) == 1

    serve(kind, scenario)


def test_a_request_over_http2_that_is_given_up_is_cancelled() -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        async with open_http2(rig.target) as client:
            stream = client.send(*post(query("late.example")))
            client.writer.write(client.http.data_to_send())
            await until(lambda: bool(handler.laters))
            client.http.reset_stream(stream)
            client.writer.write(client.http.data_to_send())
            await until(lambda: handler.laters[0][0].is_over)
            assert ok(await client.request(*post(query("www.example"))))

    serve("http2", scenario)


def test_answers_to_come_are_sent_before_it_stops(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        asking = asyncio.create_task(rig.exchange(query("late.example", ident=5)))
        await until(lambda: bool(handler.laters))
        stopping = asyncio.create_task(rig.engine.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        handler.settle(0)
        assert [ident(answer) for answer in await asking] == [5]
        await stopping

    serve(kind, scenario)


def test_it_stops_without_answers_that_do_not_come(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        asking = asyncio.create_task(rig.exchange(query("late.example")))
        await until(lambda: bool(handler.laters))
        await rig.engine.stop()
        assert handler.laters[0][0].is_over
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    serve(kind, scenario)


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_a_connection_waits_for_so_many_answers_and_then_is_not_read(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        packets = [query(f"late.{i}.example", ident=i) for i in range(OUTSTANDING_MAX + 20)]
        asking = asyncio.create_task(rig.exchange(*packets))
        await until(lambda: len(handler.laters) == OUTSTANDING_MAX)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(handler.laters) == OUTSTANDING_MAX
        while not asking.done():
            handler.settle(*range(len(handler.laters)))
            await asyncio.sleep(0)
        assert sorted(map(ident, await asking)) == list(range(len(packets)))

    serve(kind, scenario)
