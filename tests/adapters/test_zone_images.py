"""What the native engine answers from zones by itself: what the pipeline answers, or nothing."""

import asyncio
import ctypes
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.adapters.dns import engine_native, zone_images
from kudurru.adapters.dns.engine_native import AnswerTable, NativeEngine
from kudurru.adapters.dns.zone_images import ZoneImages
from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.sockets import Listener, bind_all, split_address
from kudurru.domain.dns import names, records
from kudurru.domain.dns.images import RRset
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import type_from_text
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.ports import CACHE, FILTERS, Reply
from kudurru.domain.query_log import fact_of
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.pipeline import Pipeline
from kudurru.projections.query_log import QueryNotes
from tests.packets import edns, edns_with, query

pytestmark = pytest.mark.skipif(
    not engine_native.is_available(), reason="the native engine was not built"
)

APEXES = ["z.", "a.z.", "b.a.z.", "."]
OWNERS = ["", "a", "b", "a.b", "b.a", "c.a.b", "*", "*.b", "c.*.b", "A", "a.A"]
ASKED = [*OWNERS, "c", "c.a", "c.b", "c.c.b", "b.c.a.b"]
DATA = {
    "A": ["192.0.2.1", "192.0.2.2"],
    "AAAA": ["2001:db8::1"],
    "TXT": ['"short"', '"%0250d" ' * 3 % (1, 2, 3), '"%0250d" ' * 5 % (1, 2, 3, 4, 5)],
    "CNAME": ["a.z.", "b.elsewhere."],
    "DNAME": ["c.z."],
    "NS": ["a.b.z.", "ns.elsewhere."],
    "PTR": ["a.z."],
    "MX": ["1 b.z."],
    "HTTPS": ["1 . alpn=h2"],
    "TYPE300": [r"\# 2 abcd"],
    "TYPE700": [r"\# 2 abcd"],
}  # fmt: skip

owners = st.sampled_from(OWNERS)
apexes = st.sampled_from([*APEXES, "z.", "z."])
plain = st.sampled_from([("A", "192.0.2.1"), ("AAAA", "2001:db8::1"), ("TXT", '"short"')])
datas = plain | plain | st.sampled_from([(rtype, text) for rtype in DATA for text in DATA[rtype]])
puts = st.tuples(st.just("put"), st.just("z."), owners, st.lists(datas, min_size=1, max_size=2))
changes = st.one_of(
    st.tuples(st.just("put"), apexes, owners, st.lists(datas, max_size=2), st.booleans()),
    st.tuples(st.just("put"), apexes, owners, st.lists(datas, max_size=2), st.booleans()),
    st.tuples(st.just("put"), apexes, owners, st.lists(datas, max_size=2), st.just(False)),
    st.tuples(st.just("zone"), apexes),
    st.tuples(st.just("no zone"), apexes),
    st.tuples(st.just("stamp"), apexes),
    st.tuples(st.just("unavailable"), apexes, st.booleans()),
    st.tuples(st.just("hold")),
    st.tuples(st.just("show")),
    st.tuples(st.just("turn")),
)
questions = st.builds(
    query,
    st.builds(lambda one, apex: f"{one}.{apex}".strip("."), st.sampled_from(ASKED), apexes)
    | st.sampled_from(["elsewhere", "health.kudurru.internal"]),
    st.sampled_from([1, 16, 28])
    | st.sampled_from([*map(type_from_text, DATA), 6, 43, 255, 252, 0, 41, 128, 99]),
    st.just(1) | st.sampled_from([1, 3, 255]),
    flags=st.just(0x0100) | st.sampled_from([0, 0x0130, 0x2800, 0x8100, 0x0200]),
    rest=st.just(b"")
    | st.sampled_from(
        [edns(), edns(400), edns(4096), edns()[:5] + b"\0\0\x80\0" + edns()[9:],
         edns()[:5] + b"\7\0\0\0" + edns()[9:], edns()[:5] + b"\0\1\0\0" + edns()[9:],
         edns() + b"\0", edns()[:-1], edns_with(10, b"clientck"), edns_with(3, b"")]
    ),
)  # fmt: skip
GRID = [
    query(f"{name}.{apex}".lstrip("."), rtype)
    for name in ASKED
    for apex in ("z", "a.z")
    for rtype in (1, 16, 28, 65)
]
"""What is usually asked, of every name."""


