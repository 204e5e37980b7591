"""The hash chain: what makes an edit of the log visible.

    entry  = canonical JSON {body, manager, n, obj, scope, seq, ts, txn, type, v, ver, who}
    body   = SHA-256(0x10 ‖ salt of 16 octets ‖ payload)      (and `who` alike)
    leaf   = SHA-256(0x00 ‖ entry)
    head   = SHA-256(0x02 ‖ head before ‖ leaf)
    before = SHA-256(0x03 ‖ origin)                           (the head before seq 1)

The first octet keeps the four kinds of hash apart, as in RFC 6962 section 2.1. `leaf` is that
RFC's leaf hash, so the entries are the leaves of its tree too. Payloads are committed to and not
contained, so that one can be erased and the chain still verifies; they are salted because DNS
payloads can be guessed.

`seal` turns decided events into rows; `domain.verify` reads rows back.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Literal

import msgspec

from kudurru.domain.codec import canonical
from kudurru.domain.errors import ADVICE, LogDamaged
from kudurru.domain.events import ChangeSet, Event, Position, Recorded
from kudurru.domain.ports import LogHead, LogRow

ENTRY_VERSION = 1
SALT_SIZE = 16
FIRST_VERSIONS = (0, 1)
"""A stream of ours begins at 1. Streams that came through the eventsourcing library's own
interface may begin at 0, as its aggregates may."""


def origin_of(log_id: str, epoch: int) -> str:
    """The name of a chain. An epoch begins when a log is restored from a backup."""
    return f"kudurru/{log_id}/{epoch}"


def genesis(origin: str) -> bytes:
    return sha256(b"\x03" + origin.encode()).digest()


def commitment(salt: bytes, payload: bytes) -> str:
    return sha256(b"\x10" + salt + payload).hexdigest()


def leaf_of(entry: bytes) -> bytes:
    return sha256(b"\x00" + entry).digest()


def head_after(previous: bytes, leaf: bytes) -> bytes:
    return sha256(b"\x02" + previous + leaf).digest()


class Header(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What an entry says. Fields stand in the order of the canonical form (RFC 8785 section
    3.2.3), so that plain encoding writes it."""

    body: str  # commitment, lower-case hex
    manager: str
    n: int  # rows of the change set, so that a set cut in two is seen
    obj: str  # the key of the stream
    scope: str
    seq: int
    ts: int  # microseconds UTC
    txn: int  # seq of the first row of the change set
    type: str
    v: int  # ENTRY_VERSION
    ver: int
    who: str  # commitment, lower-case hex


class Redaction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the body of a `payload.redacted.v1` must say; it may say more."""

    seq: int
    part: Literal["body", "who"] = "body"
    last: int = 0  # the last position where several in a row share the payload; 0: `seq` alone

    def covers(self, newest: int) -> range:
        """Positions whose payload it excuses, none after `newest`. Whoever owns the file may have
        written any numbers."""
        return range(max(self.seq, 1), min(max(self.last, self.seq), newest) + 1)


class Sealed(msgspec.Struct, frozen=True, gc=False):
    """An event as it is stored."""

    event: Recorded
    salt: bytes | None  # None with its payload
    who_salt: bytes | None
    entry: bytes
    leaf: bytes
    head: bytes


encode_header: Callable[[Header], bytes] = msgspec.json.Encoder().encode
decode_header: Callable[[bytes], Header] = msgspec.json.Decoder(Header).decode


class _Place(msgspec.Struct, frozen=True, gc=False):
    """The part of a header that readers of events need; the rest is skipped unread."""

    manager: str
    n: int
    obj: str
    scope: str
    seq: int
    ts: int
    txn: int
    type: str
    ver: int


class _Version(msgspec.Struct, frozen=True):
    v: int


_decode_place = msgspec.json.Decoder(_Place).decode
_decode_version = msgspec.json.Decoder(_Version).decode


def salts_size(change_sets: Iterable[ChangeSet]) -> int:
    """Octets of salt that `seal` needs: one salt a payload, one `who` a change set."""
    return SALT_SIZE * sum(len(change_set.events) + 1 for change_set in change_sets)


def seal(
    change_sets: Sequence[ChangeSet], head: LogHead, now_us: int, salts: bytes
) -> list[Sealed]:
    """Rows that continue the chain after `head`, in the order of the events.

    `salts` are `salts_size` unpredictable octets. Time never goes back: every row gets
    max(ts of the head, now_us). The rows of a change set share the salt of their `who`: that
    they have one author is no secret, their `txn` says it.
    """
    ts, seq, previous, at = max(head.ts, now_us), int(head.seq), head.hash, 0
    rows: list[Sealed] = []
    for change_set in change_sets:
        who, who_salt = canonical(change_set.who), salts[at : at + SALT_SIZE]
        who_commitment = commitment(who_salt, who)
        at += SALT_SIZE
        txn, n = seq + 1, len(change_set.events)
        for event in change_set.events:
            seq += 1
            salt = salts[at : at + SALT_SIZE]
            at += SALT_SIZE
            recorded = _recorded(event, seq, txn, n, ts, who)
            entry = _entry(recorded, commitment(salt, event.body), who_commitment)
            leaf = leaf_of(entry)
            previous = head_after(previous, leaf)
            rows.append(Sealed(recorded, salt, who_salt, entry, leaf, previous))
    assert at == len(salts), "these are not the salts_size octets of these change sets"
    return rows


def _recorded(event: Event, seq: int, txn: int, n: int, ts: int, who: bytes) -> Recorded:
    return Recorded(
        Position(seq),
        Position(txn),
        n,
        ts,
        event.type,
        event.key,
        event.ver,
        event.scope,
        event.manager,
        event.body,
        who,
    )


def _entry(event: Recorded, body_commitment: str, who_commitment: str) -> bytes:
    return encode_header(
        Header(
            body_commitment,
            event.manager,
            event.n,
            event.key,
            event.scope,
            event.seq,
            event.ts,
            event.txn,
            event.type,
            ENTRY_VERSION,
            event.ver,
            who_commitment,
        )
    )


def recorded_of(seq: int, entry: bytes, body: bytes | None, who: bytes | None) -> Recorded:
    """The event of a stored row, read from what was hashed; the columns beside only find it.

    Raises: LogDamaged when the entry cannot be read.
    """
    try:
        place = _decode_place(entry)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LogDamaged("entry", seq, f"the entry cannot be read ({error}); {ADVICE}") from error
    return Recorded(
        Position(place.seq),
        Position(place.txn),
        place.n,
        place.ts,
        place.type,
        place.obj,  # type: ignore[arg-type]  # a Key, as it was sealed
        place.ver,
        place.scope,
        place.manager,
        body,
        who,
    )


def entry_version(entry: bytes) -> int | None:
    """`v` of an entry of any version, None when it cannot be read."""
    try:
        return _decode_version(entry).v
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def row_of(sealed: Sealed) -> LogRow:
    """A row whose columns say what its entry says."""
    event = sealed.event
    return LogRow(
        seq=event.seq,
        txn=event.txn,
        ts=event.ts,
        obj=event.key,
        ver=event.ver,
        scope=event.scope,
        type=event.type,
        entry=sealed.entry,
        salt=sealed.salt,
        body=event.body,
        who_salt=sealed.who_salt,
        who=event.who,
        leaf=sealed.leaf,
        head=sealed.head,
    )
