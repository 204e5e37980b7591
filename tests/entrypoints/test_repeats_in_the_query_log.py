"""What engines repeat is in the query log like what the pipeline answers, and nothing else is."""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_native import AnswerTable, NativeEngine
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.query_log.reader import Wanted, open_reader
from kudurru.adapters.query_log.store import QueryLogStore
from kudurru.adapters.sockets import Listener, bind_all, split_address
from kudurru.domain.ports import PacketEngine, QueryHandler
from kudurru.domain.query_log import Sampler
from kudurru.entrypoints.answering import pipeline_of
from kudurru.entrypoints.wiring import Node
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.query_log import QueryNotes
from tests.nodes import a_change, commit_as_server
from tests.objects import endpoint, manifest, put, record_set, zone
from tests.packets import edns, query

DEADLINE_S = 60
KINDS = ["python", *(["native"] if engine_native.is_available() else [])]

CHAOS, HESIOD = 3, 4
ABOUT_THE_SERVER = [
    query("version.bind", 16, CHAOS),
    query("version.bind", 1, CHAOS),
    query("other.bind", 16, CHAOS),
    query("www.example.org", 1, HESIOD),
    query("health.kudurru.internal"),
]
LOGGED = [
    query("www.example.org"),
    query("WWW.example.org"),
    query("www.example.org", rest=edns()),
    query("gone.example.org", 28),
    query("a\0Bc.example.org", 16),
    query("elsewhere.test"),
]
TIMES = 5


def engine_of(
    kind: str, handler: QueryHandler, sockets: Sequence[socket.socket], one_in: int
) -> PacketEngine:
    """`one_in` as `handler` has it."""
    if kind == "python":
        return PythonEngine(handler, sockets)
    table = AnswerTable()
    table.sample(one_in)
    return NativeEngine(handler, sockets, table=table)