class World:
    """Zones, the pipeline over them, and the copy that threads would read."""

    def __init__(self, bytes_max: int = 1 << 20, *, notes: QueryNotes | None = None) -> None:
        self.zones = ZoneSet()
        self.all: dict[str, Zone] = {}
        self.forwards: Mapping[Name, object] = {}
        self.is_wanted = True
        self.images = ZoneImages(AnswerTable(100), bytes_max)
        self.images.follow(self.zones, lambda: self.forwards, lambda: self.is_wanted)
        self.serial = 0
        self.pipeline = Pipeline(
            self.zones,
            lambda: True,
            clock=ManualClock(),
            identity=Identity(version="kudurru"),
            is_lameduck=lambda: False,
            on_exception=_raise,
            notes=notes,
        )

    def zone(self, apex: str) -> None:
        zone = self.all[apex] = new_zone(apex)
        self.zones.add(zone)

    def put(self, apex: str, owner: str, data: Any, expires: bool = False) -> None:
        zone = self.all.get(apex)
        if zone is None:
            return
        name = names.from_text(owner, zone.apex) if owner else zone.apex
        found = []
        for rtype, text in data:
            number = type_from_text(rtype)
            rdata = records.rdata_from_text(number, text)
            found.append(RRset(number, 300, (rdata,), 1 << 33 if expires else None))
        self.zones.before_change(zone)
        zone.replace(name, found)

    def change(self, what: str, *how: Any) -> None:
        match what:
            case "put":
                self.put(*how)
            case "zone":
                self.zone(*how)
            case "no zone":
                self.zones.remove(names.from_text(how[0]))
                self.all.pop(how[0], None)
            case "stamp" if how[0] in self.all:
                zone = self.all[how[0]]
                self.zones.before_change(zone)
                self.serial += 1
                zone.stamp(self.serial)
            case "unavailable" if how[0] in self.all:
                zone = self.all[how[0]]
                self.zones.before_change(zone)
                zone.is_available = how[1]
            case "hold" if not self.zones.is_held:
                self.zones.hold()
            case "show":
                self.zones.show()

    def close(self) -> None:
        """As `changed` does, without a loop: between a change and this nobody is asked."""
        self.images.leave(None)

    def tell(self) -> None:
        """The same, of what changed; what is held is told when it is shown."""
        if not self.zones.is_held:
            self.images.leave(self.zones.changes())

    def settle(self) -> None:
        self.close()
        while self.images.advance():
            pass

    def right(self, packet: bytes) -> bytes | None:
        reply = self.pipeline.handle(packet, "192.0.2.1", "udp")
        assert reply is None or isinstance(reply, Reply)
        return None if reply is None else reply.wire

    def check(self, packets: list[bytes]) -> None:
        for packet in packets:
            found = self.images.core.find(packet)
            assert found is None or found == self.right(packet), packet.hex()

    def find(self, name: str, rtype: str = "A", **how: Any) -> bytes | None:
        """What is answered here; it is right."""
        packet = query(name, type_from_text(rtype), **how)
        self.check([packet])
        return self.images.core.find(packet)


def _raise(error: Exception) -> None:
    raise error


def new_zone(apex: str) -> Zone:
    name = names.from_text(apex)
    soa = Soa(
        mname=names.from_text("ns", name),
        rname=names.from_text("host.elsewhere."),
        refresh=1, retry=2, expire=3, minimum=4, ttl=5,
    )  # fmt: skip
    zone = Zone(name, soa)
    zone.replace(name, [RRset(2, 300, (names.from_text("ns.elsewhere."),))])
    return zone


