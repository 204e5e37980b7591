"""The tree of RFC 6962: known roots and proofs, and the properties of proofs.

The golden values are those of the reference implementation of Certificate Transparency
(merkle_tree_test.cc and its ports): seven leaves of known octets.
"""

from collections.abc import Sequence
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.chain import leaf_of
from kudurru.domain.tree import (
    EMPTY_ROOT,
    TILE_WIDTH,
    Edge,
    Tile,
    Tree,
    node_of,
    root_of,
    root_of_frontier,
    verify_consistency,
    verify_inclusion,
)

INPUTS = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657",
          "606162636465666768696a6b6c6d6e6f"]  # fmt: skip
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
LEAVES = [leaf_of(bytes.fromhex(text)) for text in INPUTS]


def mth(leaves: Sequence[bytes]) -> bytes:
    """RFC 6962 section 2.1, word for word."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return node_of(mth(leaves[:k]), mth(leaves[k:]))


def path(m: int, leaves: Sequence[bytes]) -> list[bytes]:
    """RFC 6962 section 2.1.1, word for word."""
    if len(leaves) == 1:
        return []
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    if m < k:
        return [*path(m, leaves[:k]), mth(leaves[k:])]
    return [*path(m - k, leaves[k:]), mth(leaves[:k])]


def subproof(m: int, leaves: Sequence[bytes], is_whole: bool) -> list[bytes]:
    """RFC 6962 section 2.1.2, word for word."""
    n = len(leaves)
    if m == n:
        return [] if is_whole else [mth(leaves)]
    k = 1
    while k * 2 < n:
        k *= 2
    if m <= k:
        return [*subproof(m, leaves[:k], is_whole), mth(leaves[k:])]
    return [*subproof(m - k, leaves[k:], False), mth(leaves[:k])]


def some_leaves(count: int) -> list[bytes]:
    return [leaf_of(b"%d" % i) for i in range(count)]


class Stored:
    """A tree as a log stores it: tiles, and leaves."""

    def __init__(self) -> None:
        self.edge = Edge()
        self.leaves: list[bytes] = []
        self.tiles: dict[tuple[int, int], tuple[bytes, ...]] = {}

    def extend(self, leaves: Sequence[bytes]) -> list[Tile]:
        self.edge, tiles = self.edge.extended(leaves)
        self.leaves += leaves
        for tile in tiles:
            before = self.tiles.get((tile.level, tile.index), ())
            assert tile.hashes[: len(before)] == before, "a stored tile only grows"
            self.tiles[tile.level, tile.index] = tile.hashes
        return tiles

    def read(self, level: int, first: int, last: int) -> Sequence[bytes]:
        if level == 0:
            return self.leaves[first:last]
        index, at = divmod(first, TILE_WIDTH)
        return self.tiles[level, index][at : at + last - first]

    def tree(self) -> Tree:
        return Tree(len(self.leaves), self.read)


def stored(leaves: Sequence[bytes]) -> Stored:
    found = Stored()
    found.extend(leaves)
    return found


def test_roots_are_those_of_the_reference_implementation() -> None:
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for size, root in enumerate(ROOTS, 1):
        assert root_of(LEAVES[:size]).hex() == root
        assert stored(LEAVES[:size]).edge.root().hex() == root
        assert stored(LEAVES[:size]).tree().root().hex() == root


INCLUSION = {  # (leaf, size) to the proof, as the reference implementation has them
    (0, 1): [],
    (0, 8): ["96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
             "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
             "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"],
    (5, 8): ["bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
             "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
             "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    (1, 5): ["6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
             "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
             "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"],
}  # fmt: skip
CONSISTENCY = {
    (1, 1): [],
    (1, 8): ["96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
             "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
             "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"],
    (6, 8): ["0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
             "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
             "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"],
    (2, 5): ["5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
             "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"],
}  # fmt: skip


def test_proofs_are_those_of_the_reference_implementation() -> None:
    for (index, size), proof in INCLUSION.items():
        found = stored(LEAVES[:size]).tree().inclusion_proof(index)
        assert [node.hex() for node in found] == proof
    for (old, size), proof in CONSISTENCY.items():
        found = stored(LEAVES[:size]).tree().consistency_proof(old)
        assert [node.hex() for node in found] == proof


@pytest.mark.parametrize("size", [*range(1, 20), 255, 256, 257, 511, 513, 1030])
def test_tiles_give_what_the_rfc_defines(size: int) -> None:
    leaves = some_leaves(size)
    found = stored(leaves)
    assert found.edge.root() == found.tree().root() == mth(leaves)
    assert root_of_frontier(found.edge.frontier()) == mth(leaves)
    assert len(found.edge.frontier()) == size.bit_count()
    for at in {0, 1, size // 3, size // 2, size - 2, size - 1} & set(range(size)):
        assert found.tree().inclusion_proof(at) == path(at, leaves)
        assert found.tree().consistency_proof(at + 1) == subproof(at + 1, leaves, True)


def test_three_levels_of_tiles_agree_with_one_row() -> None:
    leaves = [b"%032d" % i for i in range(TILE_WIDTH * TILE_WIDTH + 300)]
    found = stored(leaves)
    assert found.edge.root() == root_of(leaves) == found.tree().root()
    assert {tile[0] for tile in found.tiles} == {0, 1, 2}
    assert len(found.tiles[2, 0]) == 1
    proof = found.tree().inclusion_proof(70)
    assert verify_inclusion(leaves[70], 70, len(leaves), proof, found.edge.root())


@given(sizes=st.lists(st.integers(1, 700), max_size=6))
def test_a_tree_that_grew_in_steps_is_the_one_that_grew_at_once(sizes: list[int]) -> None:
    leaves = [b"%032d" % i for i in range(sum(sizes))]
    found, at = Stored(), 0
    for size in sizes:
        found.extend(leaves[at : at + size])
        at += size
        assert found.edge.root() == root_of(leaves[:at])
    whole = stored(leaves)
    assert found.tiles == whole.tiles
    again = Edge.read(len(leaves), found.read)
    assert again.root() == whole.edge.root()
    assert list(again.partial_tiles()) == list(whole.edge.partial_tiles())
    more = [b"x" * 32] * 300
    assert again.extended(more)[1] == whole.edge.extended(more)[1]


SIZE = st.integers(1, 80)


@given(size=SIZE, data=st.data())
def test_a_proof_holds_for_its_leaf_and_for_no_other(size: int, data: st.DataObject) -> None:
    leaves = some_leaves(size)
    root = root_of(leaves)
    index = data.draw(st.integers(0, size - 1))
    proof = stored(leaves).tree().inclusion_proof(index)
    assert verify_inclusion(leaves[index], index, size, proof, root)
    other = data.draw(st.integers(-1, size))
    assert verify_inclusion(leaves[index], other, size, proof, root) == (other == index)
    assert not verify_inclusion(leaf_of(b"no"), index, size, proof, root)
    assert not verify_inclusion(leaves[index], index, size, [*proof, root], root)
    assert not proof or not verify_inclusion(leaves[index], index, size, proof[:-1], root)
    assert not verify_inclusion(leaves[index], index, size, proof, leaf_of(b"no"))


@given(size=SIZE, data=st.data())
def test_a_tree_is_consistent_with_its_beginnings_only(size: int, data: st.DataObject) -> None:
    leaves = some_leaves(size)
    root = root_of(leaves)
    old = data.draw(st.integers(1, size))
    proof = stored(leaves).tree().consistency_proof(old)
    assert verify_consistency(old, root_of(leaves[:old]), size, root, proof)
    changed = [*leaves[: old - 1], leaf_of(b"no")]
    assert not verify_consistency(old, root_of(changed), size, root, proof)
    assert not verify_consistency(old, root_of(leaves[:old]), size, leaf_of(b"no"), proof)
    assert not verify_consistency(old, root_of(leaves[:old]), size, root, [*proof, root])
    assert not verify_consistency(0, EMPTY_ROOT, size, root, proof)
