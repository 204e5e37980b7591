"""The contract of PacketEngine, on every engine: real sockets on loopback, port 0."""

import asyncio
import contextlib
import random
import sys
from collections.abc import Iterable

import h11
import pytest

from kudurru.adapters.dns import engine_native, mmsg
from kudurru.adapters.sockets import Listener, bind_all
from kudurru.domain.query_log import Repeat, Sampler
from tests.absent import absent
from tests.packets import edns, ident, needs_ipv6, query
from tests.rigs import (
    BURSTS,
    Handler,
    Rig,
    count_of,
    serve,
    until,
)


def test_linux_has_batched_calls() -> None:
    assert mmsg.is_available() == (sys.platform == "linux")


def test_the_native_engine_is_here_where_all_is_tested() -> None:
    """Or whatever is of it would be skipped unseen."""
    if not engine_native.is_available():
        absent("the native engine was not built: `just engine`")


def test_a_query_gets_the_handlers_answer(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        question = query("who.example", ident=0xBEEF)
        (answer,) = await rig.exchange(question)
        assert answer[:2] == b"\xbe\xef"
        assert answer[12 : len(question)] == question[12:]
        assert answer.endswith(f"{rig.proto} 127.0.0.1".encode())

    serve(kind, scenario)


@needs_ipv6
def test_ipv6_is_served(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        assert rig.engine.addresses == (f"[::1]:{rig.target[1]}",)
        (answer,) = await rig.exchange(query("who.example"))
        assert answer.endswith(f"{rig.proto} ::1".encode())

    serve(kind, scenario, "[::1]:0")


def test_a_thousand_queries_are_answered_each_with_its_id(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        size = BURSTS.get(rig.proto, 1000)
        for base in range(0, 1000, size):
            burst = range(base, base + size)
            sent = [query(f"host{i % 70}.example", ident=i) for i in burst]
            got = await rig.exchange(*sent)
            assert sorted(ident(answer) for answer in got) == list(burst)
            questions = {ident(one): one[12:] for one in sent}
            assert all(answer[12:].startswith(questions[ident(answer)]) for answer in got)
        seen = rig.engine.statistics()
        assert (seen.received, seen.answered) == (1000, 1000)
        assert handler.asked == 70
        assert seen.memo_hits == {(1, 3): 930}  # by type and RCODE

    serve(kind, scenario)


def test_a_repeat_is_answered_from_the_memo_in_the_letters_of_its_asker(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        for number, text in enumerate(["WWW.Example", "www.example", "wWw.eXAMPLE", "www.example"]):
            question = query(text, ident=number)
            (answer,) = await rig.exchange(question)
            assert answer[:2] == number.to_bytes(2, "big")
            assert answer[12 : len(question)] == question[12:]
            assert count_of(answer, question) == 1
        assert handler.asked == 1

    serve(kind, scenario)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (query("a.example", 65), query("a.example", 97)),  # octets "A" and "a"
        (query("a.example", 1, 65), query("a.example", 1, 97)),
        (query("a.example", flags=0x4100), query("a.example", flags=0x6100)),
        (query("a.example", rest=edns(0x241)), query("a.example", rest=edns(0x261))),
        (query("a.example"), query("a.example", rest=edns())),
        (query("a.example"), query("b.example")),
    ],
    ids=["type", "class", "flags", "edns", "no-edns", "name"],
)
def test_queries_that_differ_in_more_than_letters_share_no_answer(
    kind: str, one: bytes, other: bytes
) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        for packet in (one, other, one, other):
            (answer,) = await rig.exchange(packet)
            assert answer[12 : len(packet)] == packet[12:]
        assert handler.asked == 2

    serve(kind, scenario)


def test_a_zero_octet_in_a_label_does_not_end_the_name(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        for text in ("a\0Ab.example", "a\0ab.example", "a\0AB.example", "a\0Ab.example"):
            packet = query(text)
            (answer,) = await rig.exchange(packet)
            assert answer[12 : len(packet)] == packet[12:]
        await rig.exchange(query("a"))
        assert handler.asked >= 2
        assert set(rig.engine.statistics().memo_hits) == {(1, 3)}

    serve(kind, scenario)


def test_an_answer_that_is_not_for_everybody_is_not_remembered(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        for _ in range(3):
            await rig.exchange(query("private.example"))
        assert handler.asked == 3
        assert not any(rig.engine.statistics().memo_hits.values())

    serve(kind, scenario)


def test_a_drop_gives_no_answer_and_costs_nobody_else_theirs(other_kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        with pytest.raises((EOFError, ConnectionResetError)):
            await rig.exchange(query("drop.example"))
        assert len(await rig.exchange(query("www.example"))) == 1
        seen = rig.engine.statistics()
        assert (seen.received, seen.answered, seen.dropped_by_handler) == (2, 1, 1)
        assert not rig.faults

    serve(other_kind, scenario)


def test_a_fault_of_the_handler_is_no_answer_but_the_listener_lives(other_kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        for name in ("boom.example", "huge.example"):
            with pytest.raises((EOFError, ConnectionResetError)):
                await rig.exchange(query(name))
        assert len(await rig.exchange(query("www.example"))) == 1
        assert rig.engine.statistics().unhandled_exceptions == 2
        assert len(rig.faults) == 2

    serve(other_kind, scenario)


class Listening(Handler):
    """Wants to hear of repeats, and fails when it does."""

    hears_repeats = True

    def weigh(self) -> int:
        return 1

    def repeated(self, proto: str, repeats: Iterable[Repeat]) -> None:
        raise RuntimeError("a fault of the listener")

    def missed(self, count: int) -> None:
        raise RuntimeError("a fault of the listener")


def test_a_listener_of_repeats_that_fails_costs_nobody_an_answer(kind: str) -> None:
    async def main() -> None:
        async with Rig(kind, Listening(), "127.0.0.1:0").running() as rig:
            for _ in range(3):
                packets = [query("www.example", ident=i) for i in range(80)]
                assert sorted(map(ident, await rig.exchange(*packets))) == list(range(80))
            await until(lambda: bool(rig.faults))
            seen = rig.engine.statistics()
            assert (seen.answered, seen.unhandled_exceptions) == (240, 0)
            assert seen.faults == len(rig.faults)
            assert {str(fault["exception"]) for fault in rig.faults} == {"a fault of the listener"}

    asyncio.run(main())


class Hearing(Handler):
    """Hears of one repeat in ten."""

    ONE_IN = 10
    hears_repeats = True

    def __init__(self) -> None:
        super().__init__()
        self.weigh = Sampler(self.ONE_IN, random.Random(3).randrange).weigh
        self.heard: list[tuple[str, bytes, bytes, int]] = []
        self.untold = 0

    def repeated(self, proto: str, repeats: Iterable[Repeat]) -> None:
        self.heard += [(proto, client, query, weight) for client, query, _, weight in repeats]

    def missed(self, count: int) -> None:
        self.untold += count


def test_a_listener_hears_of_one_repeat_in_so_many_which_stands_for_the_others(kind: str) -> None:
    async def main() -> None:
        handler = Hearing()
        rig = Rig(kind, handler, "127.0.0.1:0")
        async with rig.running():
            await rig.exchange(query("www.example"))
            for _ in range(4):
                packets = [query("www.example", ident=i) for i in range(80)]
                assert len(await rig.exchange(*packets)) == 80
        repeats = sum(rig.engine.statistics().memo_hits.values())
        assert repeats == 320
        # Some answers are found from Python and some in C, and each picks its own.
        assert abs(len(handler.heard) * handler.ONE_IN - repeats) < 2 * handler.ONE_IN
        assert handler.untold == 0
        assert set(handler.heard) == {
            (rig.proto, b"\x7f\0\0\1", query("www.example")[2:], handler.ONE_IN)
        }

    asyncio.run(main())


def test_a_group_of_sockets_shares_one_address(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        assert len(rig.sockets) == 4
        assert rig.engine.addresses == (f"127.0.0.1:{rig.target[1]}",)
        for number in range(20):  # each from a port of its own, so the system spreads them
            (answer,) = await rig.exchange(query("www.example", ident=number))
            assert ident(answer) == number
        assert handler.asked == 1  # one memo for the group

    serve(kind, scenario, count=4)


def test_it_stops_while_queries_flow_and_frees_its_address(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        async def flood() -> None:
            with contextlib.suppress(OSError, EOFError, h11.ProtocolError):
                while True:
                    await rig.exchange(*[query("www.example")] * 20)

        floods = [asyncio.create_task(flood()) for _ in range(3)]
        await until(lambda: rig.engine.statistics().received > 200)
        await rig.engine.stop()
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        for sock in bind_all([Listener(rig.carrier, rig.engine.addresses[0])])[0].sockets:
            sock.close()
        await rig.engine.stop()

    serve(kind, scenario)