def ask_all(kind: str, notes: QueryNotes, times: int = TIMES) -> int:
    """Ask each question some times, one after the other. How many times the engine repeated."""

    async def main() -> int:
        async with asyncio.timeout(DEADLINE_S):
            clock = ManualClock()
            log = MemoryEventLog(entropy=SeededEntropy(1), clock=clock)
            node = Node(log, clock, SeededEntropy(2))
            www = record_set("www.example.org", endpoint("www.example.org", "A", "192.0.2.1"))
            commit_as_server(node, a_change(put(zone("example.org")), put(www)))
            pipeline = pipeline_of(node, notes=notes, identity=Identity(version="v"))
            (bound,) = bind_all([Listener("udp", "127.0.0.1:0")])
            engine = engine_of(kind, pipeline, bound.sockets, notes.sampler.one_in)
            await engine.start()
            loop = asyncio.get_running_loop()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, split_address(bound.address))
                for _ in range(times):
                    for packet in ABOUT_THE_SERVER + LOGGED:
                        await loop.sock_sendall(sock, packet)
                        await loop.sock_recv(sock, 4096)
            await engine.stop()
            return sum(engine.statistics().memo_hits.values())

    return asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_each_query_is_in_the_log_once_and_those_about_the_server_are_not(
    kind: str, tmp_path: Path
) -> None:
    notes = QueryNotes()
    assert ask_all(kind, notes) >= (TIMES - 1) * 3
    store = QueryLogStore(tmp_path / "q.db", bytes)
    while (seen := notes.take(9)) is not None:
        store.write(seen)
    assert (store.statistics().unknown, notes.statistics().dropped) == (0, 0)
    store.close()
    counted: Counter[tuple[str, int]] = Counter()
    with open_reader(tmp_path / "q.db") as reader:
        for row in reader.queries(Wanted(), 1000):
            counted[row.name, row.type] += row.count
    assert counted == {
        ("www.example.org", 1): 3 * TIMES,
        ("gone.example.org", 28): TIMES,
        ("a\\000bc.example.org", 16): TIMES,
        ("elsewhere.test", 1): TIMES,
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("one_in", [2, 7, 100])
def test_of_a_sample_each_query_is_known_and_stands_for_its_share(
    kind: str, one_in: int, tmp_path: Path
) -> None:
    """Python has a share of its own, and so has each thread: so many may be off by one each."""
    notes, times = QueryNotes(), 50
    notes.sampler = Sampler(one_in, random.Random(one_in).randrange)
    assert ask_all(kind, notes, times) >= (times - 1) * 3
    store = QueryLogStore(tmp_path / "q.db", bytes)
    while (seen := notes.take(9)) is not None:
        store.write(seen)
    assert (store.statistics().unknown, notes.statistics().dropped) == (0, 0)
    store.close()
    with open_reader(tmp_path / "q.db") as reader:
        rows = list(reader.queries(Wanted(), 1000))
    stands_for = sum(row.count for row in rows)
    assert abs(stands_for - len(LOGGED) * times) < one_in * (2 if kind == "native" else 1)
    assert stands_for == store.statistics().written * one_in == notes.statistics().noted * one_in
    asked = {"www.example.org", "gone.example.org", "a\\000bc.example.org", "elsewhere.test"}
    assert {row.name for row in rows} <= asked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("room", [0, 3, 11])
def test_what_the_log_was_not_told_of_is_not_repeated(kind: str, room: int, tmp_path: Path) -> None:
    """Nobody takes the notes: what is dropped and what was noted are all there were."""
    notes = QueryNotes(room)
    ask_all(kind, notes)
    store = QueryLogStore(tmp_path / "q.db", bytes)
    seen = notes.take(9)
    if seen is not None:
        store.write(seen)
    store.close()
    assert store.statistics().unknown == 0
    assert store.statistics().written == room
    assert notes.statistics().dropped == len(LOGGED) * TIMES - room


@pytest.mark.skipif("native" not in KINDS, reason="the native engine was not built")
def test_repeats_are_logged_as_what_they_were_for_their_clients(tmp_path: Path) -> None:
    """A name that one client may not have: its queries are blocked, those of others are not."""
    notes = QueryNotes()
    hits = ask_by_clients(notes)
    assert hits >= 2 * (TIMES - 1)
    store = QueryLogStore(tmp_path / "q.db", bytes)
    while (seen := notes.take(9)) is not None:
        store.write(seen)
    assert (store.statistics().unknown, notes.statistics().dropped) == (0, 0)
    store.close()
    counted: Counter[tuple[str, str, str]] = Counter()
    with open_reader(tmp_path / "q.db") as reader:
        for row in reader.queries(Wanted(), 1000):
            counted[row.client, row.source, row.policy] += row.count
    assert counted == {
        ("127.0.0.1", "refused", ""): TIMES,
        ("127.0.0.2", "blocked", "default/kids"): TIMES,
        ("127.0.0.3", "refused", ""): TIMES,
    }


def ask_by_clients(notes: QueryNotes) -> int:
    async def main() -> int:
        async with asyncio.timeout(DEADLINE_S):
            clock = ManualClock()
            log = MemoryEventLog(entropy=SeededEntropy(1), clock=clock)
            node = Node(log, clock, SeededEntropy(2))
            kids = {"clientGroupRefs": ["kids"], "deny": ["elsewhere.test"]}
            group = {"clients": [{"ip": "127.0.0.2"}]}
            objects = manifest("ClientGroup", "kids", group), manifest("Policy", "kids", kids)
            commit_as_server(node, a_change(*map(put, objects)))
            pipeline = pipeline_of(node, notes=notes)
            pipeline.keeps_for_a_while = True
            (bound,) = bind_all([Listener("udp", "127.0.0.1:0")])
            engine = NativeEngine(pipeline, bound.sockets)
            await engine.start()
            loop = asyncio.get_running_loop()
            for client in ["127.0.0.1", "127.0.0.2", "127.0.0.3"] * TIMES:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    sock.setblocking(False)
                    sock.bind((client, 0))
                    await loop.sock_connect(sock, split_address(bound.address))
                    await loop.sock_sendall(sock, query("elsewhere.test"))
                    await loop.sock_recv(sock, 4096)
            await engine.stop()
            return sum(engine.statistics().memo_hits.values())

    return asyncio.run(main())
