"""The Merkle tree of RFC 6962 over the leaves of the chain, kept in tiles of 256.

    leaf = SHA-256(0x00 ‖ entry)          (domain.chain)
    node = SHA-256(0x01 ‖ left ‖ right)

Leaf i of the tree is the event of seq i + 1. Level 0 holds the leaves, level n the roots of full
subtrees of 256^n leaves; a tile is 256 neighbours of one level, and its root is one hash of the
level above (C2SP tlog-tiles). A tile of level 0 is stored when it is full, those above as they
grow, so at any time a log knows its whole tree from the stored tiles and at most 255 leaves.

Everything here is pure: hashes come in as values or through `ReadHashes`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

import msgspec

from kudurru.domain.errors import ADVICE, LogDamaged

TILE_WIDTH = 256
TILE_HEIGHT = 8
LEVELS_MAX = 8
"""Levels of tiles: 2^64 leaves, more than any log has."""

HASH_SIZE = 32

ReadHashes = Callable[[int, int, int], Sequence[bytes]]
"""(level, first, last) to the hashes first <= i < last of a level. They lie in one tile."""

EMPTY_ROOT = sha256(b"").digest()


class Tile(msgspec.Struct, frozen=True):
    """Neighbouring hashes of a level: the first of them is number `index * TILE_WIDTH`."""

    level: int
    index: int
    hashes: tuple[bytes, ...]


def node_of(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def root_of(hashes: Sequence[bytes]) -> bytes:
    """Root over neighbours (RFC 6962 section 2.1). The last may stand for a subtree that is not
    full: a lone node at the end of a row goes up as it is."""
    if not hashes:
        return EMPTY_ROOT
    row = list(hashes)
    while len(row) > 1:
        above = [
            sha256(b"\x01" + left + right).digest()
            for left, right in zip(row[::2], row[1::2], strict=False)
        ]
        if len(row) % 2:
            above.append(row[-1])
        row = above
    return row[0]


class Edge:
    """The right edge of a growing tree: at each level the hashes that are in no full tile yet.
    Never changed: `extended` gives the next one, so that an append that fails leaves no trace."""

    __slots__ = ("_levels", "size")

    def __init__(self, size: int = 0, levels: tuple[tuple[bytes, ...], ...] = ()) -> None:
        """`levels[n]` are the last size // 256^n % 256 hashes of level n."""
        self.size = size
        self._levels = levels

    @classmethod
    def read(cls, size: int, read: ReadHashes) -> "Edge":
        """The edge of the tree of the first `size` leaves, from what is stored.

        Raises: LogDamaged when hashes are missing.
        """
        levels = []
        for level in range(LEVELS_MAX):
            count = size >> TILE_HEIGHT * level
            if not count:
                break
            first = count & ~(TILE_WIDTH - 1)
            levels.append(tuple(read(level, first, count)) if count > first else ())
            if len(levels[-1]) != count - first:
                position = (first + len(levels[-1]) << TILE_HEIGHT * level) + 1
                raise LogDamaged("tree", position, f"hashes of level {level} are missing; {ADVICE}")
        return cls(size, tuple(levels))

    def extended(self, leaves: Sequence[bytes]) -> tuple["Edge", list[Tile]]:
        """The edge after more leaves, and the tiles to store for it: full ones, and those above
        level 0 that grew. Of a tile that grew twice only the last is given."""
        size = self.size + len(leaves)
        if self._levels and len(self._levels[0]) + len(leaves) < TILE_WIDTH:
            return Edge(size, (self._levels[0] + tuple(leaves), *self._levels[1:])), []
        levels: list[tuple[bytes, ...]] = []
        tiles: list[Tile] = []
        new = tuple(leaves)
        level = 0
        while new or level < len(self._levels):
            kept = self._levels[level] if level < len(self._levels) else ()
            number = (self.size >> TILE_HEIGHT * level) - len(kept)  # of the first hash
            row = kept + new
            full = len(row) // TILE_WIDTH
            new_above = []
            for i in range(full):
                hashes = row[i * TILE_WIDTH : (i + 1) * TILE_WIDTH]
                tiles.append(Tile(level, number // TILE_WIDTH + i, hashes))
                new_above.append(root_of(hashes))
            rest = row[full * TILE_WIDTH :]
            if level and new and rest:
                tiles.append(Tile(level, number // TILE_WIDTH + full, rest))
            levels.append(rest)
            new = tuple(new_above)
            level += 1
        return Edge(size, tuple(levels)), tiles

    def root(self) -> bytes:
        """Root of the tree (RFC 6962 section 2.1)."""
        found: bytes | None = None
        for level in self._levels:
            row = (*level, found) if found is not None else level
            if row:
                found = root_of(row)
        return EMPTY_ROOT if found is None else found

    def frontier(self) -> list[bytes]:
        """Roots of the full subtrees that the tree is made of, the largest first: one for each
        bit that is set in its size."""
        found: list[bytes] = []
        for level in reversed(self._levels):
            at = 0
            for bit in reversed(range(TILE_HEIGHT)):
                width = 1 << bit
                if len(level) & width:
                    found.append(root_of(level[at : at + width]))
                    at += width
        return found

    def partial_tiles(self) -> Iterator[Tile]:
        """Tiles above level 0 that are not full, as they are stored."""
        for level, hashes in enumerate(self._levels):
            if level and hashes:
                number = (self.size >> TILE_HEIGHT * level) - len(hashes)
                yield Tile(level, number // TILE_WIDTH, hashes)


def root_of_frontier(frontier: Sequence[bytes]) -> bytes:
    """Root of the tree that a frontier is of."""
    if not frontier:
        return EMPTY_ROOT
    found = frontier[-1]
    for left in reversed(frontier[:-1]):
        found = node_of(left, found)
    return found


TILES_CACHED = 64
"""Tiles whose inner nodes a `Tree` keeps, 16 KiB each: proofs of neighbours share nearly all."""


class Tree:
    """A tree that is read: its root and proofs, at one size."""

    def __init__(self, size: int, read: ReadHashes) -> None:
        self.size = size
        self._read = read
        self._rows: OrderedDict[tuple[int, int], list[list[bytes]]] = OrderedDict()

    def root(self) -> bytes:
        return self._range(0, self.size) if self.size else EMPTY_ROOT

    def inclusion_proof(self, index: int) -> list[bytes]:
        """PATH(index, D[size]) of RFC 6962 section 2.1.1, from the sibling of the leaf upwards."""
        assert 0 <= index < self.size
        path: list[bytes] = []
        first, last = 0, self.size
        while last - first > 1:
            middle = first + _largest_power_below(last - first)
            if index < middle:
                path.append(self._range(middle, last))
                last = middle
            else:
                path.append(self._range(first, middle))
                first = middle
        return path[::-1]

    def consistency_proof(self, old: int) -> list[bytes]:
        """PROOF(old, D[size]) of RFC 6962 section 2.1.2."""
        assert 0 < old <= self.size
        path: list[bytes] = []
        first, last = 0, self.size
        is_whole = True  # the subtree at hand is the old tree, whose root the verifier has
        while old != last - first:
            middle = _largest_power_below(last - first)
            if old <= middle:
                path.append(self._range(first + middle, last))
                last = first + middle
            else:
                path.append(self._range(first, first + middle))
                first += middle
                old -= middle
                is_whole = False
        if not is_whole:
            path.append(self._range(first, last))
        return path[::-1]

    def _range(self, first: int, last: int) -> bytes:
        """MTH(D[first:last]), where the split of the whole tree comes by."""
        width = last - first
        if width & width - 1 == 0:
            return self._full(width.bit_length() - 1, first)
        middle = first + _largest_power_below(width)
        return node_of(self._range(first, middle), self._range(middle, last))

    def _full(self, height: int, first: int) -> bytes:
        """Root of the full subtree of 2^height leaves that begins at leaf `first`."""
        level, row = divmod(height, TILE_HEIGHT)
        number = first >> height
        tile, within = divmod(number, TILE_WIDTH >> row)
        return self._tile(level, tile)[row][within]

    def _tile(self, level: int, index: int) -> list[list[bytes]]:
        """Rows of a tile: its hashes, the full nodes above them, and so on."""
        key = level, index
        rows = self._rows.get(key)
        if rows is None:
            first = index * TILE_WIDTH
            last = min(first + TILE_WIDTH, self.size >> TILE_HEIGHT * level)
            rows = [list(self._read(level, first, last))]
            for _ in range(TILE_HEIGHT - 1):
                below = rows[-1]
                rows.append([node_of(*pair) for pair in zip(below[::2], below[1::2], strict=False)])
            self._rows[key] = rows
            if len(self._rows) > TILES_CACHED:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(key)
        return rows


def _largest_power_below(n: int) -> int:
    """The largest power of two less than n, which is at least 2."""
    return 1 << (n - 1).bit_length() - 1


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """Whether `proof` shows that `leaf` is number `index` of the tree with that size and root
    (RFC 9162 section 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    number, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if number & 1 or number == last:
            found = node_of(sibling, found)
            while not number & 1 and number:
                number >>= 1
                last >>= 1
        else:
            found = node_of(found, sibling)
        number >>= 1
        last >>= 1
    return last == 0 and found == root


def verify_consistency(
    old: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether `proof` shows that the tree of `size` leaves begins with the one of `old` leaves
    (RFC 9162 section 2.1.4.2)."""
    if not 0 < old <= size:
        return False
    if old == size:
        return not proof and old_root == root
    path = list(proof)
    if old & old - 1 == 0:
        path.insert(0, old_root)
    if not path:
        return False
    number, last = old - 1, size - 1
    while number & 1:
        number >>= 1
        last >>= 1
    found_old = found = path[0]
    for node in path[1:]:
        if last == 0:
            return False
        if number & 1 or number == last:
            found_old = node_of(node, found_old)
            found = node_of(node, found)
            while not number & 1 and number:
                number >>= 1
                last >>= 1
        else:
            found = node_of(found, node)
        number >>= 1
        last >>= 1
    return last == 0 and found_old == old_root and found == root
