"""The cache over a restart: what is written, what is read back, and dumps that are of no use."""

import asyncio
import contextlib
import logging
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters import cache_dump
from kudurru.adapters.cache_dump import (
    DumpDamaged,
    DumpIncompatible,
    DumpStale,
    encode_part,
    read_dump,
    write_dump,
)
from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.dns.responses import KeptAnswer, Message
from kudurru.domain.settings import CacheSettings
from kudurru.entrypoints.cache_keeping import CacheKeeper
from kudurru.projections.message_cache import MessageCache
from tests.upstreams import Rig, always, silent

DAY_US = 86_400_000_000
ONE = "192.0.2.11"
MESSAGE = Message(0, (1, 0, 0), bytes(16), (4,), 60)
KEPT = KeptAnswer(b"\1a\0\0\1\0\1\0", 5, 60_000_000, ONE, MESSAGE)


def keeper_of(rig: Rig, path: Path) -> CacheKeeper:
    return CacheKeeper(rig.cache, path, rig.clock)


def rig_with(*answer: str) -> Rig:
    rig = Rig(ONE)
    rig.scripts[ONE] = always(*answer)
    return rig


def test_the_time_that_a_server_was_down_counts(tmp_path: Path) -> None:
    """The case fw29 of the stories from bug reports."""
    path = tmp_path / "cache.dump"
    before = rig_with("per.example.net. 60 IN A 192.0.2.9")
    assert before.ask("per.example.net").rcode == "NOERROR"
    before.pass_time(5)
    asyncio.run(keeper_of(before, path).dump())
    after = rig_with("per.example.net. 60 IN A 192.0.2.10")
    after.clock.step_wall(before.clock.now_us() - after.clock.now_us() + 15_000_000)
    assert keeper_of(after, path).restore(DAY_US) == 1
    asked = after.ask("per.example.net")
    assert asked.texts == ["per.example.net. 40 A 192.0.2.9"]
    assert not after.asked
    after.pass_time(45)
    assert after.ask("per.example.net").texts == ["per.example.net. 60 A 192.0.2.10"]


def test_what_expired_meanwhile_is_a_stale_answer_or_gone(tmp_path: Path) -> None:
    path = tmp_path / "cache.dump"
    before = rig_with("st.example. 60 IN A 192.0.2.9")
    assert before.ask("st.example").rcode == "NOERROR"
    asyncio.run(keeper_of(before, path).dump())
    for hours, count in ((1, 1), (13, 0)):
        after = Rig(ONE)
        after.scripts[ONE] = lambda *_: None
        after.clock.step_wall(hours * 3_600_000_000)
        assert keeper_of(after, path).restore(DAY_US) == count
        assert after.ask("st.example").rcode == ("NOERROR" if count else "SERVFAIL")


def test_a_clock_that_went_back_makes_no_answer_younger(tmp_path: Path) -> None:
    path = tmp_path / "cache.dump"
    before = rig_with("www.example. 100 IN A 192.0.2.9")
    assert before.ask("www.example").rcode == "NOERROR"
    before.pass_time(30)
    asyncio.run(keeper_of(before, path).dump())
    after = rig_with()
    after.clock.step_wall(-5_000_000_000)
    assert keeper_of(after, path).restore(DAY_US) == 1
    assert after.ask("www.example").texts == ["www.example. 70 A 192.0.2.9"]


def test_flags_and_negative_answers_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "cache.dump"
    rig = Rig(ONE)
    soa = "example. 60 IN SOA ns.example. h.example. 1 2 3 4 60"
    rig.scripts[ONE] = always(authority=[soa], rcode="NXDOMAIN")
    asked = rig.ask("nope.example", want_dnssec=True)
    rig.pass_time(0)
    first = asked.wire[2:]
    asyncio.run(keeper_of(rig, path).dump())
    after = Rig(ONE)
    after.scripts[ONE] = silent
    assert keeper_of(after, path).restore(DAY_US) == 1
    assert after.ask("nope.example", want_dnssec=True).wire[2:] == first
    assert not after.ask("nope.example").is_answered  # asked without DO it is another question


