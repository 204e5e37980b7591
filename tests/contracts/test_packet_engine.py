"""The contract of PacketEngine, on every engine: real sockets on loopback, port 0."""

import asyncio
import contextlib
import random
import socket
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import h11
import pytest

from kudurru.adapters.certificates import Certificates
from kudurru.adapters.clock import SystemClock
from kudurru.adapters.dns import engine_native, engine_python, mmsg
from kudurru.adapters.dns.engine_native import AnswerTable, NativeEngine
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.dns.https import ALPN, HttpsServer
from kudurru.adapters.dns.memo import Memo
from kudurru.adapters.dns.quic import QuicServer
from kudurru.adapters.dns.slots import slots_of
from kudurru.adapters.dns.streams import OUTSTANDING_MAX, StreamLimits
from kudurru.adapters.dns.tcp import TcpServer
from kudurru.adapters.networks import Networks
from kudurru.adapters.sockets import CARRIERS, Listener, bind_all, split_address
from kudurru.domain.dns import names
from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.messages import COOKIE
from kudurru.domain.filtering.clients import packed_address
from kudurru.domain.later import Later
from kudurru.domain.notation import parse_network
from kudurru.domain.ports import CACHE, FILTERS, Origins, PacketEngine, QueryLimiter, Reply
from kudurru.domain.query_log import Repeat, Sampler
from kudurru.domain.settings import RatelimitSettings
from kudurru.projections.pipeline.ratelimit import RateLimiter
from tests.absent import absent
from tests.certificates import write_pair
from tests.dns_clients import (
    Answered,
    framed,
    open_doq,
    open_http1,
    open_http2,
    open_http3,
    open_tls,
    post,
    read_message,
)
from tests.packets import edns, edns_with, ident, needs_ipv6, query

DEADLINE_S = 60
DRAIN_S = 0.3  # at stop, for answers that are to come


class Handler:
    """Answers with QR, the question, and how often it was asked. Names say what else it does."""

    def __init__(self) -> None:
        self.asked = 0
        self.laters: list[tuple[Later[Reply | None], Reply]] = []

    def settle(self, *order: int, reply: Reply | None = None) -> None:
        """Answer what waits, in this order; `reply` in the place of the right one."""
        for i in order:
            later, right = self.laters[i]
            later.settle(reply or right)

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | Later[Reply | None] | None:
        self.asked += 1
        first = packet[13 : 13 + packet[12]].lower()
        if first == b"drop":
            return None
        if first == b"boom":
            raise RuntimeError("a fault of the handler")
        if first == b"huge":
            return Reply(packet + bytes(70_000), memo=True)
        wire = packet[:2] + b"\x81\x83" + packet[4:] + self.asked.to_bytes(4, "big")
        if first == b"who":
            wire += f"{proto} {client}".encode()
        if first == b"late":
            later: Later[Reply | None] = Later()
            self.laters.append((later, Reply(wire, memo=True)))
            return later
        return Reply(wire, memo=first != b"private")


