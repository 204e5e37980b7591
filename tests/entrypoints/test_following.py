"""A node that follows another one over its API."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest

from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain import replica
from kudurru.domain.epochs import epoch_in, first_origin
from kudurru.domain.errors import (
    Diverged,
    Follows,
    KudurruError,
    LogDamaged,
    StorageFailed,
    Unreachable,
)
from kudurru.domain.events import OBJECT_APPLIED
from kudurru.domain.objects import key_of
from kudurru.domain.ports import Copied, LogHead, VerifiableLog
from kudurru.domain.replica import Page, pages
from kudurru.domain.verify import verify
from kudurru.entrypoints import leader as leader_module
from kudurru.entrypoints.follow_place import read_place
from kudurru.entrypoints.rest import feed
from kudurru.entrypoints.rest.status import Status, error_from
from kudurru.entrypoints.upkeep import RedactRequest
from tests.api import refused, serving
from tests.followers import (
    PATIENCE_S,
    Follower,
    Leading,
    follows,
    leading,
    opened,
    settings_of,
    until,
)
from tests.nodes import TESTER, a_change
from tests.objects import WWW_KEY, drop, put, www, zone


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "SIGN_AFTER_S", 0.01)
    monkeypatch.setattr(feed, "PULSE_S", 0.05)


class Pair:
    """A leader's folder, and that of a follower."""

    def __init__(self, tmp: Path) -> None:
        self.one, self.two = tmp / "one", tmp / "two"
        self.one.mkdir()
        self.two.mkdir()

    @asynccontextmanager
    async def leading(
        self, name: str = "log.db", seed: int = 1, *, has_signed: bool = True
    ) -> AsyncIterator[Leading]:
        with opened(self.one / name, create=True) as log:
            async with leading(log, self.one, seed, has_signed=has_signed) as leader:
                yield leader

    @asynccontextmanager
    async def following(self, leader: Leading) -> AsyncIterator[Follower]:
        origin = first_origin(leader.node.log)
        identity = leader.node.log.log_id, epoch_in(origin)
        with opened(self.two / "log.db", create=True, copy_of=identity) as log:
            async with follows(log, settings_of(leader, self.two), self.two) as follower:
                yield follower


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def check_whole(path: Path) -> None:
    with opened(path) as log:
        found = verify(log)
        assert found.is_whole, found.damages


def test_what_is_written_to_a_leader_is_served_by_its_follower(pair: Pair) -> None:
    async def run() -> None:
        async with pair.leading() as leader:
            await leader.write(put(zone()), put(www()))
            async with pair.following(leader) as follower:
                await until(lambda: follower.has(leader))
                await until(follower.following.in_step.is_set)
                await leader.write(put(www("192.0.2.9")))
                await until(lambda: follower.has(leader))
                digests = leader.node.views.digests()
                assert follower.node.views.digests() == digests
                seen = follower.following.statistics()
                assert seen.is_connected
                assert seen.copied == leader.node.log.head().seq
                assert not follower.following.warnings()

    asyncio.run(run())
    check_whole(pair.two / "log.db")


def test_a_leader_that_has_signed_nothing_yet_does_for_its_first_follower(pair: Pair) -> None:
    async def run() -> None:
        async with pair.leading(has_signed=False) as leader:
            await leader.write(put(zone()), put(www()))
            assert leader.node.log.newest_checkpoint() is None
            async with pair.following(leader) as follower:
                await until(lambda: follower.has(leader))
                assert follower.following.statistics().sessions == 1

    asyncio.run(run())


