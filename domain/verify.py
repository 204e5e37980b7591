"""Verification: reads the rows of a log back and names every damage.

The other half of `domain.chain`. Pure: rows come from a `VerifiableLog`, whatever it is kept in.
What the file alone cannot show is a tail that was cut off cleanly, its checkpoint with it; for that
a checkpoint must have gone out.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from kudurru.domain.chain import (
    ENTRY_VERSION,
    FIRST_VERSIONS,
    SALT_SIZE,
    Header,
    Redaction,
    commitment,
    decode_header,
    encode_header,
    entry_version,
    genesis,
    head_after,
    leaf_of,
    origin_of,
)
from kudurru.domain.epochs import epochs, first_origin
from kudurru.domain.errors import ADVICE, Conflict, LogDamaged, LogNewer
from kudurru.domain.events import PAYLOAD_REDACTED, Position
from kudurru.domain.ports import Anchor, LogHead, LogRow, VerifiableLog
from kudurru.domain.pruning import PrunedBody, newest_pruning
from kudurru.domain.tree import TILE_WIDTH, Edge
from kudurru.domain.verify_tree import Signed, TreeVerifier, Trust

TAIL_ROWS = 10_000
"""What is verified at every start: a tenth of a second of work."""

DAMAGES_MAX = 1_000
"""Damages that are described; more are only counted. A log that is wrong from the first row to
the last must not take memory for a message per row."""

SAID_MAX = 4_096
"""Pairs of a manager and a number of rows that a verifier remembers how they are written."""

SAID_BYTES = 8_192
"""Of one of them: the longest manager takes six octets a character. A longer one, which no version
of this program writes, is not remembered."""

AT_ONCE = 256
"""Rows that are taken in together: after one that is not plain the rest of them is copied, and
somebody may send a hundred thousand that are not."""

_decode_redaction = msgspec.json.Decoder(Redaction).decode


class Verified(msgspec.Struct, frozen=True):
    """The outcome of a verification."""

    rows: int  # how many were read
    newest: int  # seq of the last of them, 0 when there is none
    damages: tuple[LogDamaged, ...]  # by position, at most about DAMAGES_MAX
    damage_count: int
    signed: Signed = Signed()
    pruned: int = 0  # rows up to here went, but for those that state needs

    @property
    def is_whole(self) -> bool:
        return not self.damage_count


def verify(
    log: VerifiableLog,
    *,
    after: int = 0,
    tail: int | None = None,
    trust: Trust | None = None,
    seen: Callable[[LogRow], None] | None = None,
) -> Verified:
    """Verify a log from its first row, after a position, or the newest `tail` rows; then from the
    stored head and the stored tree there, which the newest checkpoint is held against. Without
    `trust` neither tree nor signatures are looked at. `seen` is called after each row, for
    progress.

    Of rows that were pruned only the leaves are left: those are held against the tree, and the
    rows between them against their leaves.

    Raises: LogNewer at a row written by a newer kudurru; Conflict when the log was pruned meanwhile
    and rows are missed for that; StorageFailed.
    """
    pruned = _Pruned(log)
    start = _start(log, log.head().seq - tail if tail is not None else after, pruned.upto)
    verifier = Verifier(first_origin(log), start, pruned.upto)
    first = verifier.seq
    tree = TreeVerifier(log, first, trust, verifier.damaged) if trust is not None else None
    count = 0
    try:
        for damage in pruned.damages:
            verifier.damaged(damage)
        for row in log.rows(first):
            if row.seq <= pruned.upto:
                _skip_to(row.seq, pruned, verifier, tree)
            verifier.feed(row)
            count += 1
            if tree is not None and not verifier.damage_count:
                tree.feed(row)
            if seen is not None:
                seen(row)
        _check_epoch(log, verifier.damaged)
    except LogDamaged as damage:  # rows that the storage cannot even read
        verifier.damaged(damage)
    signed = tree.finish(verifier.seq) if tree is not None else Signed()
    damages = verifier.finish()
    if damages and log.oldest() != pruned.began_at:
        raise Conflict("the log was pruned while it was verified: run the command again")
    return Verified(count, verifier.seq, damages, verifier.damage_count, signed, pruned.upto)


def _skip_to(
    found: int, pruned: "_Pruned", verifier: "Verifier", tree: TreeVerifier | None
) -> None:
    """Take in the leaves of pruned rows before one that is there, and may be there."""
    for seq in pruned.before(found, verifier.seq):
        leaf = pruned.leaf(seq)
        verifier.skip(seq, leaf)
        if tree is not None and not verifier.damage_count:
            tree.feed_pruned(seq, leaf)
    if not pruned.may_be_there(found):
        message = f"the row was pruned, and is there again; {ADVICE}"
        verifier.damaged(LogDamaged("gap", found, message))


class _Pruned:
    """Rows that are not there, and need not be. Where nobody can tell which those are, any of
    those that were pruned."""

    def __init__(self, log: VerifiableLog) -> None:
        self._log = log
        self._anchor = log.anchor()
        self.began_at = log.oldest()
        self.damages: list[LogDamaged] = []
        self._leaves: Sequence[bytes] = ()
        self._tile = -1
        self.upto = 0
        found = newest_pruning(log)
        if found is not None:
            self.upto = found[1].upto
            if self._anchor is None or not found[1].matches(self._anchor):
                self._anchor = None
                self.damages.append(_no_anchor(*found))
        elif self._anchor is not None:
            self.damages.append(_no_pruning(self._anchor))
            self._anchor = None

    def before(self, found: int, newest: int) -> Iterator[int]:
        """Positions after `newest` that were pruned, up to the first that should be there."""
        for seq in range(newest + 1, min(found, self.upto + 1)):
            if self._anchor is not None and self._anchor.keeps(seq):
                return
            yield seq

    def may_be_there(self, seq: int) -> bool:
        return self._anchor is None or self._anchor.keeps(seq)

    def leaf(self, seq: int) -> bytes:
        """Raises: LogDamaged when the tree has lost it."""
        tile, at = divmod(seq - 1, TILE_WIDTH)
        if tile != self._tile:
            first = tile * TILE_WIDTH
            self._tile, self._leaves = tile, self._log.hashes(0, first, first + TILE_WIDTH)
        if at >= len(self._leaves):
            raise LogDamaged("tree", seq, f"the leaf of a pruned row is missing; {ADVICE}")
        return self._leaves[at]


def _no_anchor(seq: int, body: PrunedBody) -> LogDamaged:
    return LogDamaged(
        "state",
        body.upto,
        f"the rows that the pruning at {seq} left up to here are written down otherwise beside "
        f"the checkpoint of {body.anchor} events; {ADVICE}",
    )


def _no_pruning(anchor: Anchor) -> LogDamaged:
    return LogDamaged(
        "state",
        anchor.upto,
        "rows up to here are said to have been pruned, beside the checkpoint of "
        f"{anchor.size} events, and no event says so; {ADVICE}",
    )


def _check_epoch(log: VerifiableLog, report: Callable[[LogDamaged], None]) -> None:
    """The name that the log has is the one that its newest epoch began with."""
    began = epochs(log)
    origin = origin_of(log.log_id, log.epoch)
    if began and began[-1][1].to != origin:
        seq, body = began[-1]
        report(LogDamaged("entry", seq, f"the log is {body.to} since, and says {origin}; {ADVICE}"))


def _start(log: VerifiableLog, before: int, pruned: int) -> LogHead | None:
    """The stored head after about `before` rows, at the edge of a tile. None (verify everything)
    when it is before the first row, or head or tree are missing: a log that looks wrong is read
    whole."""
    before -= before % TILE_WIDTH
    if before <= 0:
        return None
    before = max(before, pruned)
    try:
        Edge.read(before, log.hashes)
    except LogDamaged:
        return None
    return next(
        (LogHead(Position(row.seq), row.ts, row.head) for row in log.rows(before - 1, before)),
        None,
    )


class Verifier:
    """Reads rows in order and collects what is wrong with them.

    Kinds of damage: `gap`, a row is missing or a change set is cut; `payload`, a body or who (or
    its salt) is not what was committed to, or is erased and no later event says so; `entry`, an
    entry is changed, or a column, a streams or a scopes row contradicts it; `chain`, a stored
    leaf or head is not the computed one. A row may have several, each kind once. After a damage
    the verifier picks up the thread, so that the next is an independent one.
    """

    def __init__(self, origin: str, after: LogHead | None = None, pruned: int = 0) -> None:
        """Begin before the first row, or after a place whose head the caller trusts. Up to
        `pruned` rows may be left out."""
        self.seq = int(after.seq) if after else 0
        self._pruned = pruned
        self.damage_count = 0
        self._damages: list[LogDamaged] = []
        # The heads that the next row may continue: more than one after a damaged row, where it
        # is open which of two was meant; none after a gap, where any is taken.
        self._heads: tuple[bytes, ...] = (after.hash if after else genesis(origin),)
        self._ts = after.ts if after else 0
        self._is_whole_history = after is None
        self._versions: dict[str, int] = {}
        self._txn = self._n = 0  # of the change set that the newest row belongs to
        self._set_is_known = after is None
        self._erased: set[tuple[int, str]] = set()
        self._redacted: set[tuple[int, str]] = set()
        self._who: tuple[bytes | None, bytes | None, str] = (None, None, "")
        self._said: dict[bytes, tuple[str, int]] = {}  # manager and n, by how they are written

    def feed(self, row: LogRow) -> None:
        """Raises: LogNewer."""
        if not self._take_plain((row,)):
            self._feed_closely(row)

    def feed_all(self, rows: Sequence[LogRow]) -> None:
        """`feed` of one after the other, for less. Raises: LogNewer."""
        at = 0
        while at < len(rows):
            part = rows[at : at + AT_ONCE]
            plain = self._take_plain(part)
            at += plain
            if plain < len(part):
                self._feed_closely(rows[at])
                at += 1

    def skip(self, seq: int, leaf: bytes) -> None:
        """A row that was pruned: the chain goes on through its leaf."""
        self.seq = seq
        self._heads = tuple(head_after(head, leaf) for head in self._heads)
        self._set_is_known = False

    def damaged(self, damage: LogDamaged) -> None:
        """Count in a damage that was found elsewhere."""
        self.damage_count += 1
        if len(self._damages) < DAMAGES_MAX:
            self._damages.append(damage)

    @property
    def first_damage(self) -> LogDamaged | None:
        """Of those that rows showed so far."""
        return self._damages[0] if self._damages else None

    @property
    def newest_head(self) -> bytes:
        """Of the chain, after rows in which nothing was wrong."""
        return self._heads[0]

    @property
    def is_between_sets(self) -> bool:
        """Whether the newest row is the last of its change set."""
        return self.seq + 1 >= self._txn + self._n

    def take_erased(self) -> tuple[set[tuple[int, str]], set[tuple[int, str]]]:
        """Payloads that were missing in the rows since the last call, and those that a redaction
        among these rows excuses, as (position, "body" or "who"). For who verifies a log in parts:
        `finish` knows nothing of them any more."""
        found = self._erased, self._redacted
        self._erased, self._redacted = set(), set()
        return found

    def finish(self) -> tuple[LogDamaged, ...]:
        """All damages by position, once the last row was fed."""
        self._end_set(self.seq + 1)
        for seq, part in sorted(self._erased - self._redacted)[:DAMAGES_MAX]:
            self._damages.append(
                LogDamaged(
                    "payload",
                    seq,
                    f"the {part} was erased and no later event says who redacted it; {ADVICE}",
                )
            )
        self.damage_count += len(self._erased - self._redacted)
        self._erased.clear()
        return tuple(sorted(self._damages, key=lambda damage: damage.position))

    def _take_plain(self, rows: Sequence[LogRow]) -> int:
        """Take in rows in which nothing is wrong and nothing special, as nearly all are, up to the
        first that is not so; how many. `_feed_closely` looks at each thing of that one by itself,
        and says what is wrong.

        The entry is not read: the one that columns and payloads lead to is written, and has to be
        the same octets. So it is canonical, commits to the payloads, and no column contradicts it.
        """
        if not self._set_is_known or len(self._heads) != 1 or self.seq < self._pruned:
            return 0
        # State is in variables: a million rows a minute come by.
        first = newest = self.seq
        txn, n, ts, (head,) = self._txn, self._n, self._ts, self._heads
        versions, said = self._versions, self._said
        who_salt, who, who_commitment = self._who
        for row in rows:
            seq, obj, ver, entry, its_txn = row.seq, row.obj, row.ver, row.entry, row.txn
            if not isinstance(entry, bytes):
                break  # a damaged file may hold whatever it likes
            manager, its_n = said.get(_manager_and_n(entry), ("", 0))
            if (
                seq != newest + 1 or row.type == PAYLOAD_REDACTED or versions.get(obj, 0) + 1 != ver  # type: ignore[arg-type]  # None has none
            ):
                break
            # Another one of its change set, or the first of the next.
            if its_n != n if its_txn == txn else not txn + n <= seq == its_txn:
                break
            if row.who != who or row.who_salt != who_salt:  # they are equal in a change set
                who, who_salt = row.who, row.who_salt
                who_commitment = _commitment(who_salt, who)
            if (
                _entry_of(row, manager, its_n, who_commitment) != entry
                or row.ts < ts
                or seq >= its_txn + its_n
            ):
                break
            leaf = sha256(b"\x00" + entry).digest()  # leaf_of and head_after
            its_head = sha256(b"\x02" + head + leaf).digest()
            if leaf != row.leaf or its_head != row.head:
                break
            newest, txn, n, ts, head = seq, its_txn, its_n, row.ts, its_head
            versions[obj] = ver  # type: ignore[index]  # a str, as the entry was written
        self.seq, self._txn, self._n, self._ts, self._heads = newest, txn, n, ts, (head,)
        self._who = (who_salt, who, who_commitment)
        return newest - first

    def _feed_closely(self, row: LogRow) -> None:
        if row.seq != self.seq + 1:
            self._gap(row.seq)
        self.seq = row.seq
        header = self._header(row) if self._continues_chain(row) else None
        if header is None:
            self._forget_order()
            return
        self._note_said(row.entry, header)
        self._compare_columns(row, header)
        self._check_payloads(row, header)
        self._check_order(header)

    def _note_said(self, entry: bytes, header: Header) -> None:
        said = _manager_and_n(entry)
        if len(said) > SAID_BYTES:
            return
        if len(self._said) >= SAID_MAX:
            self._said.clear()
        self._said[said] = header.manager, header.n

    def _report(self, kind: str, message: str, position: int | None = None) -> None:
        at = self.seq if position is None else position
        self.damaged(LogDamaged(kind, at, f"{message}; {ADVICE}"))

    def _gap(self, found: int) -> None:
        missing = self.seq + 1
        rows = f"row {missing} is" if found == missing + 1 else f"rows {missing} to {found - 1} are"
        self._report("gap", f"{rows} missing from the log", missing)
        self._heads = ()
        self._forget_order()

    def _forget_order(self) -> None:
        """A row could not be read: its change set and its stream may be any."""
        self._set_is_known = self._is_whole_history = False
        self._versions.clear()

    def _continues_chain(self, row: LogRow) -> bool:
        """Whether the entry is what was sealed, so that the rest can be held against it."""
        stored: tuple[Any, Any, Any] = (row.entry, row.leaf, row.head)  # whatever a file holds
        entry, leaf, head = stored
        if not (isinstance(entry, bytes) and isinstance(leaf, bytes) and isinstance(head, bytes)):
            self._report("entry", "entry, leaf or head is not even octets")
            self._heads = ()
            return False
        computed = leaf_of(entry)
        if computed == leaf and self._is_next(computed, head):
            self._heads = (head,)
            return True
        if computed == leaf:
            self._report("chain", "the head is not the hash of the head before and this leaf")
            self._heads = (head_after(self._heads[0], leaf), head)
            return True
        candidates = self._heads
        self._heads = (head,)
        if any(head == head_after(previous, computed) for previous in candidates):
            self._report("chain", "the leaf is not the hash of the entry, and the head is")
            return True
        if not candidates or any(head == head_after(previous, leaf) for previous in candidates):
            self._report("entry", "the entry is not the one that its leaf was made of")
        else:
            self._report("chain", "entry, leaf and head do not belong together")
        return False

    def _is_next(self, leaf: bytes, head: bytes) -> bool:
        if len(self._heads) == 1:  # as long as nothing was wrong
            return head == head_after(self._heads[0], leaf)
        return not self._heads or any(head == head_after(h, leaf) for h in self._heads)

    def _header(self, row: LogRow) -> Header | None:
        try:
            header = decode_header(row.entry)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._refuse_newer(row)
            self._report("entry", f"the entry cannot be read ({error})")
            return None
        if header.v != ENTRY_VERSION or encode_header(header) != row.entry:
            self._refuse_newer(row)
            self._report("entry", "the entry is not in its one canonical form")
            return None
        return header

    def _refuse_newer(self, row: LogRow) -> None:
        version = entry_version(row.entry)
        if version is not None and version > ENTRY_VERSION:
            raise LogNewer(
                f"position {row.seq} is of entry version {version}, and this kudurru knows "
                f"{ENTRY_VERSION}: verify with the version that wrote it"
            )

    def _compare_columns(self, row: LogRow, header: Header) -> None:
        if (
            row.seq == header.seq
            and row.txn == header.txn
            and row.ts == header.ts
            and row.obj == header.obj
            and row.ver == header.ver
            and row.scope == header.scope
            and row.type == header.type
        ):
            return
        names = ("seq", "txn", "ts", "obj", "ver", "scope", "type")
        wrong = [
            f"{name} is {getattr(row, name)!r} and was {getattr(header, name)!r}"
            for name in names
            if getattr(row, name) != getattr(header, name)
        ]
        self._report("entry", f"columns contradict the entry: {', '.join(wrong)}")

    def _check_payloads(self, row: LogRow, header: Header) -> None:
        problems = []
        if not self._is_committed("body", row.salt, row.body, header.body):
            problems.append("body")
        elif header.type == PAYLOAD_REDACTED and row.body is not None:
            self._note_redaction(row.body)
        who = (row.who_salt, row.who, header.who)
        if who != self._who:  # mostly that of the row before
            if not self._is_committed("who", *who):
                problems.append("who")
            elif row.who is not None:
                self._who = who
        if problems:
            names = " and ".join(problems)
            self._report("payload", f"{names} or the salt of it is not what was committed to")

    def _is_committed(
        self, part: str, salt: bytes | None, payload: bytes | None, committed: str
    ) -> bool:
        if salt is None and payload is None:
            self._erased.add((self.seq, part))
            return True
        return committed != "" and _commitment(salt, payload) == committed

    def _note_redaction(self, body: bytes) -> None:
        try:
            redaction = _decode_redaction(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return  # it names nothing, so nothing is excused by it
        self._redacted.update((seq, redaction.part) for seq in redaction.covers(self.seq - 1))

    def _check_order(self, header: Header) -> None:
        """Change sets are whole, time never goes back, streams have no gap."""
        if self.seq <= self._pruned:
            self._ts = max(self._ts, header.ts)
            self._versions[header.obj] = header.ver
            # The rows that went may have ended in the middle of a change set.
            self._txn, self._n = header.txn, header.n
            self._set_is_known = self.seq == self._pruned
            return
        self._check_set(header)
        if header.ts < self._ts:
            self._report("entry", f"time goes back from {self._ts} to {header.ts}")
        self._ts = max(self._ts, header.ts)
        before = self._versions.get(header.obj)
        is_next = (
            header.ver == before + 1
            if before is not None
            else not self._is_whole_history or header.ver in FIRST_VERSIONS
        )
        if not is_next:
            self._report("entry", f"version {header.ver} of {header.obj} follows {before or 0}")
        self._versions[header.obj] = header.ver

    def _check_set(self, header: Header) -> None:
        if not header.txn <= header.seq < header.txn + header.n:
            self._report("gap", f"it is outside its change set of {header.txn}, {header.n} events")
            self._set_is_known = False
            return
        if self._set_is_known:
            if header.txn == self._txn and header.n == self._n:
                return
            self._end_set(header.seq)
            if header.txn != header.seq:
                self._report("gap", f"the first rows of the change set of {header.txn} are missing")
        self._txn, self._n, self._set_is_known = header.txn, header.n, True

    def _end_set(self, next_seq: int) -> None:
        if self._set_is_known and next_seq < self._txn + self._n:
            self._report(
                "gap",
                f"the change set of {self._txn} has {self._n} events and is cut",
                next_seq,
            )


def _manager_and_n(entry: bytes) -> bytes:
    """Where a canonical entry says them: after the commitment to the body. No text in it has a
    quote that is not escaped. Some octets of any other entry."""
    return entry[73 : entry.find(b',"obj":', 73)]


def _commitment(salt: bytes | None, payload: bytes | None) -> str:
    """To a payload; "" where there is none, or a salt that is none."""
    # The size of the salt is checked, or octets could move between salt and payload.
    if isinstance(salt, bytes) and isinstance(payload, bytes) and len(salt) == SALT_SIZE:
        return commitment(salt, payload)
    return ""


def _entry_of(row: LogRow, manager: str, n: int, who_commitment: str) -> bytes | None:
    """The entry that a row should have, by its columns and payloads. Manager and number of rows
    are in no column. None where a column or payload is not even of its type: a damaged file may
    hold whatever it likes."""
    txn, ts, ver, obj, scope, type_ = row.txn, row.ts, row.ver, row.obj, row.scope, row.type
    body_commitment = _commitment(row.salt, row.body)
    if not (
        body_commitment
        and who_commitment
        and type(txn) is int
        and type(ts) is int
        and type(ver) is int
        and type(obj) is str
        and type(scope) is str
        and type(type_) is str
    ):
        return None
    header = Header(
        body_commitment, manager, n, obj, scope, row.seq, ts, txn, type_,
        ENTRY_VERSION, ver, who_commitment,
    )  # fmt: skip
    try:
        return encode_header(header)
    except UnicodeEncodeError:  # text that is no UTF-8
        return None