class Rig:
    """One engine that runs, and a client of it."""

    def __init__(self, kind: str, handler: Handler, address: str, count: int = 1) -> None:
        self.kind, self.handler = kind, handler
        self.client = kind.removesuffix(WITH_TABLE)  # what it speaks
        self.proto = PROTOCOLS[kind]
        self.carrier = CARRIERS[self.proto]
        (bound,) = bind_all([Listener(self.proto, address)], count)
        self.sockets = bound.sockets
        self.engine = self._engine(handler)
        self.target = split_address(bound.address)
        self.faults: list[dict[str, Any]] = []

    def _engine(self, handler: Handler) -> PacketEngine:
        limits = StreamLimits(drain_s=DRAIN_S)
        if self.kind == "native":
            return NativeEngine(handler, self.sockets, table=table_of(handler), drain_s=DRAIN_S)
        if self.proto == "udp":
            batched = self.kind == "batched"
            return PythonEngine(handler, self.sockets, batched=batched, drain_s=DRAIN_S)
        memo = table_of(handler).new_scope() if self.kind.endswith(WITH_TABLE) else Memo()
        if self.proto == "tcp":
            return TcpServer(handler, self.sockets, limits=limits, memo=memo)
        with tempfile.TemporaryDirectory() as folder:
            cert, key = write_pair(Path(folder))
            certificates = Certificates(str(cert), str(key), SystemClock())
            tls, https = certificates.context("dot"), certificates.context(*ALPN)
        if self.proto == "tls":
            return TcpServer(handler, self.sockets, tls=tls, limits=limits, memo=memo)
        if self.proto == "https":
            return HttpsServer(handler, self.sockets, tls=https, limits=limits, memo=memo)
        return QuicServer(
            handler,
            self.sockets,
            proto=self.proto,
            certificate=lambda: certificates.current,
            limits=limits,
            memo=memo,
        )

    def limit_by(self, limiter: QueryLimiter) -> None:
        if self.kind == "native":
            assert isinstance(limiter, RateLimiter)  # the threads count by its buckets
            self.engine = NativeEngine(self.handler, self.sockets, limiter=limiter)
        else:
            self.engine = PythonEngine(
                self.handler, self.sockets, batched=self.kind == "batched", limiter=limiter
            )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Rig"]:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: self.faults.append(fault))
        async with asyncio.timeout(DEADLINE_S):
            await self.engine.start()
            try:
                yield self
            finally:
                await self.engine.stop()

    async def exchange(self, *packets: bytes, answers: int | None = None) -> list[bytes]:
        """Send all, then read as many answers as queries, or `answers`."""
        count = len(packets) if answers is None else answers
        match self.client:
            case "tcp":
                return await self._over_stream(
                    await asyncio.open_connection(*self.target), packets, count
                )
            case "tls":
                return await self._over_stream(await open_tls(self.target), packets, count)
            case "http1":
                async with open_http1(self.target) as one:
                    return [ok(await one.request(*post(packet))) for packet in packets]
            case "http2":
                async with open_http2(self.target) as two:
                    return [ok(found) for found in await two.all(*map(post, packets))]
            case "http3":
                async with open_http3(self.target) as three:
                    asked = [three.request(*post(packet)) for packet in packets]
                    return [ok(found) for found in await asyncio.gather(*asked)]
            case "doq":
                async with open_doq(self.target) as doq:
                    return await asyncio.gather(*map(doq.ask, packets))
            case _:
                return await self._over_datagrams(packets, count)

    async def _over_stream(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        packets: tuple[bytes, ...],
        count: int,
    ) -> list[bytes]:
        reader, writer = streams
        writer.write(framed(*packets))
        try:
            return [await read_message(reader) for _ in range(count)]
        finally:
            writer.close()

    async def _over_datagrams(self, packets: tuple[bytes, ...], count: int) -> list[bytes]:
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in self.target[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, self.target)
            for one in packets:
                await loop.sock_sendall(sock, one)
            return [await loop.sock_recv(sock, 65_535) for _ in range(count)]


def table_of(handler: Handler) -> AnswerTable:
    table = AnswerTable()
    table.sample(getattr(handler, "ONE_IN", 1))
    return table


def ok(found: Answered) -> bytes:
    if found.is_reset:
        raise ConnectionResetError
    assert found.status == 200
    return found.body


STREAMS = {
    "tcp": "tcp",
    "tls": "tls",
    "http1": "https",
    "http2": "https",
    "http3": "h3",
    "doq": "quic",
}
WITH_TABLE = " with table"  # in C; else with a memo in Python
PROTOCOLS = {"plain": "udp", "batched": "udp", "native": "udp", **STREAMS}
if engine_native.is_available():
    PROTOCOLS |= {kind + WITH_TABLE: proto for kind, proto in STREAMS.items()}
BURSTS = {"udp": 200, "h3": 100, "quic": 100}  # queries at once
IS_HERE = {"batched": mmsg.is_available(), "native": engine_native.is_available()}
KINDS = [kind for kind in PROTOCOLS if IS_HERE.get(kind, True)]
UDP_KINDS = [kind for kind in KINDS if PROTOCOLS[kind] == "udp"]
OTHER_KINDS = [kind for kind in KINDS if PROTOCOLS[kind] != "udp"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=UDP_KINDS)
def udp_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=OTHER_KINDS)
def other_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def serve(
    kind: str,
    scenario: Callable[[Rig, Handler], Coroutine[Any, Any, None]],
    address: str = "127.0.0.1:0",
    count: int = 1,
) -> None:
    async def main() -> None:
        handler = Handler()
        async with Rig(kind, handler, address, count).running() as rig:
            await scenario(rig, handler)

    asyncio.run(main())


def count_of(answer: bytes, question: bytes) -> int:
    """Which asking of the handler an answer comes from."""
    return int.from_bytes(answer[len(question) : len(question) + 4], "big")


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