def test_a_dump_is_for_its_owner_only_and_replaces_the_last_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "cache.dump"
    write_dump(path, [encode_part([KEPT])], 1)
    write_dump(path, [encode_part([KEPT]), encode_part([KEPT, KEPT])], 2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["cache.dump"]
    dump = read_dump(path, 3, 10)
    assert dump is not None
    assert (dump.answers, dump.written_us) == ([KEPT] * 3, 2)


def test_no_dump_is_no_fault(tmp_path: Path) -> None:
    assert read_dump(tmp_path / "cache.dump", 0, 10) is None


def spoil(path: Path, kind: str) -> None:
    octets = bytearray(path.read_bytes())
    match kind:
        case "magic":
            octets[0] ^= 1
        case "version":
            octets[4] += 1
        case "flags":
            octets[5] |= 0x80
        case "short":
            octets = octets[:5]
        case "cut":
            octets = octets[:-4]
        case "bit":
            octets[len(octets) // 2 + 5] ^= 1
        case "more":
            octets += b"x"
        case "content":
            odd = KeptAnswer(KEPT.key, 5, 1, ONE, Message(0, (1, 0, 0), b"short", (400,), 60))
            write_dump(path, [encode_part([odd])], 1)
            return
        case "type":
            write_dump(path, [b"\0\0\0\2\x91\x01"], 1)
            return
    path.write_bytes(octets)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("magic", DumpIncompatible),
        ("version", DumpIncompatible),
        ("flags", DumpIncompatible),
        ("short", DumpIncompatible),
        ("cut", DumpDamaged),
        ("bit", DumpDamaged),
        ("more", DumpDamaged),
        ("content", DumpDamaged),
        ("type", DumpDamaged),
        ("old", DumpStale),
    ],
)
def test_a_dump_of_no_use_is_one_line_and_an_empty_cache(
    tmp_path: Path, kind: str, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache.dump"
    write_dump(path, [encode_part([KEPT])], 1)
    spoil(path, kind)
    now_us = 100 if kind == "old" else 5
    with pytest.raises(error):
        read_dump(path, now_us, 10)
    cache = MessageCache(CacheSettings())
    with caplog.at_level(logging.INFO, "kudurru"):
        assert CacheKeeper(cache, path, ManualClock(now_us)).restore(10) == 0
    assert len(cache) == 0
    (line,) = caplog.messages
    assert error.__name__ in line


def test_a_disk_that_refuses_is_one_line_and_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_with()
    asyncio.run(keeper_of(rig, tmp_path / "nowhere" / "cache.dump").dump())
    (line,) = caplog.messages
    assert "could not be written" in line


@given(st.binary(max_size=200))
def test_any_octets_are_a_dump_or_one_of_the_errors(octets: bytes) -> None:
    head = cache_dump.MAGIC + b"\1"
    for whole in (octets, head + b"\0" + octets, head + b"\1" + octets):
        path = _Memory(whole)
        with contextlib.suppress(DumpDamaged, DumpIncompatible, DumpStale):
            read_dump(path, 5, 10)  # type: ignore[arg-type]  # all that is asked of a path


class _Memory:
    def __init__(self, octets: bytes) -> None:
        self._octets = octets

    def read_bytes(self) -> bytes:
        return self._octets


def test_the_loop_turns_while_a_large_cache_is_written(tmp_path: Path) -> None:
    cache = MessageCache(CacheSettings())
    for i in range(20_000):
        cache.put(b"\5%05d\0\0\1\0\1\0" % i, KEPT.message, 0, 60_000_000, ONE)
    turns = 0

    async def main() -> None:
        nonlocal turns
        keeper = CacheKeeper(cache, tmp_path / "cache.dump", ManualClock())
        dumping = asyncio.create_task(keeper.dump())
        while not dumping.done():
            await asyncio.sleep(0)
            turns += 1

    asyncio.run(main())
    assert turns > 20_000 // cache_dump.PART