@settings(max_examples=150)
@given(
    st.lists(puts, min_size=4, max_size=10),
    st.lists(st.tuples(st.lists(changes, max_size=6), st.lists(questions, max_size=8)), max_size=5),
)
def test_what_is_answered_is_what_the_pipeline_answers_whatever_changes(
    first: list[Any], steps: list[tuple[list[Any], list[bytes]]]
) -> None:
    world = World()
    for apex in APEXES[:2]:
        world.zone(apex)
    for one in first:
        world.change(*one)
    world.settle()
    for changed, asked in steps:
        for one in changed:
            world.change(*one)
            world.tell()
            world.check(asked)
            if one[0] == "turn":
                world.images.advance()
                world.check(GRID)
        world.images.advance()
        world.check([*GRID, *asked])
    world.zones.show()
    world.settle()
    world.check(GRID)
    for _, asked in steps:
        world.check(asked)


@pytest.fixture(params=[1, 2, 1000], ids="{} a turn".format)
def per_turn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zone_images, "NAMES_PER_TURN", request.param)


def plain_world(notes: QueryNotes | None = None) -> World:
    world = World(notes=notes)
    world.zone("z.")
    for owner, rtype, text in (
        ("host", "A", "192.0.2.1"),
        ("deep.under.here", "TXT", '"x"'),
        ("*.wild", "A", "192.0.2.2"),
        ("alias", "CNAME", "host.z."),
        ("cut", "NS", "ns.cut.z."),
        ("ns.cut", "A", "192.0.2.3"),
        ("mail", "MX", "1 host.z."),
        ("Cased", "A", "192.0.2.4"),
    ):
        world.put("z.", owner, [(rtype, text)])
    return world


PLAIN = [
    ("host.z", "A"), ("HOST.z", "A"), ("host.z", "AAAA"), ("host.z", "MX"), ("host.z", "HTTPS"),
    ("none.z", "A"), ("under.here.z", "A"), ("here.z", "TXT"), ("deep.under.here.z", "TXT"),
    ("x.wild.z", "A"), ("x.y.wild.z", "A"), ("x.wild.z", "AAAA"), ("*.wild.z", "A"), ("z", "A"),
    ("x.host.z", "A"), ("none.z", "TYPE300"),
]  # fmt: skip
LEFT = [
    ("alias.z", "A"), ("cut.z", "A"), ("x.cut.z", "A"), ("mail.z", "MX"), ("cased.z", "A"),
    ("z", "SOA"), ("z", "NS"), ("host.z", "ANY"), ("host.z", "DS"), ("elsewhere", "A"),
    ("host.z", "AXFR"), ("none.z", "TYPE700"), ("alias.z", "CNAME"),
]  # fmt: skip


@pytest.mark.usefixtures("per_turn")
def test_what_is_plain_is_answered_here_and_the_rest_is_left() -> None:
    world = plain_world()
    world.settle()
    for rest in (b"", edns(), edns()[:5] + b"\0\0\x80\0" + edns()[9:]):
        assert [one for one in PLAIN if world.find(*one, rest=rest) is None] == []
        assert [one for one in LEFT if world.find(*one, rest=rest) is not None] == []
    assert world.find("host.z", rest=edns_with(10, b"clientck")) is None
    assert world.find("host.z", flags=0x2800) is None
    assert world.find("host.z", qclass=3) is None


@pytest.mark.usefixtures("per_turn")
def test_nothing_is_answered_between_a_change_and_its_turn() -> None:
    world = plain_world()
    world.settle()
    before = world.find("host.z")
    world.put("z.", "host", [("A", "192.0.2.9")])
    world.close()
    assert [world.find(*one) for one in PLAIN] == [None] * len(PLAIN)
    world.settle()
    after = world.find("host.z")
    assert after is not None
    assert after != before
    world.put("z.", "deep.under.here", [])
    world.settle()
    assert (after := world.find("here.z")) is not None
    assert after[3] & 15 == 3  # it was there for the sake of the name below it


