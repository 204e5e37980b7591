"""Promotions: what keeps them from being made, and what the peers of a node are asked for."""

import asyncio
from pathlib import Path

import pytest

from kudurru.domain.chain import origin_of
from kudurru.domain.errors import Conflict, Diverged, NotFound
from kudurru.domain.events import Who
from kudurru.domain.lineage import LogAbout
from kudurru.domain.ports import VerifiableLog
from kudurru.domain.settings import FollowSettings
from kudurru.domain.verify import verify
from kudurru.entrypoints.others import Heard, Peers, ask_all
from kudurru.entrypoints.promoting import begin_epoch, check_follows, check_promotion
from kudurru.entrypoints.rest.feed import about_log
from kudurru.entrypoints.standing import Standing
from kudurru.entrypoints.wiring import Node
from tests.followers import leading, opened, settings_of
from tests.nodes import a_change, memory_node
from tests.objects import put, www, zone

WHO = Who(actor="user:1000", source="test", reason="the leader is lost")


def log_of(node: Node) -> VerifiableLog:
    return node.log  # type: ignore[return-value]


def promoted() -> Node:
    node = memory_node()
    node.commit(a_change(put(zone())))
    node.take_in(begin_epoch(node, WHO))
    return node


def about(node: Node, name: str = "other") -> LogAbout:
    return about_log(log_of(node), Standing(name, name, node))


def test_a_promotion_begins_an_epoch_in_log_and_views() -> None:
    node = memory_node()
    node.commit(a_change(put(zone())))
    before = origin_of(node.log.log_id, 1)
    recorded = begin_epoch(node, WHO)
    node.take_in(recorded)
    assert node.log.epoch == 2
    said = about(node)
    assert said.first_origin == before
    assert [(one.position, one.origin) for one in said.epochs] == [
        (recorded[0].seq, origin_of(node.log.log_id, 2))
    ]
    result = node.commit(a_change(put(www())))
    assert int(result.outcomes[0].resource_version) >> 40 == 2
    found = node.objects.find(put(zone()).manifest.key)
    assert found is not None
    assert int(found.resource_version) >> 40 == 2
    assert verify(log_of(node)).is_whole


def test_a_node_that_follows_nobody_is_not_promoted() -> None:
    with pytest.raises(NotFound, match="follows nobody"):
        check_follows(memory_node())


@pytest.mark.parametrize(
    ("heard", "why", "forced"),
    [
        ("away", "could not be asked", "could not be asked"),
        ("leads", "takes writes", "is left behind"),
        ("promoted", "was promoted at position", None),
        ("stranger", None, None),
        ("itself", None, None),
    ],
)
def test_what_keeps_a_node_from_being_promoted(
    heard: str, why: str | None, forced: str | None
) -> None:
    """`why` it is refused, and what a forced one is warned of, None: refused all the same, or
    nothing."""
    node = memory_node()
    node.commit(a_change(put(zone())))
    stranger = promoted()
    stranger.log.log_id = "another"  # type: ignore[misc]
    said = {
        "away": Heard("http://x", None, "no route"),
        "leads": Heard("http://x", about(node)),
        "promoted": Heard("http://x", about(promoted())),
        "stranger": Heard("http://x", about(stranger)),
        "itself": Heard("http://x", about(node, "me")),
    }[heard]
    if why is None:
        assert check_promotion(log_of(node), [said], "me", force=False) == []
        return
    with pytest.raises(Conflict, match=f"http://x.*{why}"):
        check_promotion(log_of(node), [said], "me", force=False)
    if forced is None:
        with pytest.raises(Conflict, match=why):
            check_promotion(log_of(node), [said], "me", force=True)
        return
    warnings = check_promotion(log_of(node), [said], "me", force=True)
    assert len(warnings) == 1
    assert forced in warnings[0]


def test_a_node_writes_once_its_peers_were_asked_and_no_more_once_one_was_promoted(
    tmp_path: Path,
) -> None:
    """The old leader comes back: it has the log that the other went on from."""

    async def run() -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        one.mkdir()
        two.mkdir()
        with opened(one / "log.db", create=True) as log:
            async with leading(log, one) as other:
                await other.write(put(zone()))
                mine = memory_node()
                mine.log.log_id = log.log_id  # type: ignore[misc]
                settings = settings_of(other, two, other.url)
                peers = Peers(mine, settings, Standing("ns1", "me", mine))
                cleared = 0

                async def clear() -> None:
                    nonlocal cleared
                    cleared += 1

                peers.on_cleared = clear
                assert "promoted" in str(mine.why_not_writable)
                await peers.round()
                assert mine.why_not_writable is None
                assert cleared == 1
                assert "takes writes too" in peers.warnings()[0]
                await other.api.writer.begin_epoch(lambda: begin_epoch(other.node, WHO))
                await peers.round()
                error = mine.why_not_writable
                assert isinstance(error, Diverged)
                assert error.position == other.node.position
                assert f"{other.url} was promoted" in str(error)
                await other.vanish()
                await peers.round()
                assert mine.why_not_writable is error
                assert cleared == 1

    asyncio.run(run())


def test_peers_that_are_away_keep_nobody_from_writing(tmp_path: Path) -> None:
    node, token = memory_node(), tmp_path / "token"
    token.write_text("kudurru_x_" + "0" * 64)
    settings = FollowSettings(token=str(token), peers=("http://127.0.0.1:9",))  # type: ignore[arg-type]
    peers = Peers(node, settings, Standing("ns1", "me", node))
    asyncio.run(peers.round())
    assert node.why_not_writable is None
    assert not peers.warnings()
    heard = ask_all(settings.peers, settings)
    assert [one.about for one in heard] == [None]
    assert "does not answer" in heard[0].error
