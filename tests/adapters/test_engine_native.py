"""The native engine's table by itself. Its threads are in tests/contracts/test_packet_engine.py,
its C in tests/native."""

import asyncio
import errno
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_native import (
    THREADS_MAX,
    AnswerTable,
    NativeEngine,
    TableScope,
    by_tally,
)
from kudurru.adapters.sockets import Listener, bind_all, split_address
from kudurru.domain.errors import Invalid
from kudurru.domain.notation import parse_network
from kudurru.domain.ports import Keep, Reply
from tests.packets import edns, needs_ipv6, query

pytestmark = pytest.mark.skipif(
    not engine_native.is_available(), reason="the native engine was not built"
)

labels = st.lists(st.binary(min_size=1, max_size=63), max_size=3).map(
    lambda parts: b"".join(bytes((len(part),)) + part for part in parts) + b"\0"
)
questions = st.builds(
    lambda header, name, tail: header + name + tail,
    st.binary(min_size=12, max_size=12),
    labels,
    st.binary(max_size=40),
)
packets = questions | st.binary(min_size=12, max_size=80)


ANYBODY = bytes([192, 0, 2, 1])


def table(entries_max: int = 100, bytes_max: int = 1 << 20) -> TableScope:
    return AnswerTable(entries_max, bytes_max).new_scope()


def answer_to(packet: bytes, tail: bytes = b"tail") -> bytes:
    return packet[:2] + b"\x84\x00" + packet[4:] + tail


def find(scope: TableScope, packet: bytes) -> bytes | None:
    found = scope.find_for(packet, ANYBODY, is_named=False)
    return None if found is None else found[0]


def put(scope: TableScope, packet: bytes, tail: bytes = b"tail") -> None:
    scope.store(scope.era, packet, answer_to(packet, tail))


def name_end(packet: bytes) -> int:
    """Offset behind a whole, uncompressed name of at most 255 octets; 0: there is none."""
    at = 12
    while at < len(packet) and packet[at] and packet[at] < 64:
        at += packet[at] + 1
    return at + 1 if at < len(packet) and not packet[at] and at - 12 < 255 else 0


def lowered(packet: bytes) -> bytes:
    end = name_end(packet)
    return packet[2:12] + packet[12:end].lower() + packet[end:]


@given(packets, packets, st.binary(max_size=30))
def test_what_is_found_is_what_was_stored_with_the_askers_id_and_letters(
    stored: bytes, asked: bytes, tail: bytes
) -> None:
    scope = table()
    put(scope, stored, tail)
    found = find(scope, asked)
    if name_end(stored) and lowered(asked) == lowered(stored):
        assert found == asked[:2] + b"\x84\x00" + asked[4:] + tail
    else:
        assert found is None


@given(questions, st.data())
def test_any_letter_case_of_the_name_finds_the_answer(packet: bytes, data: st.DataObject) -> None:
    end = name_end(packet)
    swaps = data.draw(st.lists(st.booleans(), min_size=end, max_size=end))
    name = bytes(
        ord(chr(octet).swapcase()) if swap and octet < 128 else octet
        for octet, swap in zip(packet[12:end], swaps[12:], strict=False)
    )
    asked = packet[:12] + name + packet[end:]
    scope = table()
    put(scope, packet)
    assert find(scope, asked) == answer_to(asked)


def test_what_cannot_be_a_repeat_is_not_kept() -> None:
    scope = table()
    packet = query("www.example")
    era = scope.era
    long = query("www.example", rest=bytes(600))
    compressed = packet[:12] + b"\xc0\x0c" + packet[-4:]
    cases = [
        (packet, packet[:12]),  # the question is not echoed
        (packet, answer_to(query("WWW.example"))),
        (packet, answer_to(packet, bytes(65_535))),
        (long, answer_to(long)),
        (compressed, answer_to(compressed)),
        (packet[:20], answer_to(packet[:20])),
    ]
    for asked, wire in cases:
        scope.store(era, asked, wire)
        assert find(scope, asked) is None
    assert len(scope.table) == 0