def test_nothing_old_is_answered_after_invalidate(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        question = query("www.example")
        for expected in (1, 1, 2, 2):
            if expected != handler.asked and handler.asked:
                rig.engine.invalidate()
            (answer,) = await rig.exchange(question)
            assert count_of(answer, question) == expected

    serve(kind, scenario)


def test_an_answer_computed_while_the_memo_was_invalidated_is_not_remembered(kind: str) -> None:
    class Changing(Handler):
        rig: Rig

        def handle(
            self, packet: bytes, client: str, proto: str
        ) -> Reply | Later[Reply | None] | None:
            reply = super().handle(packet, client, proto)
            if self.asked == 1:
                self.rig.engine.invalidate()
            return reply

    async def main() -> None:
        handler = Changing()
        async with Rig(kind, handler, "127.0.0.1:0").running() as rig:
            handler.rig = rig
            questions = [query("www.example", ident=i) for i in range(3)]
            answers = await rig.exchange(*questions)
            counts = {ident(answer): count_of(answer, questions[0]) for answer in answers}
            assert counts == {0: 1, 1: 2, 2: 2}

    asyncio.run(main())


ONE, TWO = (names.key(names.from_text(text)) for text in ("one.example", "two.example"))
ORIGINS: dict[str, Origins] = {
    "one": (ONE,),
    "two": (TWO,),
    "both": (ONE, TWO),
    "filtered": (FILTERS,),
    "filtered-one": (FILTERS, ONE),
    "cached": (FILTERS, CACHE),
    "many": [names.key(names.from_text(f"{number}.example")) for number in range(40)],
    "neither": (),
    "any": None,
}
"""What answers come of, by the first label of their names."""
ENDED: dict[str, tuple[Origins, set[str]]] = {
    "one": ((ONE,), {"one", "both", "filtered-one"}),
    "two": ((TWO,), {"two", "both"}),
    "both": ((ONE, TWO), {"one", "two", "both", "filtered-one"}),
    "filters": ((FILTERS,), {"filtered", "filtered-one", "cached"}),
    "filters and one": ({FILTERS, ONE}, {"filtered", "filtered-one", "cached", "one", "both"}),
    "cache": ((CACHE,), {"cached"}),
    "another": ((names.key(names.from_text("0.example")),), set()),
    "nothing": ((), set()),
    "all": (None, set(ORIGINS)),
}
"""What changes, and whose answers are over then, beside those that any change ends."""


class OfOrigins(Handler):
    """Says of its answers what they come of."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | Later[Reply | None] | None:
        reply = super().handle(packet, client, proto)
        assert isinstance(reply, Reply)
        first = packet[13 : 13 + packet[12]].lower().decode()
        self.meanwhile()
        return reply._replace(origins=ORIGINS[first])


def test_names_of_these_tests_share_no_slot() -> None:
    some = ONE, TWO, FILTERS, CACHE, *(ENDED["another"][0] or ())
    few = [slots_of((origin,)) for origin in some]
    assert len(set(few)) == len(few)


@pytest.mark.parametrize("change", ENDED)
def test_a_change_drops_the_answers_that_come_of_it_and_no_others(kind: str, change: str) -> None:
    changed, ended = ENDED[change]

    async def main() -> None:
        async with Rig(kind, OfOrigins(), "127.0.0.1:0").running() as rig:
            before = await counts(rig)
            assert await counts(rig) == before
            rig.engine.invalidate(changed)
            after = await counts(rig)
            assert {text for text in ORIGINS if after[text] != before[text]} == (
                ended | {"many", "any"}
            )
            assert await counts(rig) == after

    asyncio.run(main())


@pytest.mark.parametrize("change", ENDED)
def test_an_answer_computed_before_a_change_of_what_it_comes_of_is_not_remembered(
    kind: str, change: str
) -> None:
    changed, ended = ENDED[change]

    async def main() -> None:
        handler = OfOrigins()
        async with Rig(kind, handler, "127.0.0.1:0").running() as rig:
            handler.meanwhile = lambda: rig.engine.invalidate(changed)
            before = await counts(rig)
            handler.meanwhile = lambda: None
            after = await counts(rig)
            assert {text for text in ORIGINS if after[text] != before[text]} == (
                ended | {"many", "any"}
            )

    asyncio.run(main())


async def counts(rig: Rig) -> dict[str, int]:
    """Which asking of the handler answers come from, by the first label of their names."""
    found = {}
    for text in reversed(ORIGINS):  # those that any change ends are asked for first
        question = query(f"{text}.example")
        (answer,) = await rig.exchange(question)
        found[text] = count_of(answer, question)
    return found


def test_a_drop_sends_nothing(udp_kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        packets = [query("drop.example" if i % 3 else "www.example", ident=i) for i in range(30)]
        got = await rig.exchange(*packets, answers=10)
        assert sorted(map(ident, got)) == list(range(0, 30, 3))
        seen = rig.engine.statistics()
        assert (seen.received, seen.answered, seen.dropped_by_handler) == (30, 10, 20)

    serve(udp_kind, scenario)


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


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until it holds; the scenario's deadline bounds it."""
    while not condition():
        await asyncio.sleep(0)


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
