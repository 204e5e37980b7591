"""Answers with a cookie from the native engine's table: each client gets its own, as from the
pipeline."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_native import AnswerTable, NativeEngine
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sockets import Listener, bind_all, split_address
from kudurru.domain.dns.cookies import DAY_S, Cookies
from kudurru.domain.dns.messages import COOKIE, NSID, pack_option
from kudurru.entrypoints.answering import pipeline_of
from kudurru.entrypoints.wiring import Node
from tests.nodes import a_change, commit_as_server
from tests.objects import endpoint, put, record_set, zone
from tests.packets import edns, edns_with, query

pytestmark = pytest.mark.skipif(
    not engine_native.is_available(), reason="the native engine was not built"
)

SECRET = bytes(range(32))
DEADLINE_S = 60
OWN = b"clientck"

clients = st.sampled_from(["192.0.2.1", "255.255.255.255", "2001:db8::1", "::ffff:192.0.2.1"])
moments = st.integers(0, 1 << 33)
ages = st.one_of(
    st.integers(-400, 4000),
    st.sampled_from([-301, -300, 0, 1800, 1801, 3600, 3601]),
    st.integers(0, 1 << 32),
)


@given(moments, ages, clients, clients, st.binary(min_size=8, max_size=8), st.data())
def test_a_cookie_is_judged_as_the_pipeline_judges_it(
    now_s: int, age_s: int, client: str, shown_by: str, own: bytes, data: st.DataObject
) -> None:
    made = Cookies(SECRET).judge(own, shown_by, max(0, now_s - age_s))
    assert made is not None
    option = data.draw(
        st.one_of(
            st.just(made.cookie),
            st.just(own),
            st.binary(min_size=8, max_size=32).map(lambda server: own + server),
            st.integers(0, 23).map(lambda at: made.cookie[:at] + b"?" + made.cookie[at + 1 :]),
        )
    )
    table, cookies = AnswerTable(10).core, Cookies(SECRET)
    day_no = now_s // DAY_S
    table.set_cookie_keys(day_no, *[cookies.key_of(day_no + days) for days in (-1, 0, 1)])
    right = cookies.judge(option, client, now_s)
    assert right is not None
    assert table.cookie(option, ip_address(client).packed, now_s) == right.cookie


@pytest.mark.parametrize("days", [-2, 2])
def test_without_the_key_of_a_day_no_cookie_is_made(days: int) -> None:
    table, cookies = AnswerTable(10).core, Cookies(SECRET)
    assert table.cookie(OWN, bytes(4), 0) is None
    table.set_cookie_keys(100, *[cookies.key_of(day) for day in (99, 100, 101)])
    assert table.cookie(OWN, bytes(4), (100 + days) * DAY_S) is None


class Served:
    """A zone behind the engine, and clients of it."""

    def __init__(self, cookies: Cookies | None) -> None:
        (bound,) = bind_all([Listener("udp", "127.0.0.1:0")])
        self._target = split_address(bound.address)
        clock = ManualClock()
        log = MemoryEventLog(entropy=SeededEntropy(1), clock=clock)
        node = Node(log, clock, SeededEntropy(2))
        www = record_set("www.example.org", endpoint("www.example.org", "A", "192.0.2.1"))
        commit_as_server(node, a_change(put(zone("example.org")), put(www)))
        node.clock = SystemClock()  # whose cookies the threads understand
        pipeline = pipeline_of(node, cookies=cookies)
        pipeline.keeps_for_a_while = True
        self.engine = NativeEngine(pipeline, bound.sockets, table=AnswerTable(cookies=cookies))

    async def ask(self, packet: bytes, client: str = "127.0.0.1") -> bytes:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.bind((client, 0))
            await loop.sock_connect(sock, self._target)
            await loop.sock_sendall(sock, packet)
            return await loop.sock_recv(sock, 4096)

    @property
    def hits(self) -> int:
        return sum(self.engine.statistics().memo_hits.values())


@contextlib.asynccontextmanager
async def served(cookies: Cookies | None) -> AsyncIterator[Served]:
    async with asyncio.timeout(DEADLINE_S):
        one = Served(cookies)
        await one.engine.start()
        try:
            yield one
        finally:
            await one.engine.stop()


def with_options(options: bytes) -> bytes:
    return edns()[:-2] + len(options).to_bytes(2, "big") + options


def question(option: bytes) -> bytes:
    return query("www.example.org", rest=edns_with(COOKIE, option))


def test_repeats_have_the_cookie_of_their_client() -> None:
    async def main() -> None:
        cookies = Cookies(SECRET)
        async with served(cookies) as server:
            first = await server.ask(question(OWN))
            assert server.hits == 0
            got = {}
            for client in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
                answer = await server.ask(question(OWN), client)
                assert answer[:-24] == first[:-24]
                got[client] = answer[-24:]
                verdict = cookies.judge(got[client], client, int(time.time()))
                assert verdict is not None
                assert verdict.is_proven
                again = await server.ask(question(got[client]), client)
                assert again[-24:] == got[client], "it is right, and still fresh"
            assert len(set(got.values())) == 3
            stolen = await server.ask(question(got["127.0.0.1"]), "127.0.0.2")
            assert stolen[-24:] != got["127.0.0.1"]
            assert stolen[-24:-16] == OWN
            odd = await server.ask(question(OWN + bytes(32)))
            assert odd[:-24] == first[:-24]
            assert server.hits == 8

    asyncio.run(main())


def test_sizes_that_get_the_same_answer_share_it_with_a_cookie_too() -> None:
    async def main() -> None:
        async with served(Cookies(SECRET)) as server:
            option = pack_option(COOKIE, OWN)
            for count, size in enumerate([1232, 1233, 4096, 65_535, 1300]):
                rest = edns(size)[:-2] + len(option).to_bytes(2, "big") + option
                await server.ask(query("www.example.org", rest=rest))
                assert server.hits == count

    asyncio.run(main())


def test_what_is_more_than_a_cookie_is_left_to_the_pipeline() -> None:
    async def main() -> None:
        async with served(Cookies(SECRET)) as server:
            await server.ask(question(OWN))
            plain = query("www.example.org")
            cookie, nsid = pack_option(COOKIE, OWN), pack_option(NSID, b"")
            odd = [cookie[:-1], cookie + nsid, nsid + cookie, cookie + cookie, cookie + b"\0"]
            odd += [pack_option(COOKIE, OWN + bytes(size)) for size in (1, 7, 33)]
            cases = [query("www.example.org", rest=with_options(one)) for one in odd]
            right = [await server.ask(packet) for packet in cases]
            again = [await server.ask(packet) for packet in cases]
            assert [one[:4] for one in again] == [one[:4] for one in right]
            assert server.hits == 0
            assert len(await server.ask(plain)) < len(await server.ask(question(OWN)))
            assert server.hits == 1

    asyncio.run(main())


def test_without_a_secret_a_cookie_is_skipped_and_the_answer_repeated() -> None:
    async def main() -> None:
        async with served(None) as server:
            first = await server.ask(question(OWN))
            assert await server.ask(question(OWN)) == first
            assert await server.ask(question(b"another1")) == first
            assert server.hits == 2

    asyncio.run(main())