@pytest.mark.usefixtures("per_turn")
def test_while_one_zone_changes_the_others_are_answered() -> None:
    world = plain_world()
    world.zone("y.")
    world.put("y.", "host", [("A", "192.0.2.7")])
    world.settle()
    world.zones.changes()
    world.put("z.", "host", [("A", "192.0.2.9")])
    world.tell()
    assert [world.find(*one) for one in PLAIN] == [None] * len(PLAIN)
    while True:
        assert world.find("host.y") is not None
        if not world.images.advance():
            break
    assert [one for one in PLAIN if world.find(*one) is None] == []
    assert not world.images.leave((FILTERS, CACHE))
    assert world.find("host.z") is not None
    world.zone("x.")
    world.tell()
    assert world.find("host.y") is None  # which zone answers may be another


@pytest.mark.usefixtures("per_turn")
def test_a_large_change_leaves_its_zone_alone_and_others_are_answered() -> None:
    world = plain_world()
    world.zone("y.")
    world.put("y.", "host", [("A", "192.0.2.7")])
    world.settle()
    count = 3 * zone_images.NAMES_PER_TURN
    for i in range(count):
        world.put("z.", f"host{i}", [("A", "192.0.2.8")])
    world.close()
    assert world.images.advance()
    assert world.find("host.y") is not None
    assert world.find("host.z") is None
    assert world.find("host0.z") is None
    world.settle()
    assert world.find(f"host{count - 1}.z") is not None
    assert world.find("host.z") is not None


