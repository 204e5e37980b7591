"""Whatever changes, an engine answers what the pipeline does: repeats are as good as new ones."""

import asyncio
import random
import socket
from collections.abc import Callable, Sequence
from typing import Any

import dns.message
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_native import AnswerTable, NativeEngine
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.dns.tcp import TcpServer
from kudurru.adapters.dns.zone_images import ZoneImages
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sockets import Listener, bind_all, split_address
from kudurru.domain.commands import Command
from kudurru.domain.filtering.decision import EVERYONE
from kudurru.domain.filtering.pauses import pause_command, resume_command, stream_of
from kudurru.domain.filtering.policies import BlockDefaults
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.later import Later
from kudurru.domain.objects import Key, key_of
from kudurru.domain.ports import CACHE, Origins, PacketEngine, Reply
from kudurru.entrypoints.answering import pipeline_of
from kudurru.entrypoints.wiring import Node
from kudurru.projections.pipeline.resolver import Rules
from tests.absent import needs_engine
from tests.dns_clients import framed, read_message
from tests.nodes import a_change, commit_as_server
from tests.objects import drop, endpoint, manifest, put, record_set, zone
from tests.packets import edns, ident, query
from tests.upstreams import Rig, response

DEADLINE_S = 60
KINDS: dict[str, Callable[..., PacketEngine]] = {"python": PythonEngine}
WITH_ZONES = "native, with zones"
OVER_TCP = "native, over TCP"
if engine_native.is_available():
    KINDS |= {"native": NativeEngine, WITH_ZONES: NativeEngine, OVER_TCP: TcpServer}

NAMES = ["www", "nas", "a.deep", "alias", "*.wild", "x.wild", "gone", "old"]
EXPIRING = ["old", "nas", "*.wild"]
SOON = "2023-11-14T22:15:00Z"  # 100 seconds after the clock's beginning
CLIENTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]  # the second one has a policy of its own
GROUPS = [EVERYONE, "default/kids"]
HOURS = {"windows": [{"days": ["Tue"], "start": "22:14", "end": "22:15"}]}  # from 40 seconds on
ZONES = ["example.org", "sub.example.org", "third.example"]
RTYPES = {"A": 1, "AAAA": 28, "TXT": 16, "CNAME": 5, "HTTPS": 65, "ANY": 255, "NS": 2, "SOA": 6}
RTYPES |= {"MX": 15, "DNAME": 39}
SIZES = [0, 512, 700, 1231, 1232, 4096, 65_535]  # of EDNS
TARGETS = {
    "A": ["192.0.2.1", "192.0.2.2"],
    "AAAA": ["2001:db8::1"],
    "TXT": [" ".join(f'"{n:0250}"' for n in range(8)), "short"],
    "CNAME": ["nas.example.org", "www.sub.example.org", "www.third.example"],
    "MX": ["10 www.third.example", "10 www.sub.example.org"],  # with addresses beside them
    "NS": ["nas.third.example", "www.example.org"],
    "HTTPS": ["1 . alpn=h2", "0 www.third.example"],
    "DNAME": ["wild.example.org", "third.example"],
}
UPSTREAM = "192.0.2.11"
AHEAD_US = 3_600_000_000  # of the threads' time: they count down nothing
SAID = ["A 192.0.2.7", "A 192.0.2.8", "CNAME nas.example.org.", "CNAME www.elsewhere.example."]
REWRITTEN = ["192.0.2.60", "www.third.example", "nas.example.org"]