def test_scopes_share_room_and_no_answers_and_are_invalidated_together() -> None:
    shared = AnswerTable(100)
    one, other = shared.new_scope(), shared.new_scope()
    packet = query("www.example")
    put(one, packet, b"one")
    assert find(other, packet) is None
    put(other, packet, b"other")
    assert find(one, packet) == answer_to(packet, b"one")
    assert find(other, packet) == answer_to(packet, b"other")
    assert len(shared) == 2
    one.invalidate()
    assert (find(one, packet), find(other, packet)) == (None, None)


def test_a_newer_answer_replaces_the_older_one() -> None:
    scope = table()
    packet = query("www.example", rest=edns())
    for tail in (b"one", b"another", b"", bytes(2000)):
        put(scope, packet, tail)
        assert find(scope, packet) == answer_to(packet, tail)
    assert len(scope.table) == 1


def test_a_flood_of_names_does_not_grow_it_nor_push_out_what_is_asked_for() -> None:
    scope = table(entries_max=1000)
    busy = query("busy.example")
    put(scope, busy)
    for number in range(20_000):
        put(scope, query(f"flood{number}.example"))
        if number % 100 == 0:
            assert find(scope, busy) == answer_to(busy)
        assert len(scope.table) <= 1000
    assert find(scope, query("flood0.example")) is None


def test_when_everything_is_in_use_something_goes() -> None:
    scope = table(entries_max=200)
    for number in range(400):
        put(scope, query(f"host{number}.example"))
        for other in range(number):
            find(scope, query(f"host{other}.example"))
    assert len(scope.table) == 200
    assert find(scope, query("host399.example")) is not None


def test_large_answers_are_bounded_by_their_octets() -> None:
    scope = table(entries_max=100_000, bytes_max=100_000)
    for number in range(1000):
        put(scope, query(f"host{number}.example"), bytes(4000))
        entries, octets, _ = scope.table.core.statistics()
        assert entries <= 25
        assert octets <= 100_000
    tiny = table(bytes_max=1000)
    put(tiny, query("alone.example"), bytes(2000))
    assert len(tiny.table) == 0


def test_an_answer_from_before_an_invalidation_never_comes_back() -> None:
    scope = table()
    packet = query("www.example")
    era = scope.era
    put(scope, packet, b"old")
    scope.invalidate()
    assert find(scope, packet) is None
    scope.store(era, packet, answer_to(packet, b"old"))
    assert find(scope, packet) is None
    put(scope, packet, b"new")
    scope.store(era, packet, answer_to(packet, b"old"))
    assert find(scope, packet) == answer_to(packet, b"new")


def test_answers_of_before_make_room_first() -> None:
    scope = table(entries_max=10)
    for number in range(10):
        put(scope, query(f"old{number}.example"))
        find(scope, query(f"old{number}.example"))
    scope.invalidate()
    for number in range(10):
        put(scope, query(f"new{number}.example"))
    assert all(find(scope, query(f"new{number}.example")) for number in range(10))


