"""A copy of a log on another node: what a leader sends, and what a follower checks before it keeps
anything.

    Target   a checkpoint of the leader, with a proof that it continues what the follower has
    Page     the next rows of it, with a proof that they are what was signed
    Pulse    nothing new; how far the leader is

A leader sends rows that a checkpoint covers, and no others. So a follower never holds, serves or
acknowledges a row that no key vouches for: each page leads to a tree of which the signed one is a
continuation (RFC 9162 section 2.1.4), and the rows themselves verify as `domain.verify` has it.
What rows say was taken away (payloads, rows, an epoch that ends) is taken away in the copy too.

Pure, on both sides.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256

import msgspec

from kudurru.domain.chain import Redaction
from kudurru.domain.checkpoint import Checkpoint, KeyChain, parse_checkpoint
from kudurru.domain.epochs import decode_epoch, epoch_in
from kudurru.domain.errors import Conflict, Diverged, Invalid, LogDamaged
from kudurru.domain.events import (
    CHECKPOINT_STATE,
    EPOCH_KEY,
    KEY_ADOPTED,
    LOG_EPOCH,
    LOG_PRUNED,
    OBJECT_TYPES,
    PAYLOAD_REDACTED,
    SIGNING_KEY,
    Position,
)
from kudurru.domain.kinds.registry import KINDS
from kudurru.domain.objects import Key
from kudurru.domain.ports import (
    Anchor,
    Copied,
    Erasure,
    LogHead,
    LogRow,
    StoredCheckpoint,
    Upkeep,
    VerifiableLog,
)
from kudurru.domain.pruning import PrunedBody, newest_pruning
from kudurru.domain.signed_note import VerifierKey
from kudurru.domain.tree import HASH_SIZE, Edge, Tile, Tree, verify_consistency
from kudurru.domain.verify import Verifier

PAGE_ROWS = 1_000
PAGE_ROWS_MAX = 16 * PAGE_ROWS
"""That a follower takes: versions of this program may send larger pages, and nobody ones that keep
it busy for minutes before it is known whether a key vouches for them."""

PAGE_BYTES = 1 << 20
"""Of payloads: a page ends with the row that reaches it, so it is that and one row at most."""

GAP_MAX = PAGE_BYTES // HASH_SIZE
"""Pruned rows of a page, of which it has the leaves: a log of any age goes out in bounded parts."""

FRAME_MAX = 64 << 20
"""Octets of what is sent at once: the largest row has a body of 8 MiB, and the rows that a pruning
kept take a bit each, so that half a billion fit."""

COMMIT_ROWS = 20_000
"""Rows after which a follower makes durable what it has, where more are on their way: an index page
that many rows touch is then written once."""

STREAMS_MAX = 65_536
"""Rows after which a follower forgets which version each object was at. That those go on without a
gap is what was signed; to remember them all would take memory as long as the log is."""

_ADVICE = (
    "nothing of it was kept here; verify the leader's log with `kudurru audit verify` there, and "
    "follow a node whose log is whole"
)
_SECRET_KINDS = tuple(f"{kind.name}/" for kind in KINDS.values() if kind.is_internal)


class KeyEvent(msgspec.Struct, frozen=True, array_like=True):
    """A key.adopted or log.epoch event: which key signs from there on."""

    seq: int
    type: str
    body: bytes | None


class Target(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the pages after it lead to."""

    note: str  # the checkpoint
    proof: list[bytes]  # that it continues the log that the follower has
    keys: list[KeyEvent]  # that the follower does not have yet
    anchor: Anchor | None  # where the log begins that was pruned