records = st.sampled_from([(rtype, target) for rtype in TARGETS for target in TARGETS[rtype]])
names = st.sampled_from(NAMES)
changes = st.one_of(
    st.tuples(st.just("put"), names, records, st.sampled_from(ZONES), st.booleans()),
    st.tuples(st.just("drop"), names, st.sampled_from(ZONES)),
    st.tuples(st.just("zone"), st.sampled_from(ZONES)),
    st.tuples(st.just("no zone"), st.sampled_from(ZONES)),
    st.tuples(st.just("deny"), names, st.sampled_from(["zeroip", "nxdomain"]), st.booleans()),
    st.tuples(st.just("rewrite"), names, st.sampled_from(REWRITTEN)),
    st.tuples(st.just("be silent"), names),
    st.tuples(st.just("allow all")),
    st.tuples(st.just("list"), names),
    st.tuples(st.just("no list")),
    st.tuples(st.just("mode"), st.sampled_from(["zeroip", "nodata", "refused"])),
    st.tuples(st.just("upstream says"), names, st.sampled_from(SAID)),
    st.tuples(st.just("forward"), st.sampled_from(ZONES[1:])),
    st.tuples(st.just("wait"), st.integers(1, 90)),
    st.tuples(st.just("ttl"), st.sampled_from(ZONES), st.sampled_from([60, 600])),
    st.tuples(st.just("kids"), st.sampled_from(CLIENTS)),
    st.tuples(st.just("hours"), names),
    st.tuples(st.just("pause"), st.sampled_from(GROUPS), st.sampled_from([None, 30, 100])),
    st.tuples(st.just("go on"), st.sampled_from(GROUPS)),
)
questions = st.tuples(
    st.sampled_from([*NAMES, "", "sub", "www.sub", "x.y.wild", "www.nas"]),
    st.sampled_from(["example.org", "third.example", "elsewhere.example"]),
    st.sampled_from(list(RTYPES.values())),
    st.sampled_from([0x0100, 0, 0x0110, 0x2900]),  # RD, nothing, RD and CD, UPDATE
    st.sampled_from([b"", *map(edns, SIZES), edns()[:5] + b"\0\0\x80\0" + edns()[9:]]),
    st.integers(0, 2**32),  # letters of its copies
)
USUAL = [
    (f"{name}.{origin}", rtype)
    for origin in ("example.org", "third.example", "elsewhere.example")
    for name, rtype in (("www", 1), ("nas", 1), ("alias", 1), ("gone", 1), ("www", 15))
]
"""What is asked after every step, so that there is something to be dropped by a change."""
steps = st.lists(
    st.one_of(
        st.tuples(st.just("change"), changes),
        st.tuples(st.just("ask"), st.lists(questions, min_size=1, max_size=4)),
        st.tuples(st.just("ask"), st.lists(questions, min_size=1, max_size=4)),
        st.tuples(st.just("change while asked"), changes, questions),
    ),
    min_size=1,
    max_size=14,
)


class StillClock(ManualClock):
    """Whose monotonic time stands still, ahead of that of the threads."""

    def monotonic_us(self) -> int:
        return self.started_us

    started_us = SystemClock().monotonic_us() + AHEAD_US


