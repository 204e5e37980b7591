"""The tree and the checkpoints of a log, on every adapter: stored with the rows, and verified."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kudurru.domain.chain import origin_of
from kudurru.domain.checkpoint import parse_checkpoint
from kudurru.domain.errors import Conflict
from kudurru.domain.ports import LogRow, StoredCheckpoint, VerifiableLog
from kudurru.domain.tree import (
    TILE_WIDTH,
    Edge,
    Tree,
    root_of,
    root_of_frontier,
    verify_consistency,
    verify_inclusion,
)
from kudurru.domain.verify import verify
from tests.logs import (
    NOON_US,
    adopt,
    applied,
    change,
    log_key,
    memory_log,
    recorded_history,
    sign,
    sqlite_log,
    trust,
)

ADAPTERS = ["memory", "sqlite"]


def new_log(adapter: str, folder: Path) -> VerifiableLog:
    return memory_log() if adapter == "memory" else sqlite_log(folder / "log.db")


@pytest.fixture(params=ADAPTERS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VerifiableLog]:
    log = new_log(request.param, tmp_path)
    yield log
    log.close()


def append(log: VerifiableLog, count: int) -> None:
    """Events of a stream each, in one append."""
    first = log.head().seq
    log.append([change(applied(f"h{first + i}")) for i in range(count)], NOON_US)


def leaves(log: VerifiableLog) -> list[bytes]:
    return [row.leaf for row in log.rows()]


def test_the_tree_of_an_empty_log_is_empty(log: VerifiableLog) -> None:
    assert log.newest_checkpoint() is None
    assert list(log.checkpoints()) == []
    assert log.hashes(0, 0, TILE_WIDTH) in ([], ())
    assert verify(log, trust=trust(log)).is_whole


@pytest.mark.parametrize("sizes", [(1,), (255, 1), (256,), (257, 3), (100, 200, 300), (700,)])
def test_root_and_proofs_come_from_what_is_stored(
    sizes: tuple[int, ...], log: VerifiableLog
) -> None:
    for size in sizes:
        append(log, size)
    found = leaves(log)
    tree = Tree(len(found), log.hashes)
    assert tree.root() == root_of(found) == Edge.read(len(found), log.hashes).root()
    for index in {0, len(found) // 2, len(found) - 1}:
        proof = tree.inclusion_proof(index)
        assert verify_inclusion(found[index], index, len(found), proof, tree.root())
        old = Tree(index + 1, log.hashes)
        steps = tree.consistency_proof(index + 1)
        assert verify_consistency(index + 1, old.root(), len(found), tree.root(), steps)


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=5), data=st.data())
def test_any_prefix_of_a_log_has_its_own_root(
    sizes: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = sqlite_log(tmp_path_factory.mktemp("tree") / "log.db")
    for size in sizes:
        append(log, size)
    found = leaves(log)
    prefix = data.draw(st.integers(1, len(found)))
    assert Tree(prefix, log.hashes).root() == root_of(found[:prefix])
    assert verify(log, trust=trust(log)).is_whole
    log.close()


def test_a_checkpoint_covers_its_own_event_and_is_stored_with_it(log: VerifiableLog) -> None:
    recorded_history(log)
    stored = sign(log, 1, adopt(log))
    assert stored.size == log.head().seq == 12
    found = parse_checkpoint(stored.note)
    assert (found.origin, found.size) == (origin_of(log.log_id, log.epoch), 12)
    assert found.root == root_of(leaves(log))
    frontier = [stored.frontier[i : i + 32] for i in range(0, len(stored.frontier), 32)]
    assert root_of_frontier(frontier) == found.root
    second = sign(log)
    assert list(log.checkpoints()) == [stored, second]
    assert list(log.checkpoints(stored.size)) == [second]
    assert log.newest_checkpoint() == second


def test_a_checkpoint_that_is_refused_leaves_no_event(log: VerifiableLog) -> None:
    recorded_history(log)
    before = log.head()

    def refuse(edge: Edge, body: bytes) -> StoredCheckpoint:
        raise Conflict("another tree")

    with pytest.raises(Conflict, match="another tree"):
        log.append_signed([change(applied("late"))], NOON_US, refuse)
    assert log.head() == before
    append(log, 300)
    assert verify(log, trust=trust(log)).is_whole


def test_verification_says_what_is_signed_by_whom(log: VerifiableLog) -> None:
    recorded_history(log)
    assert verify(log, trust=trust(log)).signed.size == 0
    sign(log, 1, adopt(log))
    append(log, 3)
    for keys, is_trusted in (((), False), ((1,), True), ((2, 1), True)):
        found = verify(log, trust=trust(log, *keys))
        assert found.is_whole
        assert (found.signed.size, found.signed.is_trusted) == (12, is_trusted)
        assert found.signed.key == str(log_key(log).verifier)
    refused = verify(log, trust=trust(log, 2))
    assert [damage.kind for damage in refused.damages] == ["signature"]


def test_a_key_that_took_over_is_trusted_under_the_one_before(log: VerifiableLog) -> None:
    recorded_history(log)
    sign(log, 1, adopt(log))
    sign(log, 2, adopt(log, 2, before=1))
    for keys in ((1,), (2,)):
        found = verify(log, trust=trust(log, *keys))
        assert found.is_whole
        assert found.signed.is_trusted
        assert found.signed.key == str(log_key(log, 2).verifier)


def test_a_log_can_be_verified_from_a_checkpoint_that_was_kept(log: VerifiableLog) -> None:
    recorded_history(log)
    first = parse_checkpoint(sign(log, 1, adopt(log)).note)
    append(log, 600)
    second = parse_checkpoint(sign(log).note)
    append(log, 5)
    for kept, rows in ((first, 618), (second, 618 - 512)):
        found = verify(log, after=kept.size, trust=trust(log, 1, checkpoint=kept))
        assert found.is_whole
        assert found.rows == rows
        assert found.signed.is_trusted


def test_where_another_history_was_signed_the_kept_checkpoint_names_all_rows_that_may_differ() -> (
    None
):
    """Who has the key may sign what is not so: those roots do not say up to where it is so."""
    kept, log = (memory_log() for _ in range(2))
    for one, name in ((kept, "true"), (log, "false")):
        sign(one, 1, adopt(one))
        one.append([change(applied(name))], NOON_US)
        for _ in range(4):
            append(one, 2)
            sign(one)
    given = parse_checkpoint(sign(kept).note)
    append(log, 5)
    (damage,) = verify(log, trust=trust(log, 1, checkpoint=given)).damages
    assert damage.kind == "tree"
    assert damage.position <= 3, "the first row that differs"


def test_the_tail_is_verified_from_a_stored_place(log: VerifiableLog) -> None:
    append(log, 1_000)
    sign(log, 1, adopt(log))
    append(log, 900)
    found = verify(log, tail=100, trust=trust(log, 1))
    assert found.is_whole
    assert found.rows < 100 + TILE_WIDTH
    assert found.signed.size == 1_002
    assert found.signed.is_trusted


@pytest.mark.parametrize("more", [1, 300])
def test_a_log_that_grows_while_it_is_verified_is_whole(more: int, log: VerifiableLog) -> None:
    append(log, 300)
    sign(log, 1, adopt(log))

    def grow(row: LogRow) -> None:
        if row.seq in (5, 302) or row.seq == log.head().seq < 1_000:
            append(log, more)
            sign(log)

    for tail in (None, 50):
        found = verify(log, tail=tail, trust=trust(log, 1), seen=grow)
        assert found.damages == ()
        assert found.signed.is_trusted
