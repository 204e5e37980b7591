"""Whatever rules there are for some clients, and wherever aliases of upstreams lead: each client
gets what the pipeline gives it, and repeats leak nothing."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Literal

import dns.message
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_native import AnswerTable, NativeEngine
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.sockets import Listener, bind_all, split_address
from kudurru.domain.filtering.decision import Filters
from kudurru.domain.later import Later
from kudurru.domain.ports import PacketEngine, Reply
from kudurru.projections.pipeline.resolver import Rules
from tests.filtering import groups, lists, policy
from tests.packets import ident, query
from tests.upstreams import Rig, Said, response

DEADLINE_S = 60
KINDS: dict[str, Callable[..., PacketEngine]] = {"python": PythonEngine}
if engine_native.is_available():
    KINDS["native"] = NativeEngine

UPSTREAM = "192.0.2.11"
CLIENTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
NAMES = ["a.example", "b.example", "c.example"]
TTL_S = 3600  # longer than a test: none ends in it
ADDRESS = "192.0.2.66"

names = st.sampled_from(NAMES)
clients = st.sampled_from(CLIENTS)
whose = st.one_of(
    st.just(""),
    clients.map(lambda client: f"$client={client}"),
    clients.map(lambda client: f"$client=~{client}"),
)
whose_more = whose.map(lambda text: "," + text[1:] if text else "")
rules = st.one_of(
    st.builds("||{}^{}".format, names, whose),
    st.builds("@@||{}^{}".format, names, whose),
    st.builds("||{}^$dnsrewrite=NOERROR;CNAME;{}{}".format, names, names, whose_more),
    st.builds("||{}^$dnsrewrite=NOERROR;A;192.0.2.99{}".format, names, whose_more),
    st.builds("{}{}".format, st.just(ADDRESS), whose),
)
A_TO_B, B_TO_C = {"a.example": "b.example"}, {"b.example": "c.example"}
aliases = st.sampled_from([{}, A_TO_B, A_TO_B | B_TO_C])
worlds = st.tuples(
    st.lists(rules, min_size=1, max_size=4),
    aliases,
    st.booleans(),
    st.sampled_from(["private", "all"]),
)
asked = st.permutations(CLIENTS), st.sampled_from([NAMES, NAMES[::-1]])


class World:
    """An engine before a pipeline that can be replaced by another one."""

    def __init__(self, kind: str) -> None:
        (bound,) = bind_all([Listener("udp", "127.0.0.1:0")])
        self.is_native = kind == "native"
        self.table = AnswerTable(1000) if self.is_native else None
        self.engine = KINDS[kind](
            self, bound.sockets, **({"table": self.table} if self.is_native else {})
        )
        self.target = split_address(bound.address)

    def change(
        self,
        rules: Sequence[str],
        aliases: dict[str, str],
        has_group: bool,
        recursion: Literal["private", "all"],
    ) -> None:
        some = [policy("all", blockListRefs=["own"])]
        if has_group:
            some.append(
                policy(
                    "one",
                    clientGroupRefs=["one"],
                    deny=["c.example"],
                    blockListRefs=["own"],
                    priority=10,
                )
            )
        filters = Filters(some, groups(one=[{"ip": CLIENTS[2]}]), matcher=lists(own=list(rules)))
        self.rig = Rig(UPSTREAM, filters=filters, rules=Rules(clients=recursion))
        self.rig.clock.advance(SystemClock().monotonic_us())  # the threads' time
        self.rig.pipeline.keeps_for_a_while = self.is_native

        def said(question: dns.message.Message, _packet: bytes) -> Said:
            name, found = str(question.question[0].name).rstrip(".").lower(), []
            while name in aliases and len(found) < len(NAMES):
                found.append(f"{name}. {TTL_S} IN CNAME {aliases[name]}.")
                name = aliases[name]
            return response(question, [*found, f"{name}. {TTL_S} IN A {ADDRESS}"])

        self.rig.scripts[UPSTREAM] = said
        if self.table is not None:
            self.table.admit(recursion)
        self.engine.invalidate()

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | Later[Reply | None] | None:
        reply = self.rig.pipeline.handle(packet, client, proto)
        self.rig.pass_time(0)  # the upstream answers at once
        return reply

    async def ask(self, client: str, packet: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.bind((client, 0))
            await loop.sock_connect(sock, self.target)
            await loop.sock_sendall(sock, packet)
            return await loop.sock_recv(sock, 65_535)

    def right_answer(self, packet: bytes, client: str) -> bytes:
        reply = self.handle(packet, client, "udp")
        if isinstance(reply, Later):
            reply = reply.value
        assert reply is not None
        return reply.wire


def told(wire: bytes) -> Any:
    """What an answer says, but for TTLs, which the system's clock counts down."""
    found = dns.message.from_wire(wire)
    sections = (found.answer, found.authority, found.additional)
    records = [[(rrset.name, rrset.rdtype, sorted(rrset)) for rrset in one] for one in sections]
    return found.id, found.flags, found.rcode(), found.question, records


@contextlib.asynccontextmanager
async def served(kind: str) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        world = World(kind)
        await world.engine.start()
        try:
            yield world
        finally:
            await world.engine.stop()


A_IS_B = "||a.example^$dnsrewrite=NOERROR;CNAME;b.example"
THEIRS = f"||b.example^$client={CLIENTS[1]}"
ELSEWHERE = f"{THEIRS},dnsrewrite=NOERROR;CNAME;c.example"
C_IS_THERE = "||c.example^$dnsrewrite=NOERROR;A;192.0.2.99"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@example([(([THEIRS], A_TO_B, False, "all"), CLIENTS, NAMES)])
@example([(([A_IS_B, ELSEWHERE, C_IS_THERE], {}, False, "all"), CLIENTS, NAMES)])
@given(st.lists(st.tuples(worlds, *asked), min_size=1, max_size=2))
def test_each_client_gets_what_the_pipeline_gives_it(kind: str, steps: Any) -> None:
    async def main() -> None:
        async with served(kind) as world:
            for how, clients, names in steps:
                world.change(*how)
                for number, (name, client) in enumerate([*product(names, clients)] * 2):
                    packet = query(name, ident=number)
                    got = await world.ask(client, packet)
                    assert ident(got) == number
                    assert told(got) == told(world.right_answer(packet, client)), (client, name)

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_answers_behind_aliases_are_repeated_where_they_are_the_same_for_all(kind: str) -> None:
    """Else the property above would hold of an engine that repeats nothing."""

    async def main() -> None:
        async with served(kind) as world:
            world.change(["||c.example^"], {"a.example": "b.example"}, False, "all")
            for name in ("a.example", "c.example"):
                for client in CLIENTS * 3:
                    await world.ask(client, query(name))
            hits = sum(world.engine.statistics().memo_hits.values())
            assert hits == (15 if kind == "native" else 8)

    asyncio.run(main())


@pytest.mark.skipif("native" not in KINDS, reason="the native engine was not built")
def test_where_policies_differ_by_client_each_class_has_its_own_repeats() -> None:
    async def main() -> None:
        async with served("native") as world:
            world.change(["||b.example^"], {}, True, "all")
            for client in CLIENTS * 4:
                for name in NAMES:
                    await world.ask(client, query(name))
            hits = sum(world.engine.statistics().memo_hits.values())
            # Each client is asked of once, and a.example twice, for it was not in the cache.
            assert hits >= 3 * 3 * 3 - 3

    asyncio.run(main())