class World:
    """A node with a zone, an upstream, an engine that serves them, and clients."""

    def __init__(self, kind: str) -> None:
        self.proto = "tcp" if kind == OVER_TCP else "udp"
        (bound,) = bind_all([Listener(self.proto, "127.0.0.1:0")])
        self.clock = StillClock()
        self.rig = Rig(UPSTREAM)
        self.rig.clock.advance(self.clock.monotonic_us())
        self.rig.scripts[UPSTREAM] = self.answer_as_upstream
        self.rig.resolver.configure(Rules(clients="all"), *self.rig.resolver.routes(), {})
        self.said: dict[str, str] = {}
        self.handled: set[bytes] = set()  # queries that came to the pipeline
        log = MemoryEventLog(entropy=SeededEntropy(1), clock=self.clock)
        self.node = Node(log, self.clock, SeededEntropy(2), on_change=self.forget)
        self.pipeline = pipeline_of(self.node, resolver=self.rig.resolver)
        self.pipeline.keeps_for_a_while = kind != "python"
        self.images: ZoneImages | None = None
        how: dict[str, Any] = {}
        if kind == WITH_ZONES:
            table = AnswerTable()
            self.images = ZoneImages(table)
            view = self.node.zones
            self.images.follow(
                view.served, lambda: view.forwards, lambda: self.pipeline.has_plain_zones
            )
            how = {"table": table, "zones": self.images.core}
        elif kind == OVER_TCP:
            how = {"memo": AnswerTable().new_scope()}
        self.engine = KINDS[kind](self, bound.sockets, **how)
        self.target = split_address(bound.address)
        self.meanwhile: Callable[[], None] | None = None
        self.commit(put(zone(ZONES[0])), put(kids(CLIENTS[1])))

    def forget(self, changed: Origins) -> None:
        if hasattr(self, "engine"):
            self.engine.invalidate(changed)
            if self.images is not None:
                self.images.changed(changed)
            (default, *_) = self.rig.resolver.routes()
            self.rig.resolver.set_zones(dict.fromkeys(self.node.zones.forwards, default))

    def answer_as_upstream(self, question: dns.message.Message, _packet: bytes) -> bytes:
        name, found = str(question.question[0].name).lower(), []
        while len(found) < len(SAID):
            rtype, value = self.said.get(name, "A 192.0.2.6").split()
            found.append(f"{name} 3600 IN {rtype} {value}")
            if rtype == "A":
                break
            name = value
        return response(question, found)

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | Later[Reply | None] | None:
        self.handled.add(packet)
        reply = self.pipeline.handle(packet, client, proto)
        self.rig.pass_time(0)  # the upstream answers at once
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()  # what was just computed is not true any more
        return reply

    def commit(self, *commands: Command) -> None:
        commit_as_server(self.node, a_change(*commands))

    def change(self, what: str, *how: Any) -> None:
        match what:
            case "put":
                self._put(*how)
            case "drop":
                self._drop(key_of("DNSRecordSet", "default", _object_name(*how)))
            case "zone":
                self.commit(put(zone(how[0])))
            case "no zone":
                self._drop(key_of("DNSZone", "", how[0]))
            case "deny":
                self._deny(*how)
            case "hours":
                self._put_policy(deny=[f"{how[0]}.elsewhere.example"], schedule=HOURS)
            case "pause":
                now_s = self.clock.now_us() // 1_000_000
                self.commit(pause_command(how[0], self._version(how[0]), now_s, how[1]))
            case "go on":
                self.commit(resume_command(how[0], self._version(how[0])))
            case "kids":
                self.commit(put(kids(how[0])))
            case "ttl":
                self.commit(put(zone(how[0], defaultTTL=how[1])))
            case "rewrite":
                one = {"name": f"{how[0]}.elsewhere.example", "targets": [how[1]]}
                if not how[1][0].isdigit():
                    one["type"] = "CNAME"
                self._put_policy(rewrites=[one])
            case "be silent":
                self._put_policy(deny=[f"{how[0]}.elsewhere.example"], queryLog=False)
            case "list":
                rules = [f"||{how[0].replace('*', 'x')}.elsewhere.example^"]
                self.commit(put(manifest("BlockList", "own", {"sources": [{"inline": rules}]})))
            case "no list":
                self._drop(key_of("BlockList", "default", "own"))
            case "mode":
                self.node.views.policies.configure(BlockDefaults(how[0], 10))
            case "upstream says":
                self.said[f"{how[0]}.elsewhere.example."] = how[1]
                self.rig.cache.flush(None)
                self.forget((CACHE,))
            case "forward":
                upstreams = {"upstreams": [f"udp://{UPSTREAM}"]}
                self._drop(key_of("DNSZone", "", how[0]))
                self.commit(put(zone(how[0], type="Forward", forward=upstreams)))
            case "allow all":
                self._drop(key_of("Policy", "default", "some"))
            case "wait":
                self.clock.advance(how[0] * 1_000_000)
                self.node.views.follower.advance(self.clock.now_us() // 1_000_000)

    def _put(self, name: str, record: tuple[str, str], origin: str, expires: bool) -> None:
        rtype, target = record
        wanted = [endpoint(f"{name}.{origin}", rtype, target)]
        if rtype == "HTTPS":  # whose target may be the name itself, with an address
            wanted.append(endpoint(f"{name}.{origin}", "A", "192.0.2.3"))
        if expires:
            wanted[0]["expiresAt"] = SOON if name in EXPIRING else "2099-01-01T00:00:00Z"
        self.commit(put(record_set(_object_name(name, origin), *wanted, zone=origin)))

    def _deny(self, name: str, mode: str, for_one: bool) -> None:
        spec: dict[str, Any] = {
            "deny": [f"{name}.elsewhere.example", "nas.example.org"],
            "blockMode": mode,
        }
        if for_one:
            spec["clientGroupRefs"] = ["kids"]
        self._put_policy(**spec)

    def _put_policy(self, **spec: Any) -> None:
        self.commit(put(manifest("Policy", "some", {"blockListRefs": ["own"], **spec})))

    def _version(self, group: str) -> int:
        return self.node.objects.version(stream_of(group))

    def _drop(self, key: Key) -> None:
        if self.node.objects.find(key) is not None:
            self.commit(drop(key))

    async def ask(self, client: str, packets: Sequence[bytes]) -> dict[int, bytes]:
        """Answers by ID."""
        if self.proto == "tcp":
            reader, writer = await asyncio.open_connection(*self.target, local_addr=(client, 0))
            writer.write(framed(*packets))
            got = [await read_message(reader) for _ in packets]
            writer.close()
            return {ident(one): one for one in got}
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.bind((client, 0))
            await loop.sock_connect(sock, self.target)
            for packet in packets:
                await loop.sock_sendall(sock, packet)
            got = [await loop.sock_recv(sock, 65_535) for _ in packets]
        return {ident(one): one for one in got}

    def right_answer(self, packet: bytes, client: str) -> bytes:
        reply = self.pipeline.handle(packet, client, self.proto)
        self.rig.pass_time(0)
        if isinstance(reply, Later):
            reply = reply.value
        assert isinstance(reply, Reply)
        return reply.wire


def kids(client: str) -> Manifest:
    return manifest("ClientGroup", "kids", {"clients": [{"ip": client}]})


def _object_name(name: str, origin: str) -> str:
    return f"{name.replace('*', 'wildcard')}.{origin}"


def packets_of(asked: Sequence[Any]) -> list[bytes]:
    """Three copies of each question, in other letters."""
    found = []
    for name, origin, rtype, flags, rest, letters in asked:
        chance = random.Random(letters)
        for _ in range(3):
            text = "".join(
                chance.choice((char.upper(), char)) for char in f"{name}.{origin}".lstrip(".")
            )
            found.append(query(text, rtype, ident=len(found), flags=flags, rest=rest))
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(steps)
def test_every_answer_is_the_one_that_the_pipeline_gives_now(kind: str, steps: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            world = World(kind)
            await world.engine.start()
            try:
                usual = [query(*one, ident=i, flags=0x0100) for i, one in enumerate(USUAL)]
                await check(world, usual, CLIENTS[:2])
                for what, *how in steps:
                    if what == "change":
                        world.change(*how[0])
                    elif what == "change while asked":
                        change, question = how
                        world.meanwhile = lambda change=change: world.change(*change)
                        await world.ask(CLIENTS[0], packets_of([question])[:1])
                        if world.meanwhile is not None:  # it was a repeat, and nobody was asked
                            world.meanwhile = None
                            world.change(*change)
                        await check(world, packets_of([question]))
                    else:
                        await check(world, packets_of(how[0]))
                    await check(world, usual, CLIENTS[:2])
            finally:
                await world.engine.stop()

    asyncio.run(main())


async def check(world: World, packets: list[bytes], clients: Sequence[str] = CLIENTS) -> None:
    for client in clients:
        for packet in packets:
            world.right_answer(packet, client)  # then all is in the cache that will be
        got = await world.ask(client, packets)
        for packet in packets:
            assert got[ident(packet)] == world.right_answer(packet, client), packet.hex()


OF_ORG, OF_THIRD, BOTH = "www.example.org", "www.third.example", "alias.example.org"
CACHED, BLOCKED = "x.elsewhere.example", "gone.elsewhere.example"
ASKED_AGAIN = [
    (("put", "nas", ("A", "192.0.2.1"), ZONES[0], False), {OF_ORG, BOTH}),
    (("put", "nas", ("A", "192.0.2.1"), ZONES[2], False), {OF_THIRD, BOTH}),
    (("drop", "old", ZONES[0]), {OF_ORG, BOTH}),
    (("deny", "gone", "nxdomain", False), {CACHED, BLOCKED}),
    (("list", "nas"), {CACHED, BLOCKED}),
    (("mode", "nodata"), {CACHED, BLOCKED}),
    (("upstream says", "a.deep", SAID[0]), {CACHED}),
    (("be silent", "nas"), {OF_ORG, OF_THIRD, BOTH, CACHED, BLOCKED}),
    (("zone", ZONES[1]), {OF_ORG, OF_THIRD, BOTH, CACHED, BLOCKED}),
    (("wait", 10), set()),
]  # fmt: skip
"""A change, and the names whose answers are over."""


@pytest.mark.parametrize(("change", "expected"), ASKED_AGAIN, ids=[str(c) for c, _ in ASKED_AGAIN])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != WITH_ZONES])
def test_what_did_not_change_is_still_repeated(
    kind: str, change: tuple[Any, ...], expected: set[str]
) -> None:
    names_asked = [OF_ORG, OF_THIRD, BOTH, BLOCKED]
    if kind != "python":  # which keeps nothing that ends
        names_asked.append(CACHED)

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            world = World(kind)
            world.commit(put(zone(ZONES[2])))
            for name, record, origin in (
                ("www", ("A", "192.0.2.1"), ZONES[0]),
                ("old", ("A", "192.0.2.1"), ZONES[0]),
                ("alias", ("CNAME", OF_THIRD), ZONES[0]),
                ("www", ("A", "192.0.2.2"), ZONES[2]),
            ):
                world.change("put", name, record, origin, False)
            world.change("deny", "gone", "zeroip", False)
            await world.engine.start()
            try:
                for _ in range(2):  # an answer is kept when it comes from the cache
                    await handled(world, names_asked)
                assert await handled(world, names_asked) == set()
                world.change(*change)
                assert await handled(world, names_asked) == expected & {*names_asked}
            finally:
                await world.engine.stop()

    asyncio.run(main())


async def handled(world: World, names_asked: Sequence[str]) -> set[str]:
    """Those that the engine asked the pipeline for."""
    world.handled.clear()
    packets = {text: query(text, 1, flags=0x0100) for text in names_asked}
    for packet in packets.values():
        await world.ask(CLIENTS[0], [packet])
    return {text for text, packet in packets.items() if packet in world.handled}


@needs_engine
def test_sizes_of_edns_that_lead_to_the_same_answers_share_one() -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            world = World("native")
            await world.engine.start()
            for group in ([0, 1, 511, 512], [1232, 1233, 4096, 65_535], [513], [1231]):
                packets = [query("example.org", 6, ident=i, rest=edns(i)) for i in group]
                for packet in packets:
                    await world.ask(CLIENTS[0], [packet])
            assert sum(world.engine.statistics().memo_hits.values()) == 6
            await world.engine.stop()

    asyncio.run(main())