def test_a_follower_that_cannot_store_says_so_at_once_though_its_leader_is_silent(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the next word of the leader, at worst until that counted as gone."""
    goes_on = threading.Event()

    def halting(log: VerifiableLog, after: int, size: int) -> Iterator[Page]:
        for page in pages(log, after, size):
            yield page
            goes_on.wait()

    take_over = SQLiteEventLog.take_over

    def full(log: SQLiteEventLog, coming: Iterable[Copied]) -> LogHead | None:
        if goes_on.is_set():
            return take_over(log, coming)
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(replica, "pages", halting)
    monkeypatch.setattr(SQLiteEventLog, "take_over", full)
    monkeypatch.setattr(leader_module, "SILENCE_S", 10 * PATIENCE_S)

    async def run() -> None:
        async with pair.leading() as leader:
            try:
                await leader.write(put(zone()), put(www()))
                async with pair.following(leader) as follower:
                    await until(lambda: isinstance(follower.following.problem, StorageFailed))
                    goes_on.set()
                    await until(lambda: follower.has(leader))
            finally:
                goes_on.set()

    asyncio.run(run())
    check_whole(pair.two / "log.db")


def test_nothing_is_written_by_who_follows(pair: Pair) -> None:
    async def run() -> None:
        async with pair.leading() as leader, pair.following(leader) as follower:
            follower.node.follows = Follows(leader.url)
            await until(lambda: follower.has(leader))
            with pytest.raises(Follows, match=leader.url):
                await follower.writer.submit(a_change(put(zone())))

    asyncio.run(run())


def test_what_is_kept_beside_the_log_comes_too_and_what_is_redacted_goes(pair: Pair) -> None:
    async def run() -> None:
        async with pair.leading() as leader, pair.following(leader) as follower:
            await leader.write(put(zone()), put(www("192.0.2.1")))
            await leader.write(put(www("192.0.2.2")))
            token = key_of("APIToken", "", "follower-0")
            await until(lambda: follower.has(leader))
            assert follower.log.secret(token) == leader.node.log.secret(token) is not None
            forgotten = asyncio.Event()

            async def forget() -> None:
                forgotten.set()

            keeping = asyncio.create_task(follower.following.keep_redacted(forget))
            seq = next(
                event.seq
                for event in leader.node.log.read(key=WWW_KEY)
                if event.type == OBJECT_APPLIED
            )
            await leader.write(put(zone(soa={"refresh": 7300})))
            await leader.api.writer.redact(RedactRequest(seq=seq, reason="private"), TESTER)
            await until(lambda: follower.has(leader))
            event = follower.log.get(seq)
            assert event is not None
            assert event.body is None
            await until(forgotten.is_set)
            keeping.cancel()

    asyncio.run(run())
    check_whole(pair.two / "log.db")


def test_the_api_of_a_follower_says_where_to_write() -> None:
    async def run() -> None:
        async with serving() as api:
            api.node.follows = Follows("https://ns1.example:8080")
            body = {
                "apiVersion": "kudurru.io/v1alpha1",
                "kind": "DNSZone",
                "metadata": {"name": "example.org"},
                "spec": {"zoneName": "example.org"},
            }
            answer = await api.ask("PUT", "/dnszones/example.org", body)
            status = refused(answer, 409, "Follows")
            assert status["details"]["name"] == "https://ns1.example:8080"
            told = error_from(msgspec.convert(status, Status))
            assert isinstance(told, Follows)
            found = await api.ask("GET", "/log")
            assert found.json["state"] == "follows"
            assert (await api.ask("GET", "/log?at=1")).json["at"]["position"] == 1

    asyncio.run(run())


def test_a_follower_goes_on_after_its_leader_was_away(pair: Pair) -> None:
    async def run() -> None:
        async with pair.leading() as leader:
            await leader.write(put(zone()))
            async with pair.following(leader) as follower:
                await until(lambda: follower.has(leader))
                await leader.vanish()
                await until(lambda: isinstance(follower.following.problem, Unreachable))
                await leader.write(put(www()))
                await leader.write(drop(put(www()).manifest.key))
                await leader.listen()
                await until(lambda: follower.has(leader))
                assert follower.following.problem is None
                assert follower.following.statistics().sessions > 1

    asyncio.run(run())
    check_whole(pair.two / "log.db")


def test_a_follower_begins_where_it_ended(pair: Pair) -> None:
    async def run() -> None:
        async with pair.leading() as leader:
            async with pair.following(leader) as follower:
                await until(lambda: follower.has(leader))
            await leader.write(put(zone()))
            async with pair.following(leader) as follower:
                assert follower.following.in_step.is_set()
                await until(lambda: follower.has(leader))
                copied = follower.following.statistics().copied
                assert 0 < copied < leader.node.log.head().seq

    asyncio.run(run())


def test_the_key_of_the_first_contact_is_kept(pair: Pair) -> None:
    async def run() -> str:
        async with pair.leading() as leader, pair.following(leader) as follower:
            await until(lambda: follower.has(leader))
            return str(leader.checkpointer.key)

    key = asyncio.run(run())
    place = read_place(pair.two / "follow")
    assert place is not None
    assert place.keys == [key]


def test_a_follower_of_itself_or_of_a_follower_of_its_own_is_refused(pair: Pair) -> None:
    async def run() -> None:
        async with pair.leading() as leader, pair.following(leader) as follower:
            await until(lambda: follower.has(leader))
            for instances, why in (
                ([follower.standing.instance], "is this node itself"),
                (["other", follower.standing.instance], "follows this node"),
            ):
                leader.api.context.standing.above = lambda known=instances: known[1:]
                leader.api.context.standing.instance = instances[0]
                await leader.vanish()
                await leader.listen()
                await until(lambda text=why: text in str(follower.following.problem))
                assert isinstance(follower.following.problem, Diverged)

    asyncio.run(run())


def problem_with(pair: Pair, name: str, seed: int) -> tuple[KudurruError, int, list[str]]:
    """What a follower that has a log says of another leader at the same address, how much it has
    then, and what it warns of."""

    async def run() -> tuple[KudurruError, int, list[str]]:
        async with pair.leading(name, seed) as leader:
            with opened(pair.two / "log.db") as log:
                had = int(log.head().seq)
                async with follows(log, settings_of(leader, pair.two), pair.two) as follower:
                    await until(lambda: follower.following.problem is not None)
                    assert follower.following.problem is not None
                    assert log.head().seq == had
                    return follower.following.problem, had, follower.following.warnings()

    return asyncio.run(run())


def copied(pair: Pair, changes: int = 3) -> int:
    """Let a follower have some of a leader's log; how much."""

    async def run() -> int:
        async with pair.leading() as leader:
            await leader.write(put(zone()))
            for i in range(changes):
                await leader.write(put(www(f"192.0.2.{i}")))
            async with pair.following(leader) as follower:
                await until(lambda: follower.has(leader))
                return int(follower.log.head().seq)

    return asyncio.run(run())


def save(source: Path, target: Path) -> None:
    """A backup, as of a file system."""
    with closing(sqlite3.connect(source)) as db, closing(sqlite3.connect(target)) as other:
        db.backup(other)


def test_a_leader_that_was_set_back_is_refused(pair: Pair) -> None:
    copied(pair, 1)
    save(pair.one / "log.db", pair.one / "old.db")
    copied(pair, 8)
    error, _, warnings = problem_with(pair, "old.db", 1)
    assert isinstance(error, Diverged)
    assert error.position
    assert "Follower: the log of" in warnings[0]


def test_a_leader_that_went_on_otherwise_is_refused_with_the_position(pair: Pair) -> None:
    copied(pair, 1)
    save(pair.one / "log.db", pair.one / "old.db")
    copied(pair, 8)

    async def go_on() -> None:
        async with pair.leading("old.db") as leader:
            for i in range(40):
                await leader.write(put(www(f"198.51.100.{i}")))
            await leader.api.writer.checkpoint()

    asyncio.run(go_on())
    error, _, _ = problem_with(pair, "old.db", 1)
    assert isinstance(error, Diverged)
    with opened(pair.one / "old.db") as theirs, opened(pair.two / "log.db") as ours:
        pairs = zip(theirs.rows(), ours.rows(), strict=False)
        assert error.position == next(one.seq for one, other in pairs if one != other)
    assert "is a fork" in str(error)


def test_the_log_of_a_stranger_is_refused(pair: Pair) -> None:
    copied(pair)
    (pair.one / "log.key").unlink()

    async def make() -> None:
        with opened(pair.one / "other.db", create=True, copy_of=("f" * 32, 1)) as log:
            async with leading(log, pair.one, 4):
                pass

    asyncio.run(make())
    error, _, _ = problem_with(pair, "other.db", 4)
    assert isinstance(error, Diverged)
    assert "has another log" in str(error)
    assert "--adopt" in str(error)


def test_a_leader_whose_file_was_changed_is_refused_with_the_position(pair: Pair) -> None:
    """Rows that the follower does not have yet."""

    async def run() -> None:
        async with pair.leading() as leader:
            await leader.write(put(zone()))
            async with pair.following(leader) as follower:
                await until(lambda: follower.has(leader))
                await leader.vanish()
                had = int(follower.log.head().seq)
                for i in range(5):
                    await leader.write(put(www(f"192.0.2.{i}")))
                await leader.api.writer.checkpoint()
                bad = had + 2
                tamper(pair.one / "log.db", bad)
                await leader.listen()
                await until(lambda: isinstance(follower.following.problem, LogDamaged))
                error = follower.following.problem
                assert isinstance(error, LogDamaged)
                assert error.position == bad
                assert follower.log.head().seq == had

    asyncio.run(run())
    check_whole(pair.two / "log.db")


def tamper(path: Path, seq: int) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TRIGGER log_is_not_changed")
        body = db.execute("SELECT body FROM log WHERE seq = ?", (seq,)).fetchone()[0]
        changed = body.replace(b"192.0.2.", b"192.0.9.") if b"192.0.2." in body else body + b" "
        db.execute("UPDATE log SET body = ? WHERE seq = ?", (changed, seq))
        db.commit()