class Counted:
    """A core that counts what it is asked for."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._core, name)


def many_zones(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(zone_images, "NAMES_PER_TURN", 20)
    monkeypatch.setattr(zone_images, "NAMES_PER_LOOK", 4)
    world = World()
    for i in range(40):
        world.zone(f"z{i}.")
        for j in range(15):
            world.put(f"z{i}.", f"host{j}", [("A", "192.0.2.1")])
    return world


def test_a_turn_does_no_more_the_more_zones_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    world = many_zones(monkeypatch)
    world.images.core = core = Counted(world.images.core)

    def settle() -> None:
        world.close()
        is_more = True
        while is_more:
            core.calls.clear()
            is_more = world.images.advance()
            assert core.calls["put"] + core.calls["remove"] <= 20
            assert core.calls["add"] + core.calls["drop"] + core.calls["speak"] <= 2 * 20 / 4

    settle()
    assert world.images.statistics().answered == 40
    for count in (1, 9, 15):
        for apex in world.all:
            for j in range(count):
                world.put(apex, f"host{j}", [("A", f"192.0.2.{count}")])
        settle()
        assert world.images.statistics().answered == 40
        assert all(world.find(f"host0.{apex}".strip(".")) for apex in world.all)
    world.is_wanted = False
    settle()
    assert world.images.statistics().names == 0


def test_zones_that_are_let_go_of_in_the_middle_are_brought_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = many_zones(monkeypatch)
    world.forwards = {names.from_text("forwarded."): ()}
    world.settle()
    world.is_wanted = False
    world.close()
    assert world.images.advance()
    assert world.images.statistics().names > 0
    assert world.find("host0.z39") is None
    world.put("z39.", "host0", [("A", "192.0.2.9")])
    world.change("no zone", "z38.")
    world.forwards = {}
    world.is_wanted = True
    world.settle()
    assert world.images.statistics().answered == 39
    assert world.images.statistics().left == 0
    assert all(world.find(f"host0.{apex}".strip(".")) for apex in world.all)


def test_small_zones_do_not_wait_for_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zone_images, "NAMES_PER_TURN", 20)
    world = World()
    for apex, count in (("large.", 500), ("small.", 3)):
        world.zone(apex)
        for i in range(count):
            world.put(apex, f"host{i}", [("A", "192.0.2.1")])
    world.close()
    for _ in range(6):
        assert world.images.advance()
    assert world.find("host0.small") is not None
    assert world.find("host0.large") is None


@pytest.mark.parametrize("seed", range(20))
def test_a_zone_that_changes_while_it_is_brought_is_brought_whole(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zone_images, "NAMES_PER_TURN", 7)
    chance = Random(seed)
    world = World()
    world.zone("z.")
    there = {f"host{i}" for i in range(60)}
    for owner in sorted(there):
        world.put("z.", owner, [("A", "192.0.2.1")])
    world.close()
    for turn in range(30):
        world.images.advance()
        for _ in range(chance.choice([0, 0, 1, 3])):
            gone = chance.choice(sorted(there))
            there.remove(gone)
            world.put("z.", gone, [])
            there.add(f"new{turn}")
            world.put("z.", f"new{turn}", [("A", "192.0.2.2")])
            world.close()
    world.settle()
    assert all(world.find(f"{owner}.z") for owner in there)
    assert world.images.statistics().names == len(there) + 1


def test_what_is_held_back_is_not_seen_before_it_is_shown() -> None:
    world = plain_world()
    world.settle()
    before = world.find("host.z")
    world.zones.hold()
    world.put("z.", "host", [("A", "192.0.2.9")])
    world.put("z.", "new", [("A", "192.0.2.9")])
    assert world.find("host.z") == before  # nobody was told of a change
    world.close()  # of something else
    assert not world.images.advance()
    assert world.find("host.z") is None
    world.zones.show()
    world.settle()
    assert world.find("host.z") not in (None, before)
    assert world.find("new.z") is not None


def test_a_zone_in_another_one_is_the_one_that_answers() -> None:
    world = plain_world()
    world.put("z.", "a.sub", [("A", "192.0.2.5")])
    world.settle()
    outer = world.find("a.sub.z")
    world.zone("sub.z.")
    world.settle()
    assert world.find("a.sub.z") not in (None, outer)
    world.change("unavailable", "sub.z.", False)
    world.settle()
    assert world.find("a.sub.z") is None
    world.change("no zone", "sub.z.")
    world.settle()
    assert world.find("a.sub.z") == outer


def test_what_is_forwarded_is_left_to_python() -> None:
    world = plain_world()
    sub, whole = names.from_text("under.here.z."), names.from_text("z.")
    for forwards in ({sub: ()}, {sub: (), whole: ()}, {}, {whole: ()}, {}):
        world.forwards = forwards
        world.settle()
        is_whole = whole in forwards
        assert (world.find("host.z") is None) is is_whole
        is_below = is_whole or sub in forwards
        assert (world.find("deep.under.here.z", "TXT") is None) is is_below
    world.forwards = {names.from_text("elsewhere."): ()}
    world.settle()
    world.zone("elsewhere.")
    world.settle()
    assert world.find("a.elsewhere") is None


def test_nothing_is_answered_or_kept_while_it_is_not_wanted() -> None:
    world = plain_world()
    world.settle()
    assert world.find("host.z") is not None
    held = world.images.statistics()
    assert (held.answered, held.left, held.names) == (1, 0, 12)
    world.is_wanted = False
    world.settle()
    assert world.find("host.z") is None
    assert world.images.statistics().names == 0
    assert world.zones.touched is None
    assert world.all["z."].unseen is None
    world.put("z.", "host", [("A", "192.0.2.9")])
    world.is_wanted = True
    world.settle()
    assert world.find("host.z") is not None
    assert world.images.statistics().names == held.names


def test_a_zone_that_finds_no_room_is_left_to_python_and_others_have_room() -> None:
    world = World(bytes_max=8_000)
    for apex in ("large.z.", "z."):
        world.zone(apex)
        world.put(apex, "host", [("A", "192.0.2.1")])
    world.settle()
    assert world.find("host.large.z") is not None
    for i in range(200):
        world.put("large.z.", f"host{i}", [("A", "192.0.2.1")])
    world.settle()
    assert world.find("host.large.z") is None
    assert world.find("none.large.z") is None
    assert world.find("host.z") is not None
    seen = world.images.statistics()
    assert (seen.answered, seen.left, seen.full) == (1, 1, 1)
    assert seen.bytes < 8_000
    world.zone("large.z.")  # another one, which has room
    world.settle()
    assert world.find("none.large.z") is not None
    assert world.images.statistics().full == 0


def fill(world: World, apex: str, count: int) -> None:
    world.zone(apex)
    for i in range(count):
        world.put(apex, f"host{i}", [("A", "192.0.2.1")])


@pytest.mark.usefixtures("per_turn")
@pytest.mark.parametrize("text", ['"x"', f'"{1:0250}"'], ids=["short", "long"])
def test_a_zone_that_cannot_fit_keeps_no_other_one_out(text: str) -> None:
    world = World(bytes_max=30_000)
    fill(world, "large.", 0)
    for i in range(600):  # which are begun, and too many
        world.put("large.", f"host{i}", [("TXT", text)])
    for apex in ("a.", "b.", "c."):
        fill(world, apex, 80)
    world.settle()
    seen = world.images.statistics()
    assert (seen.answered, seen.full) == (3, 1)
    for apex in "abc":
        assert world.find(f"host7.{apex}") is not None
    world.put("c.", "host7", [("A", "192.0.2.9")])
    world.settle()
    assert world.find("host7.c") is not None


def test_a_zone_that_waits_for_room_is_taken_in_when_there_is_some() -> None:
    world = World(bytes_max=30_000)
    for apex in ("a.", "b.", "c."):
        fill(world, apex, 200)
    world.settle()
    seen = world.images.statistics()
    assert (seen.answered, seen.full) == (2, 1)
    (full,) = [apex for apex in world.all if world.find(f"host7.{apex}".strip(".")) is None]
    (other, another) = [apex for apex in world.all if apex != full]
    world.change("no zone", other)
    world.settle()
    assert world.find(f"host7.{full}".strip(".")) is not None
    assert (world.images.statistics().answered, world.images.statistics().full) == (2, 0)
    fill(world, other, 200)
    world.settle()
    assert world.images.statistics().full == 1
    for i in range(150):  # or where names go
        world.put(another, f"host{i}", [])
    world.settle()
    assert world.images.statistics().full == 0
    assert all(world.find(f"host177.{apex}".strip(".")) for apex in world.all)


def test_while_changes_are_held_back_nothing_is_tried_again() -> None:
    world = World(bytes_max=10_000)
    for apex in ("a.", "b."):
        fill(world, apex, 100)
    world.settle()
    assert world.images.statistics().full == 1
    (served,) = [apex for apex in world.all if world.find(f"host7.{apex}".strip("."))]
    world.change("no zone", served)
    world.close()
    world.images.advance()
    world.zones.hold()
    for _ in range(100):
        if not world.images.advance():
            break
    else:
        pytest.fail("there is no end to it")
    world.zones.show()
    world.settle()
    assert world.images.statistics().full == 0


def test_what_is_too_large_for_any_datagram_is_left_to_python() -> None:
    world = plain_world()
    addresses = tuple(i.to_bytes(4, "big") for i in range(5_000))
    world.all["z."].replace(names.from_text("many.z."), [RRset(1, 300, addresses)])
    world.put("z.", "long", [("TXT", text) for text in ('"%0250d" ' * 5 % (1, 2, 3, 4, 5),)])
    world.settle()
    for rest in (b"", edns(4096)):
        assert world.find("many.z", rest=rest) is None
        assert world.find("long.z", "TXT", rest=rest) is None
        assert world.find("many.z", "AAAA", rest=rest) is not None


def test_when_something_goes_wrong_python_answers_and_all_is_brought_anew_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [RuntimeError("a fault of ours")]

    def fail() -> Mapping[Name, object]:
        if faults:
            raise faults.pop()
        return {}

    async def main() -> None:
        world.images.changed()
        async with asyncio.timeout(60):
            while world.images.statistics().faults == 0:
                assert world.find("host.z") is None
                await asyncio.sleep(0)
            while world.find("host.z") is None:
                await asyncio.sleep(0)

    monkeypatch.setattr(zone_images, "RETRY_S", 0.01)
    world = plain_world()
    world.settle()
    before = world.find("host.z")
    world.images.follow(world.zones, fail, lambda: True)
    world.put("z.", "host", [("A", "192.0.2.9")])
    asyncio.run(main())
    assert world.find("host.z") != before
    assert world.find("none.z") is not None
    assert world.images.statistics().faults == 1
    assert "copy failed" in caplog.text
    assert "a fault of ours" in caplog.text


def test_as_long_as_something_is_wrong_nothing_is_answered_and_nothing_kept() -> None:
    def fail() -> Mapping[Name, object]:
        raise RuntimeError("a fault of ours")

    world = plain_world()
    world.settle()
    assert world.find("host.z") is not None
    world.images.follow(world.zones, fail, lambda: True)
    world.close()
    with pytest.raises(RuntimeError, match="a fault of ours"):
        world.settle()
    assert world.find("host.z") is None
    world.settle()
    assert world.find("none.z") is None
    assert world.images.statistics().names == 0


def test_memory_comes_back_when_names_and_zones_go() -> None:
    world = World()
    world.zone("z.")
    world.settle()
    before = world.images.statistics()
    for _ in range(3):
        for i in range(500):
            world.put("z.", f"host{i}.deep", [("A", "192.0.2.1")])
        world.settle()
        assert world.images.statistics().names == before.names + 501
        for i in range(500):
            world.put("z.", f"host{i}.deep", [])
        world.settle()
        assert world.images.statistics() == before
        world.zone("z.")
        world.settle()
        assert world.images.statistics() == before
    world.change("no zone", "z.")
    world.settle()
    assert world.images.statistics().bytes == 0


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("_1", "_2", "set_aside", *"abcdefg")]


def test_what_is_freed_in_turns_is_freed_for_good() -> None:
    world = World()
    world.zone("z.")
    for i in range(2_000):
        world.put("z.", f"host{i}", [("A", "192.0.2.1")])
    world.settle()
    core = world.images.core
    core.close()
    core.drop(world.all["z."].key)
    # What the C library joins with others all at once, some time later; others than glibc do not.
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", Mallinfo)
    mallinfo.restype = Mallinfo
    before = mallinfo().set_aside
    assert core.sweep(1_000)  # no more than that: what is allocated next may have all joined
    assert mallinfo().set_aside < before + 100


class Told:
    """A handler that the engine asks for what the zones leave to it."""

    hears_repeats = True

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.asked = 0
        self.answers: list[tuple[bytes, bytes, int, int]] = []

    def handle(self, packet: bytes, client: str, proto: str) -> Any:
        self.asked += 1
        return self.pipeline.handle(packet, client, proto)

    def weigh(self) -> int:
        return 1

    def repeated(self, proto: str, repeats: Any) -> None: ...

    def answered(self, answers: Any) -> None:
        self.answers += answers

    def missed(self, count: int) -> None: ...


@pytest.mark.parametrize(
    ("name", "rtype"), [*PLAIN, ("WwW.Wild.z", "A"), ("HOST.Z", "TYPE300"), ("nOne.z", "TYPE65")]
)
def test_the_query_log_says_of_an_answer_what_the_pipeline_says(name: str, rtype: str) -> None:
    notes = QueryNotes()
    world = plain_world(notes)
    packet = query(name, type_from_text(rtype))
    wire = world.right(packet)
    assert wire is not None
    (noted,) = notes.take(5).facts
    fact = fact_of((ip_address("192.0.2.1").packed, packet[2:], wire[3] & 15, 1), noted.ts_us)
    assert fact == msgspec.structs.replace(noted, duration_us=0, key=b"")


def test_threads_answer_count_and_tell_of_what_they_answered() -> None:
    async def main() -> None:
        world = plain_world()
        told = Told(world.pipeline)
        (bound,) = bind_all([Listener("udp", "127.0.0.1:0")])
        table = AnswerTable(100)
        world.images = ZoneImages(table)
        world.images.follow(world.zones, dict, lambda: True)
        engine = NativeEngine(told, bound.sockets, table=table, zones=world.images.core)
        await engine.start()
        world.images.changed()
        async with asyncio.timeout(60):
            while not world.images.statistics().answered:
                await asyncio.sleep(0)
            for name, rtype in [*PLAIN, *LEFT]:
                packet = query(name, type_from_text(rtype))
                assert await ask(bound.address, packet) == world.right(packet)
            assert told.asked == len(LEFT)
            await engine.stop()  # and tells of the rest
        expected = [query(name, type_from_text(rtype))[2:] for name, rtype in PLAIN]
        assert [answer[:2] for answer in told.answers] == [(b"\x7f\0\0\1", one) for one in expected]
        codes = [answer[2] for answer in told.answers]
        assert (codes.count(0), codes.count(3)) == (13, 3)
        seen = engine.statistics()
        assert seen.zone_answers == {
            (1, 0): 7, (1, 3): 2, (15, 0): 1, (16, 0): 2, (28, 0): 2, (65, 0): 1, (0, 3): 1,
        }  # fmt: skip
        assert (seen.received, seen.answered) == (len(PLAIN) + len(LEFT),) * 2

    asyncio.run(main())


async def ask(address: str, packet: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, split_address(address))
        await loop.sock_sendall(sock, packet)
        return await loop.sock_recv(sock, 4096)


def bad(call: Callable[..., Any], *how: Any) -> None:
    with pytest.raises(ValueError, match="makes no sense here"):
        call(*how)


def test_what_is_answered_from_is_changed_while_it_is_closed_or_refused() -> None:
    world = plain_world()
    world.settle()
    core, apex = world.images.core, names.from_text("z.")
    host = names.from_text("host.z.")
    before = world.find("host.z")
    bad(core.put, host, len(apex), b"", False)
    bad(core.remove, host, len(apex))
    bad(core.drop, apex)
    bad(core.add, names.from_text("host.z."))
    assert world.find("host.z") == before
    core.speak(apex, b"", ())
    core.remove(host, len(apex))  # of a mute zone
    bad(core.drop, apex)
    core.close()
    core.drop(apex)
    assert core.statistics()[0] == 0


def test_a_turn_between_a_change_and_its_notice_closes_the_zones_itself() -> None:
    world = plain_world()
    world.settle()
    world.put("z.", "host", [("A", "192.0.2.9")])
    world.zone("here.z.")
    while world.images.advance():  # one that builds, or frees
        pass
    assert world.find("host.z") is not None
    assert world.find("deep.under.here.z", "TXT") is not None


def test_what_is_no_name_no_image_or_of_no_zone_is_refused() -> None:
    core = World().images.core
    apex = names.from_text("z.")
    for no_name in (b"", b"\1", b"\1z", b"\1z\0\0", b"\x40" + bytes(64), b"\1a" * 130 + b"\0"):
        bad(core.add, no_name)
        bad(core.put, no_name, 1, b"", False)
    assert core.add(apex)
    bad(core.add, apex)
    head = b"\0\1\0\0\0\1\0\0\0"
    for no_image in (b"x", head, head + b"\1", head + b"\2x", head[:6] + b"\0\1\0\0" + bytes(9)):
        bad(core.put, b"\1a" + apex, len(apex), no_image, False)
    bad(core.put, b"\1a" + apex, 1, b"", False)
    bad(core.put, b"\1a" + apex, len(apex) + 1, b"", False)
    bad(core.put, b"\1a" + apex, len(apex) + 9, b"", False)
    bad(core.put, b"\1a" + apex, -1, b"", False)
    bad(core.speak, apex, b"soa", [2])
    bad(core.speak, apex, b"soa", [1 << 40])
    bad(core.speak, apex, bytes(1233), [])
    bad(core.speak, b"\1y\0", b"soa", [])
    with pytest.raises(ValueError, match="more pointers"):
        core.speak(apex, bytes(20), [0] * 4)
    assert core.statistics()[:2] == (1, 0)