class Page(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Rows up to `last`; those that were pruned are there by their leaves, one after the other."""

    last: int
    rows: list[LogRow]
    leaves: bytes
    checkpoints: list[StoredCheckpoint]
    secrets: list[tuple[Key, bytes | None]]
    proof: list[bytes]  # that the signed tree continues the one up to `last`


class Pulse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    head: int  # newest position of the leader


Frame = Target | Page | Pulse

encode_frame = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder(Frame).decode


# --- what a leader sends ------------------------------------------------------------------------


def target_of(log: VerifiableLog, after: int, newest: StoredCheckpoint) -> Target:
    """For a follower that has `after` rows."""
    size = newest.size
    events = [*log.read(after, size, key=SIGNING_KEY), *log.read(after, size, key=EPOCH_KEY)]
    keys = [KeyEvent(e.seq, e.type, e.body) for e in sorted(events, key=lambda e: e.seq)]
    proof = Tree(size, log.hashes).consistency_proof(after) if 0 < after <= size else []
    return Target(note=newest.note, proof=proof, keys=keys, anchor=_anchor_for(log, after))


def _anchor_for(log: VerifiableLog, after: int) -> Anchor | None:
    """Where the log begins, for a follower that has not heard of it: it may be long."""
    pruning = newest_pruning(log)
    if pruning is None or (pruning[0] <= after and pruning[1].upto <= after):
        return None
    return log.anchor()


def pages(log: VerifiableLog, after: int, size: int) -> Iterator[Page]:
    """The rows after a position, up to a checkpoint. Raises: Conflict when the log was pruned
    meanwhile; LogDamaged, StorageFailed."""
    oldest = log.oldest()
    tree = Tree(size, log.hashes)
    checkpoints = log.checkpoints(after)
    pending = next(checkpoints, None)
    for last, page in _apart(_cut(log.rows(after, size)), after):
        signed = []
        while pending is not None and pending.size <= last:
            signed.append(pending)
            pending = next(checkpoints, None)
        is_whole = len(page) == last - after
        if not is_whole and log.oldest() != oldest:
            raise Conflict("the log was pruned while it was sent: begin again")
        yield Page(
            last=last,
            rows=page,
            leaves=b"" if is_whole else _leaves(log, page, after, last),
            checkpoints=signed,
            secrets=_secrets(log, page),
            proof=tree.consistency_proof(last),
        )
        after = last


def _cut(rows: Iterable[LogRow]) -> Iterator[list[LogRow]]:
    """Rows in parts, each of which ends with a change set where one ends in it."""
    part: list[LogRow] = []
    size = begun = 0  # octets, and rows before the newest change set
    for row in rows:
        if row.txn == row.seq:
            begun = len(part)
        part.append(row)
        size += len(row.body or b"") + len(row.who or b"")
        if len(part) > PAGE_ROWS or size > PAGE_BYTES:
            cut = begun or len(part)
            yield part[:cut]
            part = part[cut:]
            size = sum(len(one.body or b"") + len(one.who or b"") for one in part)
            begun = 0
    if part:
        yield part


def _apart(pages: Iterable[list[LogRow]], after: int) -> Iterator[tuple[int, list[LogRow]]]:
    """Pages that come after a position, and where each ends, so that none leaves out more than
    GAP_MAX: some have no row at all."""
    for page in pages:
        if len(page) == page[-1].seq - after:
            after = page[-1].seq
            yield after, page
            continue
        part: list[LogRow] = []
        gone = 0  # between rows of the part
        for row in page:
            while (more := GAP_MAX - gone) < row.seq - 1 - after:
                after += more
                yield after, part
                part, gone = [], 0
            gone += row.seq - 1 - after
            after = row.seq
            part.append(row)
        yield after, part


def _leaves(log: VerifiableLog, rows: Iterable[LogRow], after: int, last: int) -> bytes:
    """Of the positions that were pruned, as the tree has them."""
    present = {row.seq for row in rows}
    gone = (seq for seq in range(after + 1, last + 1) if seq not in present)
    return b"".join(leaf for seq in gone for leaf in log.hashes(0, seq - 1, seq))


def _secrets(log: VerifiableLog, rows: Iterable[LogRow]) -> list[tuple[Key, bytes | None]]:
    """What is kept beside the log for the objects of these rows: as it is now, sealed."""
    keys = {Key(row.obj): None for row in rows if row.obj and row.obj.startswith(_SECRET_KINDS)}
    return [(key, log.secret(key)) for key in keys]


# --- what a follower checks ---------------------------------------------------------------------


class Receiver:
    """Follows what a leader sends, from what the follower's log holds. After an error it is done
    with: what was taken and not stored is forgotten with it."""

    def __init__(self, origin: str, head: LogHead, edge: Edge, keys: KeyChain) -> None:
        """`origin` is the first of the log, `keys` are those that it has adopted up to `head`."""
        self._origin = origin
        self.head = head
        self._edge = edge
        self._keys = keys
        self._keys_upto = int(head.seq)
        self._verifier = Verifier(origin, head if head.seq else None)
        self._began = int(head.seq)  # of what the verifier remembers
        self._checkpoint: Checkpoint | None = None
        self._anchor: Anchor | None = None
        self._open_rows = 0  # that are not durable yet
        self._has_gap = False  # that no event of a page explained yet
        self._erased: set[tuple[int, str]] = set()  # that no event explained yet
        self._due: set[tuple[int, str]] = set()  # of them, before the target was sent

    @property
    def size(self) -> int:
        """That the pages lead to."""
        return self._checkpoint.size if self._checkpoint is not None else int(self.head.seq)

    @property
    def signer(self) -> VerifierKey | None:
        """The key that signed what the pages lead to."""
        return self._keys.key_at(self.size)

    def aim(self, target: Target) -> Checkpoint:
        """Hold a checkpoint against the log that is here, and follow it from now on.

        Raises: LogDamaged when it is not signed as it should be; Diverged when it is of another
        log, of an older state of this one, or of a fork.
        """
        try:
            checkpoint = parse_checkpoint(target.note)
        except Invalid as error:
            raise _refused("signature", self.head.seq, f"the checkpoint is none: {error}") from None
        if _base(checkpoint.origin) != _base(self._origin):
            raise self._another(checkpoint)
        # A fork may have other keys: that it is one says more than that they are not known.
        self._check_continues(checkpoint, target.proof)
        self._adopt(target.keys)
        self._check_signature(checkpoint)
        self._checkpoint, self._anchor = checkpoint, target.anchor
        if target.anchor is not None and self.head.seq < target.anchor.upto:
            here = self.head if self.head.seq else None
            self._verifier = Verifier(self._origin, here, target.anchor.upto)
        self._due = set(self._erased)
        return checkpoint

    def _adopt(self, events: Iterable[KeyEvent]) -> None:
        for event in events:
            if event.seq <= self._keys_upto:
                continue
            if event.type == KEY_ADOPTED:
                fault = self._keys.adopt(event.seq, event.body)
            else:
                fault = self._begin_epoch(event)
            if fault:
                raise _refused("signature", event.seq, fault)
            self._keys_upto = event.seq

    def _begin_epoch(self, event: KeyEvent) -> str | None:
        epoch = decode_epoch(event.body)
        if epoch is None or epoch.origin != self._keys.origin:
            return f"an epoch begins that does not follow {self._keys.origin}"
        self._keys.begin_epoch(event.seq, epoch.to)
        return None

    def _check_signature(self, checkpoint: Checkpoint) -> None:
        if checkpoint.origin != self._keys.origin:
            raise self._another(checkpoint)
        if not self._keys.is_signed(checkpoint):
            key = self._keys.key_at(checkpoint.size)
            fault = f"the checkpoint of {checkpoint.size} events is not signed by {key or 'a key'}"
            raise _refused("signature", checkpoint.size, fault)
        if self._keys.is_checked and not self._keys.trusts(checkpoint.size):
            raise Diverged(
                0,
                f"the leader's log is signed by {self._keys.key_at(checkpoint.size)}, which is not "
                "the key that is known here, nor adopted under it: if `kudurru audit key` on the "
                "leader shows the same and you know why it changed, start once with --adopt, or "
                "name it in audit.trustedKeys",
            )

    def _another(self, checkpoint: Checkpoint) -> Diverged:
        return Diverged(
            0,
            f"the leader's log is {checkpoint.origin} and the one here {self._keys.origin}: follow "
            "a node of the same log, or take the leader's in place of this one with --adopt",
        )

    def _check_continues(self, checkpoint: Checkpoint, proof: list[bytes]) -> None:
        here, size = self._edge.size, checkpoint.size
        if size < here:
            raise Diverged(
                size + 1,
                f"the leader's newest checkpoint is of {size} events and {here} are here: it was "
                "set back to an older state. Put its log back, or promote this node; --adopt "
                "would take the older log in place of this one",
            )
        if here and not verify_consistency(here, self._edge.root(), size, checkpoint.root, proof):
            raise forked(here)

    def take(self, page: Page) -> Copied:
        """Check the next rows. Raises: LogDamaged, which names the first bad position."""
        checkpoint = self._checkpoint
        first = int(self.head.seq) + 1
        if checkpoint is None or not first <= page.last <= checkpoint.size:
            raise _refused("gap", first, f"rows up to {page.last} come, which were not announced")
        if len(page.rows) > PAGE_ROWS_MAX:
            fault = f"{len(page.rows)} rows at once come, and at most {PAGE_ROWS_MAX} are taken"
            raise _refused("gap", first, fault)
        ours = {row.obj for row in page.rows}
        for key, _ in page.secrets:
            if key not in ours or not key.startswith(_SECRET_KINDS):
                fault = f"a secret comes for {key!r}, of which no row with it is"
                raise _refused("payload", first, fault)
        leaves = self._verified(page)
        edge, tiles, signed = self._grown(page, leaves)
        if not verify_consistency(
            page.last, edge.root(), checkpoint.size, checkpoint.root, page.proof
        ):
            what = f"rows {first} to {page.last} are not those that were signed"
            fault = f"{what} in the checkpoint of {checkpoint.size} events"
            raise _refused("tree", first, fault)
        upkeep = self._upkeep(page.rows)
        self._edge = edge
        self._check_explained(page.last == checkpoint.size)
        copied = Copied(
            rows=page.rows, tiles=tiles, checkpoints=signed, upkeep=upkeep, secrets=page.secrets,
            head=self.head, edge=edge,
            is_whole=self._is_whole(page, checkpoint),
        )  # fmt: skip
        self._forget_streams()
        return copied

    def _is_whole(self, page: Page, checkpoint: Checkpoint) -> bool:
        """Whether the log may end here, and is to be made durable."""
        self._open_rows += len(page.rows)
        if self._has_gap or not self._verifier.is_between_sets:
            return False
        is_due = self._open_rows >= COMMIT_ROWS or page.last == checkpoint.size
        self._open_rows = 0 if is_due else self._open_rows
        return is_due

    # --- rows ---------------------------------------------------------------------------

    def _verified(self, page: Page) -> list[bytes]:
        """The leaves of a page. `head` is at its end then."""
        verifier = self._verifier
        if len(page.rows) == page.last - self.head.seq and not page.leaves:
            verifier.feed_all(page.rows)
            leaves = [row.leaf for row in page.rows]
        else:
            leaves = self._verified_with_gaps(page)
        if verifier.first_damage is not None:
            raise verifier.first_damage
        if verifier.seq != page.last:
            raise _refused("gap", verifier.seq + 1, f"the page ends there, and not at {page.last}")
        ts = page.rows[-1].ts if page.rows else self.head.ts
        self.head = LogHead(Position(page.last), ts, verifier.newest_head)
        erased, redacted = verifier.take_erased()
        self._erased = (self._erased | erased) - redacted
        return leaves

    def _verified_with_gaps(self, page: Page) -> list[bytes]:
        anchor, given, at = self._anchor, page.leaves, 0
        rows = {row.seq: row for row in page.rows}
        if list(rows) != sorted(rows) or len(rows) != len(page.rows):
            raise _refused("gap", self.head.seq + 1, "rows come twice, or out of order")
        for seq in rows:
            if not self.head.seq < seq <= page.last:
                raise _refused("gap", seq, f"the row is none of those up to {page.last}")
        leaves = []
        for seq in range(int(self.head.seq) + 1, page.last + 1):
            row = rows.get(seq)
            if row is not None:
                self._verifier.feed(row)
                leaves.append(row.leaf)
                continue
            leaf = given[at : at + 32]
            if anchor is None or seq > anchor.upto or anchor.keeps(seq) or len(leaf) < 32:
                raise _refused("gap", seq, "the row is missing, and was not pruned")
            leaves.append(leaf)
            self._verifier.skip(seq, leaf)
            at += 32
            self._has_gap = True
        return leaves

    def _forget_streams(self) -> None:
        if self.head.seq - self._began >= STREAMS_MAX and self._verifier.is_between_sets:
            self._verifier = Verifier(self._origin, self.head)
            self._began = int(self.head.seq)

    # --- the tree -----------------------------------------------------------------------

    def _grown(
        self, page: Page, leaves: list[bytes]
    ) -> tuple[Edge, list[Tile], list[StoredCheckpoint]]:
        """The tree with these leaves, the tiles to store, and the checkpoints on the way."""
        edge, tiles, signed, first = self._edge, [], [], self._edge.size
        wanted = {row.seq: row for row in page.rows if row.type == CHECKPOINT_STATE}
        for stored in page.checkpoints:
            if not edge.size < stored.size <= page.last:
                raise _refused("signature", stored.size, "a checkpoint is out of order")
            edge, more = edge.extended(leaves[edge.size - first : stored.size - first])
            tiles += more
            row = wanted.pop(stored.size, None)
            signed.append(self._checked(stored, edge, row.body if row is not None else None))
        if wanted:
            size = min(wanted)
            raise _refused("signature", size, f"the checkpoint of {size} events is missing")
        edge, more = edge.extended(leaves[edge.size - first :])
        return edge, tiles + more, signed

    def _checked(
        self, stored: StoredCheckpoint, edge: Edge, body: bytes | None
    ) -> StoredCheckpoint:
        """A checkpoint that belongs to the rows, as it is stored beside them."""
        try:
            found = parse_checkpoint(stored.note)
        except Invalid as error:
            raise _refused("signature", stored.size, f"a checkpoint is none: {error}") from None
        if found.size != stored.size or found.root != edge.root():
            fault = f"the checkpoint of {stored.size} events has another root than its rows"
            raise _refused("tree", stored.size, fault)
        if not self._keys.is_signed(found):
            fault = f"the checkpoint of {stored.size} events is signed by another key"
            raise _refused("signature", stored.size, fault)
        # Of a row that is gone nothing vouches for what the leader says of it.
        state = sha256(body).digest() if body is not None else None
        return StoredCheckpoint(stored.size, stored.note, b"".join(edge.frontier()), state)

    # --- what was taken away ------------------------------------------------------------

    def _upkeep(self, rows: Iterable[LogRow]) -> Upkeep:
        erase: list[Erasure] = []
        epoch, prune = 0, None
        for row in rows:
            if row.body is None or row.type in OBJECT_TYPES:
                continue
            if row.type == PAYLOAD_REDACTED:
                erase += _erasures(row.seq, row.body)
            elif row.type == LOG_EPOCH and (began := decode_epoch(row.body)) is not None:
                epoch = epoch_in(began.to)
            elif row.type == LOG_PRUNED:
                prune = self._pruned(row.body) or prune
        return Upkeep(erase=tuple(erase), prune=prune, epoch=epoch)

    def _pruned(self, body: bytes) -> Anchor | None:
        """Where the log begins since; None where a later pruning took more."""
        anchor = self._anchor
        try:
            matches = anchor is not None and _decode_pruned(body).matches(anchor)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            matches = False
        if not matches:
            return None
        self._has_gap = False
        return anchor

    def _check_explained(self, is_end: bool) -> None:
        """At the end of a target nothing may be missing that no event says the reason of."""
        if not is_end:
            return
        if self._has_gap:
            raise _refused("gap", 1, "rows are missing, and no event says that they were pruned")
        if due := sorted(self._due & self._erased):
            seq, part = due[0]
            raise _refused("payload", seq, f"the {part} was erased and no event says who did")
        self._due = set(self._erased)


def forked(here: int, position: int = 0) -> Diverged:
    """`position`: the first that the two logs do not have in common; 0: it is not known."""
    return Diverged(
        position,
        f"the leader's log has another history than the {here} events here: it is a fork. Follow "
        "the node that counts; --adopt takes its log in place of this one",
    )


def _base(origin: str) -> str:
    """An origin without its epoch."""
    return origin.rpartition("/")[0]


def _erasures(seq: int, body: bytes) -> Iterator[Erasure]:
    """What a redaction at a position takes away. One that cannot be read names nothing."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        found = _decode_redaction(body)
        if covered := found.covers(seq - 1):
            yield Erasure(covered[0], covered[-1], found.part)


_decode_redaction = msgspec.json.Decoder(Redaction).decode
_decode_pruned = msgspec.json.Decoder(PrunedBody).decode


def _refused(kind: str, position: int, what: str) -> LogDamaged:
    return LogDamaged(kind, int(position), f"{what}; {_ADVICE}")
