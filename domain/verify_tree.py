"""Verification of the tree: leaves against stored tiles, and roots against signed checkpoints.

The chain shows an edit to whoever has the head from elsewhere; who owns the file can compute it
anew. What they cannot compute is the signature, so it is here that a rewritten log is found.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from heapq import merge

import msgspec

from kudurru.domain.checkpoint import Checkpoint, KeyChain, frontier_hashes, parse_checkpoint
from kudurru.domain.epochs import decode_epoch, origins
from kudurru.domain.errors import ADVICE, Invalid, LogDamaged
from kudurru.domain.events import (
    CHECKPOINT_STATE,
    EPOCH_KEY,
    KEY_ADOPTED,
    LOG_EPOCH,
    LOG_PRUNED,
    OBJECT_TYPES,
    PAYLOAD_REDACTED,
    SIGNING_KEY,
)
from kudurru.domain.ports import LogRow, StoredCheckpoint, VerifiableLog
from kudurru.domain.signed_note import CheckSignature, VerifierKey
from kudurru.domain.tree import TILE_WIDTH, Edge, Tile, root_of_frontier

Report = Callable[[LogDamaged], None]

_KEPT_ELSEWHERE = "the checkpoint that was kept elsewhere"


class Trust(msgspec.Struct, frozen=True):
    """How signatures are checked, and which keys the auditor holds from elsewhere."""

    check: CheckSignature
    keys: tuple[VerifierKey, ...] = ()
    checkpoint: Checkpoint | None = None  # one that was kept elsewhere


class Signed(msgspec.Struct, frozen=True):
    """What the signatures of a log say."""

    size: int = 0  # events under the newest checkpoint that is right; 0: none is
    key: str = ""  # that signed it
    is_trusted: bool = False  # it is one of the auditor's, or follows from one
    open_redaction: int = 0
    """Position of the newest redaction that no checkpoint covers yet, which only a log that nodes
    share may have for a moment; 0: there is none. Until one does, nobody with a key says that what
    it names was erased by one of the nodes."""


class TreeVerifier:
    """Follows the rows that are verified, from a place whose tree is stored.

    Kinds of damage: `tree`, a tile or a signed root is not that of the leaves; `signature`, a
    checkpoint is not signed as it should be, or was taken away; `truncation`, a checkpoint or a
    tile knows of more rows than there are. After the first the rest of the tree says nothing.

    The log may grow meanwhile. Rows, tiles and checkpoints of an append become visible together, so
    what is stored of more rows than were read is only a fault when the log has no such rows then.
    """

    def __init__(self, log: VerifiableLog, first: int, trust: Trust, report: Report) -> None:
        """Begin after `first` leaves, a multiple of TILE_WIDTH."""
        self._log = log
        self._report = report
        self._trust = trust
        self._origins = origins(log)
        self._keys = KeyChain(self._origins[0][1], trust.check, trust.keys)
        self._taken_at = 0  # position of the newest event that took rows or payloads away
        self._taken = ""  # which that was
        self._redacted_at = 0  # position of the newest redaction in a log that nodes share
        self._edge = Edge.read(first, log.hashes)
        self._leaves: list[bytes] = []
        self._stored: Iterator[StoredCheckpoint]
        self._next: StoredCheckpoint | None
        self._size = first
        self._good = 0  # leaves under the last signed root that was right
        self._is_damaged = False
        self._due = 0  # rows before that are but a leaf, unless they are of keys and rows
        self.signed = Signed()
        adoptions = log.read(0, first, key=SIGNING_KEY)
        for event in merge(adoptions, log.read(0, first, key=EPOCH_KEY), key=lambda e: e.seq):
            self._follow_keys(event.type, event.seq, event.body)
        self._seek(first)
        if trust.checkpoint is not None:
            self._check_outside(trust.checkpoint)

    def feed(self, row: LogRow) -> None:
        """The next row, in which nothing was wrong."""
        if row.seq < self._due and row.type in OBJECT_TYPES:
            self._leaves.append(row.leaf)
            self._size = row.seq
        elif not self._is_damaged:
            self._feed_closely(row)
            self._due = self._next_due()

    def _next_due(self) -> int:
        """Where something has to be looked at next, whatever the rows until there say; 0 when
        nothing is any more."""
        if self._is_damaged:
            return 0
        outside, size = self._trust.checkpoint, self._size
        due = size - size % TILE_WIDTH + TILE_WIDTH
        if self._next is not None:
            due = min(due, self._next.size)
        return min(due, outside.size) if outside is not None and outside.size > size else due

    def _feed_closely(self, row: LogRow) -> None:
        if row.type not in OBJECT_TYPES:  # those say nothing of keys and rows
            self._follow_keys(row.type, row.seq, row.body)
            self._follow_upkeep(row)
        if row.type == CHECKPOINT_STATE and (self._next is None or self._next.size > row.seq):
            self._seek(row.seq - 1)
        stored = self._next
        has_checkpoint = self._take(row.seq, row.leaf)
        if row.type == CHECKPOINT_STATE and not has_checkpoint:
            self._damage("signature", row.seq, f"the checkpoint of {row.seq} events is missing")
        elif has_checkpoint and stored is not None:
            self._check_state(stored, row.body)

    def _check_state(self, stored: StoredCheckpoint, body: bytes | None) -> None:
        """The digest beside a checkpoint; of an anchor there are the rows that are kept, and of one
        that was an anchor before nothing."""
        if body is None or stored.state == sha256(body).digest():
            return
        anchor = self._log.anchor()
        if anchor is not None and (stored.state == anchor.kept or stored.size <= anchor.upto):
            return
        what = "missing" if stored.state is None else "another"
        message = f"the digest of the state beside the checkpoint of {stored.size} is {what}"
        self._damage("tree", stored.size, message)

    def feed_pruned(self, seq: int, leaf: bytes) -> None:
        """The leaf of a row that is gone, as the tiles have it."""
        if not self._is_damaged:
            self._take(seq, leaf)

    def _take(self, seq: int, leaf: bytes) -> bool:
        """Whether there is a checkpoint of that size."""
        self._leaves.append(leaf)
        self._size = seq
        is_due = self._next is not None and self._next.size == seq
        outside = self._trust.checkpoint
        is_outside = outside is not None and outside.size == seq
        if is_due or is_outside or seq % TILE_WIDTH == 0:
            self._grow()
        if is_outside and outside is not None:
            self._check_root(outside, self._edge, _KEPT_ELSEWHERE)
        if is_due:
            assert self._next is not None
            self._check_stored(self._next)
            self._next = next(self._stored, None)
        return is_due

    def finish(self, newest: int) -> Signed:
        """What is left once the last row, `newest`, was read, damaged or not."""
        if self._next is not None and self._next.size > newest and not self._has(self._next.size):
            more = f"a checkpoint of {self._next.size} events is stored"
            self._damage("truncation", newest + 1, f"the log ends at {newest} and {more}")
        if self._is_damaged or self._size != newest:
            return self.signed  # rows were damaged: the tree could say nothing more
        self._grow()
        self._check_end(newest)
        if not self.signed.size and not self._is_damaged:
            self._check_newest()
        if self._taken_at > self.signed.size and not self._is_damaged:
            self._damage(
                "signature",
                self._taken_at,
                f"{self._taken} is under no checkpoint, and it always is: what it names may have "
                "been taken away by somebody who has no key",
            )
        if self._redacted_at > self.signed.size:
            self.signed = msgspec.structs.replace(self.signed, open_redaction=self._redacted_at)
        is_missed = newest and self._keys.is_checked and not self.signed.is_trusted
        if is_missed and not self._is_damaged:
            signer = self.signed.key or "no key"
            self._damage(
                "signature",
                newest,
                f"the log is signed by {signer}, which is none of the trusted keys and was not "
                f"adopted under one{self._since_epoch()}",
            )
        return self.signed

    def _follow_upkeep(self, row: LogRow) -> None:
        """What takes something out of the log is signed with it, or anybody who writes the file
        could add the event that excuses a gap. Of several nodes one has the key: what another
        erased is signed a moment later."""
        if row.type == LOG_PRUNED:
            self._taken_at, self._taken = row.seq, "a pruning"
        elif row.type == PAYLOAD_REDACTED and self._log.is_shared:
            self._redacted_at = row.seq
        elif row.type == PAYLOAD_REDACTED and self._keys.has_begun:
            self._taken_at, self._taken = row.seq, "a redaction"

    def _since_epoch(self) -> str:
        """What to do when the trusted keys are of an epoch before."""
        seq, origin = self._origins[-1]
        if not seq or any(key.name == origin for key in self._trust.keys):
            return ""
        return (
            f"; it went on from a backup at {seq}, as {origin}: if you know of that, give the key "
            "that the import printed too"
        )

    def _seek(self, after: int) -> None:
        """Go on with the first checkpoint of more than `after` events."""
        self._stored = self._log.checkpoints(after)
        self._next = next(self._stored, None)

    def _has(self, seq: int) -> bool:
        return seq <= self._log.head().seq

    def _damage(self, kind: str, position: int, message: str) -> None:
        if not self._is_damaged:
            self._is_damaged = True
            self._report(LogDamaged(kind, position, f"{message}; {ADVICE}"))

    def _follow_keys(self, type_: str, seq: int, body: bytes | None) -> None:
        if type_ == KEY_ADOPTED:
            self._adopt(seq, body)
        elif type_ == LOG_EPOCH:
            self._begin_epoch(seq, body)

    def _begin_epoch(self, seq: int, body: bytes | None) -> None:
        epoch = decode_epoch(body)
        if epoch is None or epoch.origin != self._keys.origin:
            was = epoch.origin if epoch else "a log that cannot be told"
            what = f"an epoch of {was} begins, and this log was {self._keys.origin}"
            self._damage("signature", seq, what)
        else:
            self._keys.begin_epoch(seq, epoch.to)

    def _adopt(self, seq: int, body: bytes | None) -> None:
        fault = self._keys.adopt(seq, body)
        if fault:
            self._damage("signature", seq, fault)

    # --- tiles --------------------------------------------------------------------------

    def _grow(self) -> None:
        self._edge, tiles = self._edge.extended(self._leaves)
        self._leaves = []
        for tile in tiles:
            if len(tile.hashes) == TILE_WIDTH:
                self._check_tile(tile)

    def _check_tile(self, tile: Tile) -> None:
        first = tile.index * TILE_WIDTH
        stored = self._log.hashes(tile.level, first, first + TILE_WIDTH)
        if tuple(stored) != tile.hashes:
            leaf, last = _first_difference(tile, stored)
            where = "" if leaf == last else f" (one of positions {leaf} to {last})"
            what = f"tile {tile.index} of level {tile.level} is not that of the rows"
            self._damage("tree", leaf, f"{what}{where}")

    def _check_end(self, newest: int) -> None:
        """Tiles that are not full, and none beyond them."""
        for tile in self._edge.partial_tiles():
            first = tile.index * TILE_WIDTH
            stored = tuple(self._log.hashes(tile.level, first, first + TILE_WIDTH))
            if stored[: len(tile.hashes)] == tile.hashes:
                if len(stored) > len(tile.hashes):
                    self._truncated(newest)
            else:
                leaf, _ = _first_difference(tile, stored)
                self._damage("tree", leaf, f"the last tile of level {tile.level} is not its own")
        first = newest - newest % TILE_WIDTH
        if len(self._log.hashes(0, first, first + TILE_WIDTH)) > newest - first:
            self._truncated(newest)

    def _truncated(self, newest: int) -> None:
        if self._has(newest + 1):
            return
        self._damage("truncation", newest + 1, f"the log ends at {newest} and its tree does not")

    # --- checkpoints --------------------------------------------------------------------

    def _check_outside(self, given: Checkpoint) -> None:
        newest = self._log.head().seq
        if given.origin != self._origin_at(given.size):
            self._damage(
                "signature",
                given.size,
                f"the checkpoint given is of {given.origin}, and this log is "
                f"{self._origin_at(given.size)}: give one of this log and epoch",
            )
        elif given.size > newest:
            self._damage(
                "truncation",
                newest + 1,
                f"the log ends at {newest} and the checkpoint given covers {given.size} events",
            )
        elif given.size <= self._size:
            try:
                edge = Edge.read(given.size, self._log.hashes)
            except LogDamaged as damage:
                self._damage(damage.kind, damage.position, "the tree has holes")
            else:
                self._check_root(given, edge, _KEPT_ELSEWHERE)

    def _check_newest(self) -> None:
        """The newest checkpoint, where none lies in the rows that were read."""
        stored = self._log.newest_checkpoint()
        if stored is None:
            return
        checkpoint = self._readable(stored)
        if checkpoint is None or checkpoint.size > self._size:
            return
        try:
            edge = Edge.read(checkpoint.size, self._log.hashes)
        except LogDamaged as damage:
            self._damage(damage.kind, damage.position, "the tree has holes")
        else:
            self._check_note(checkpoint, edge, "the newest checkpoint")

    def _check_stored(self, stored: StoredCheckpoint) -> None:
        checkpoint = self._readable(stored)
        if checkpoint is None:
            return
        frontier = frontier_hashes(stored.frontier)
        self._check_note(checkpoint, self._edge, "the checkpoint", frontier)
        if not self._is_damaged and stored.frontier != b"".join(self._edge.frontier()):
            message = f"the frontier beside the checkpoint of {stored.size} events is another"
            self._damage("tree", stored.size, message)

    def _readable(self, stored: StoredCheckpoint) -> Checkpoint | None:
        try:
            checkpoint = parse_checkpoint(stored.note)
        except Invalid as error:
            self._damage("signature", stored.size, f"the checkpoint cannot be read: {error}")
            return None
        if (checkpoint.origin, checkpoint.size) != (self._origin_at(stored.size), stored.size):
            self._damage(
                "signature",
                stored.size,
                f"the checkpoint of {stored.size} events is one of {checkpoint.size} events of "
                f"{checkpoint.origin}",
            )
            return None
        return checkpoint

    def _origin_at(self, size: int) -> str:
        return next(origin for seq, origin in reversed(self._origins) if seq <= size)

    def _check_root(self, checkpoint: Checkpoint, edge: Edge, what: str) -> None:
        """Of a checkpoint from elsewhere: this log may have been given another row of keys."""
        if self._keys.is_signed_by_trusted(checkpoint) and not self._keys.is_signed(checkpoint):
            self._compare(checkpoint, edge, what)
        else:
            self._check_note(checkpoint, edge, what)

    def _check_note(
        self, checkpoint: Checkpoint, edge: Edge, what: str, frontier: Sequence[bytes] = ()
    ) -> None:
        size, key = checkpoint.size, self._keys.key_at(checkpoint.size)
        if not self._keys.is_signed(checkpoint):
            signer = f"by {key}" if key else "by a key that the log had adopted"
            self._damage("signature", size, f"{what} of {size} events is not signed {signer}")
            return
        if self._compare(checkpoint, edge, what, frontier):
            self._good = size
            self.signed = Signed(size, str(key), self._keys.trusts(size))

    def _compare(
        self, checkpoint: Checkpoint, edge: Edge, what: str, frontier: Sequence[bytes] = ()
    ) -> bool:
        """Hold a root against the signed one. A frontier that leads to the signed root is as good
        as signed, and says in which subtree the difference is."""
        if edge.root() == checkpoint.root:
            return True
        first, last = 1, checkpoint.size
        if root_of_frontier(frontier) == checkpoint.root:
            first, last = _differing_subtree(edge, frontier)
        if what != _KEPT_ELSEWHERE:
            # Who has the key may have signed another history: those roots say nothing of this one.
            first = max(first, self._good + 1)
        self._damage(
            "tree",
            first,
            f"{what} of {checkpoint.size} events has another root: a row of positions "
            f"{first} to {last} is not the one that was signed",
        )
        return False


def _differing_subtree(edge: Edge, frontier: Sequence[bytes]) -> tuple[int, int]:
    """First and last position under the first root of a frontier that an edge has otherwise."""
    first, left = 1, edge.size
    for ours, theirs in zip(edge.frontier(), frontier, strict=False):
        width = 1 << left.bit_length() - 1
        if ours != theirs:
            return first, first + width - 1
        first += width
        left -= width
    return first, edge.size


def _first_difference(tile: Tile, stored: Sequence[bytes]) -> tuple[int, int]:
    """First and last position under the first hash of a tile that is stored otherwise."""
    pairs: Iterable[tuple[bytes, bytes]] = zip(tile.hashes, stored, strict=False)
    differing: Iterator[int] = (i for i, (ours, theirs) in enumerate(pairs) if ours != theirs)
    at = next(differing, min(len(tile.hashes), len(stored)))
    width = TILE_WIDTH**tile.level
    first = (tile.index * TILE_WIDTH + at) * width + 1
    return first, first + width - 1