def test_invalidating_from_another_thread_leaves_no_older_answer() -> None:
    scope = table(entries_max=64)
    newest = [0]
    is_over = threading.Event()

    def change() -> None:
        while not is_over.is_set():
            newest[0] += 1
            scope.invalidate()

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for number in range(20_000):
            packet = query(f"host{number % 50}.example")
            before = newest[0] - 1  # of this change the invalidation is certainly over
            found = find(scope, packet)
            if found is not None:
                assert int.from_bytes(found[-8:], "big") >= before
            era = scope.era
            scope.store(era, packet, answer_to(packet, newest[0].to_bytes(8, "big")))
    finally:
        is_over.set()
        changer.join()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda core: core.Table(0, 1, bytes(16)), "at least one answer"),
        (lambda core: core.Table(1, 1, b"short"), "16 octets"),
        (lambda core: core.Buckets(b"short"), "16 octets"),
        (lambda core: core.Zones(core.Table(1, 1, bytes(16)), 9, b"short"), "16 octets"),
        (lambda core: core.Buckets(bytes(16)).take(b"12345", 1, 0), "4 or 16 octets"),
        (lambda core: core.Buckets(bytes(16)).slips(b""), "4 or 16 octets"),
        (
            lambda core: core.Workers(
                core.Table(1, 999, bytes(16)), None, None, [], 0, False, 8192, 8193, 8192
            ),
            "power of two",
        ),
    ],
)
def test_values_that_the_core_cannot_have_are_refused(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong(engine_native._engine)  # type: ignore[operator]  # a lambda of the table


@pytest.mark.parametrize(
    ("is_ipv6", "has_packet_info", "sizes"),
    [
        (False, False, {16}),
        pytest.param(True, False, {28}, marks=needs_ipv6),
        (False, True, set(range(16, 57))),
        pytest.param(True, True, set(range(28, 69)), marks=needs_ipv6),
    ],
)
def test_an_origin_has_the_size_of_an_address_and_its_packet_info(
    is_ipv6: bool, has_packet_info: bool, sizes: set[int]
) -> None:
    with socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        workers = engine_native._engine.Workers(
            AnswerTable().core, None, None, [(sock.fileno(), is_ipv6, has_packet_info)],
            0, False, 8192, 8192, 8192,
        )  # fmt: skip
        for size in range(120):
            if size in sizes:
                workers.send(0, ((bytes(size), b"answer"),))  # to nobody, which the system refuses
            else:
                with pytest.raises(ValueError, match="no origin"):
                    workers.send(0, ((bytes(size), b"answer"),))


def test_workers_take_zones_of_their_own_table_only() -> None:
    core = engine_native._engine
    one, other = (core.Table(1, 999, bytes(16)) for _ in range(2))
    zones = core.Zones(one, 999, bytes(16))
    core.Workers(one, None, zones, [], 0, False, 8192, 8192, 8192)
    for wrong in (zones, core.Buckets(bytes(16))):
        with pytest.raises(TypeError, match="Zones of it"):
            core.Workers(other, None, wrong, [], 0, False, 8192, 8192, 8192)
    with pytest.raises(TypeError, match="a Table"):
        core.Zones(zones, 999, bytes(16))


def test_limits_that_make_no_sense_are_refused_and_the_old_ones_stay() -> None:
    buckets = engine_native.new_buckets()
    rules = {"is_enabled": True, "slip": 50, "buckets_max": 64}
    buckets.configure(**rules, levels=[(4, 32, 5)], exempt=[])
    for levels, exempt in (
        ([(4, 33, 5)], []),
        ([(5, 32, 5)], []),
        ([(4, 32, 0)], []),
        ([(4, 32, 9)], [(b"\x7f\0\0\0", 33)]),
        ([(4, 32, 9)], [(b"\x7f\0\0\0", 8), (b"odd", 8)]),
    ):
        with pytest.raises(ValueError, match=r"address|network"):
            buckets.configure(**rules, levels=levels, exempt=exempt)
    assert buckets.take(b"\xc0\0\2\1", 9, 0) == 5


class Keeping:
    """Answers with one A record of TTL 100, to be kept as it is told."""

    def __init__(self) -> None:
        self.asked = 0
        self.how = Keep()

    def handle(self, packet: bytes, client: str, proto: str) -> Reply:
        self.asked += 1
        wire = packet[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + packet[12:]
        wire += b"\xc0\x0c\0\1\0\1" + (100).to_bytes(4, "big") + b"\0\4\xc0\0\2\1"
        return Reply(wire, memo=False, keep=self.how)


TTL_AT = len(query("www.example")) + 6


def ttl_of(answer: bytes) -> int:
    return int.from_bytes(answer[TTL_AT : TTL_AT + 4], "big")


class Served:
    """The engine on loopback, and what clients of it get."""

    def __init__(self, handler: Keeping) -> None:
        (bound,) = bind_all([Listener("udp", "127.0.0.1:0")])
        self.table = AnswerTable()
        self.engine = NativeEngine(handler, bound.sockets, table=self.table)
        self._target = split_address(bound.address)

    async def ask(self, client: str = "127.0.0.1") -> bytes:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.bind((client, 0))
            await loop.sock_connect(sock, self._target)
            await loop.sock_sendall(sock, query("www.example"))
            return await loop.sock_recv(sock, 4096)


def serve(scenario: Callable[[Served, Keeping], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            handler = Keeping()
            served = Served(handler)
            await served.engine.start()
            try:
                await scenario(served, handler)
            finally:
                await served.engine.stop()

    asyncio.run(main())


def socket_bound() -> socket.socket:
    return bind_all([Listener("udp", "127.0.0.1:0")])[0].sockets[0]


def test_more_threads_than_a_table_has_room_for_are_refused_in_words_before_any_begins() -> None:
    table = AnswerTable()
    assert table.make_room(THREADS_MAX - 1)
    with socket_bound() as one, socket_bound() as other:
        with pytest.raises(Invalid, match=r"set listeners\.sockets lower"):
            NativeEngine(Keeping(), [one, other], table=table)
        NativeEngine(Keeping(), [one], table=table)


@pytest.mark.skipif(sys.platform != "linux", reason="groups with a program are Linux's")
def test_sockets_for_regulars_take_no_room_that_another_listener_needs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        table = AnswerTable()
        assert table.make_room(THREADS_MAX - 2)
        with socket_bound() as one, socket_bound() as other:
            engines = [NativeEngine(Keeping(), [sock], table=table) for sock in (one, other)]
            for engine in engines:
                await engine.start()
            assert "no threads of their own: 4094 is the most" in caplog.text
            for engine in engines:
                await engine.stop()
        assert table.make_room(2), "what ended gives its room back"

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="sockets for regulars are Linux's")
def test_where_a_table_has_no_room_for_their_threads_regulars_come_in_with_everybody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = engine_native._engine
    make = core.Workers

    def make_one(*, sockets: Sequence[object], **others: Any) -> object:
        if len(sockets) > 1:
            raise OSError(errno.ENOMEM, "no room for more")
        return make(sockets=sockets, **others)

    monkeypatch.setattr(core, "Workers", make_one)

    async def scenario(served: Served, handler: Keeping) -> None:
        assert "no threads of their own: [Errno 12] no room for more" in caplog.text
        for _ in range(20):
            assert await served.ask()

    serve(scenario)


HOUR_US = 3_600_000_000


def test_ttls_count_down_in_what_is_repeated() -> None:
    async def scenario(served: Served, handler: Keeping) -> None:
        now_us = SystemClock().monotonic_us()
        stored_us = now_us - 20_500_000
        handler.how = Keep(
            until_us=now_us + HOUR_US, stored_us=stored_us, aged_s=5, ttls_at=(TTL_AT,)
        )
        assert ttl_of(await served.ask()) == 100
        for _ in range(20):
            before_us = SystemClock().monotonic_us()
            ttl = ttl_of(await served.ask())
            after_us = SystemClock().monotonic_us()
            ages = range((before_us - stored_us) // 10**6, (after_us - stored_us) // 10**6 + 1)
            assert ttl in [100 - (age - 5) for age in ages]
        assert handler.asked == 1

    serve(scenario)


def test_a_ttl_does_not_go_below_zero() -> None:
    async def scenario(served: Served, handler: Keeping) -> None:
        now_us = SystemClock().monotonic_us()
        handler.how = Keep(
            until_us=now_us + HOUR_US, stored_us=now_us - 1_000_000_000, ttls_at=(TTL_AT,)
        )
        await served.ask()
        assert ttl_of(await served.ask()) == 0

    serve(scenario)


def test_an_answer_that_has_ended_is_asked_for_again() -> None:
    async def scenario(served: Served, handler: Keeping) -> None:
        handler.how = Keep(until_us=SystemClock().monotonic_us())
        for _ in range(3):
            await served.ask()
        assert handler.asked == 3

    serve(scenario)


def test_a_restricted_answer_is_repeated_to_those_who_are_admitted_now() -> None:
    async def scenario(served: Served, handler: Keeping) -> None:
        async def asks(*clients: str) -> int:
            """How many of them the handler had to answer."""
            before = handler.asked
            for client in clients:
                await served.ask(client)
            return handler.asked - before

        handler.how = Keep(is_restricted=True)
        one, other, third = "127.0.0.2", "127.0.0.3", "127.0.1.1"
        assert await asks(one, one, other) == 3  # nobody is admitted at first
        served.table.admit([parse_network("127.0.0.2/31"), parse_network("::/0")])
        assert await asks(one, other, third, one, third) == 2
        served.table.admit("private")
        assert await asks(one, other, third) == 0
        served.table.admit([parse_network("127.0.1.0/25")])
        assert await asks(one, other, third) == 2
        served.table.admit("all")
        assert await asks(one, other, third) == 0
        served.engine.invalidate()
        assert await asks(one, other, third) == 1

    serve(scenario)


def test_repeats_are_counted_by_tally_too() -> None:
    async def scenario(served: Served, handler: Keeping) -> None:
        handler.how = Keep(tally=("blocked", "default/kids", "ads"))
        for _ in range(5):
            await served.ask()
        served.engine.invalidate()
        handler.how = Keep()
        for _ in range(3):
            await served.ask()
        seen = served.engine.statistics()
        assert seen.memo_hits == {(1, 0): 6}
        assert seen.memo_tallies == {("blocked", "default/kids", "ads"): 4}

    serve(scenario)


def test_what_cannot_be_counted_any_more_is_not_kept() -> None:
    scope = table(entries_max=10_000)
    places = engine_native._engine.PLACES
    for number in range(places + 10):
        packet = query(f"host{number}.example")
        scope.keep(scope.era, packet, answer_to(packet), Keep(tally=("blocked", str(number), "")))
    assert len(scope.table) == places
    packet = query("host0.example")
    scope.keep(scope.era, packet, answer_to(packet), Keep(tally=("blocked", "0", "")))
    assert find(scope, packet) is not None


def test_places_of_answers_that_are_gone_count_others_and_no_count_is_lost() -> None:
    """More policies than there are places, some at a time, asked of threads and in Python."""

    async def scenario(served: Served, handler: Keeping) -> None:
        scope = served.table.new_scope()
        places = engine_native._engine.PLACES
        expected: Counter[tuple[str, ...]] = Counter()
        for round_ in range(5):
            for number in range(places * 2 // 3):
                tally = ("blocked", f"{round_}-{number}", "")
                packet = query(f"host{number}.example")
                scope.keep(scope.era, packet, answer_to(packet), Keep(tally=tally))
                if number % 100 == 0:
                    assert find(scope, packet) is not None
                    expected[tally] += 1
            handler.how = Keep(tally=("blocked", f"{round_}-0", ""))
            for asked in range(4):
                await served.ask()
                expected[handler.how.tally] += asked > 0
            seen = Counter(by_tally(scope.hits([])))
            seen.update(served.engine.statistics().memo_tallies)
            assert seen == expected
            served.engine.invalidate()

    serve(scenario)


def test_ttls_outside_of_the_message_are_refused() -> None:
    scope = table()
    packet = query("www.example")
    for at in (3, len(answer_to(packet)) - 3, 1 << 20):
        with pytest.raises(ValueError, match="not in the message"):
            scope.keep(scope.era, packet, answer_to(packet), Keep(until_us=1, ttls_at=(at,)))
    assert len(scope.table) == 0
