"""Entries, chain and verification. The forms are pinned by values that were computed here with
nothing but hashlib and a reference implementation of RFC 8785, and by literal hashes: a log that
was written once must verify for ever."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.domain import chain
from kudurru.domain import verify as verification
from kudurru.domain.codec import INTEGER_MAX
from kudurru.domain.errors import LogDamaged, LogNewer
from kudurru.domain.events import PAYLOAD_REDACTED, ChangeSet, Event, Position
from kudurru.domain.object_store import MANAGER_MAX
from kudurru.domain.ports import LogHead, LogRow
from kudurru.domain.verify import DAMAGES_MAX, Verifier, verify
from tests.logs import (
    NOON_US,
    applied,
    change,
    history,
    memory_log,
    recorded_history,
    rows_of,
)

ORIGIN = "kudurru/0123456789abcdef/1"


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def sealed_rows(change_sets: list[ChangeSet] | None = None) -> list[LogRow]:
    """Rows of one append after the beginning of ORIGIN."""
    change_sets = history() if change_sets is None else change_sets
    salts = bytes(n % 256 for n in range(chain.salts_size(change_sets)))
    before = LogHead(Position(0), 0, chain.genesis(ORIGIN))
    return [chain.row_of(row) for row in chain.seal(change_sets, before, NOON_US, salts)]


def rechained(rows: list[LogRow]) -> list[LogRow]:
    """The rows with leaf and head computed anew: what a forger with the code would write."""
    head, done = chain.genesis(ORIGIN), []
    for row in rows:
        leaf = chain.leaf_of(row.entry)
        head = chain.head_after(head, leaf)
        done.append(msgspec.structs.replace(row, leaf=leaf, head=head))
    return done


class CloseVerifier(Verifier):
    """Looks at each thing of each row by itself, however plain the row is."""

    def _take_plain(self, rows: Sequence[LogRow]) -> int:
        return 0


def damages_of(rows: list[LogRow], after: LogHead | None = None) -> list[tuple[str, int]]:
    """The short way over plain rows, one by one and many at once, finds what the long one does."""
    found = []
    for kind, many in ((CloseVerifier, 1), (Verifier, 1), (Verifier, 5), (Verifier, 1_000)):
        verifier = kind(ORIGIN, after)
        for first in range(0, len(rows), many):
            verifier.feed_all(rows[first : first + many])
        damages = [(damage.kind, damage.position) for damage in verifier.finish()]
        found.append((damages, verifier.seq, verifier.newest_head if not damages else None))
    assert all(one == found[0] for one in found)
    return found[0][0]


def with_row(rows: list[LogRow], at: int, /, **columns: Any) -> list[LogRow]:
    return [msgspec.structs.replace(row, **columns) if row.seq == at else row for row in rows]


def with_header(rows: list[LogRow], at: int, /, **fields: Any) -> list[LogRow]:
    """The rows with another header in one entry and in its columns, chained anew."""
    header = msgspec.structs.replace(chain.decode_header(rows[at - 1].entry), **fields)
    columns = {name: value for name, value in fields.items() if hasattr(rows[0], name)}
    return rechained(with_row(rows, at, entry=chain.encode_header(header), **columns))


def test_the_hashes_are_the_documented_ones() -> None:
    row = sealed_rows()[0]
    salt, who_salt = bytes(range(16, 32)), bytes(range(16))
    body = b'{"name":"www","ver":1}'
    who = rfc8785.dumps(
        {"actor": "user:1000", "source": "test", "reason": "because", "cause": "", "wall": NOON_US}
    )
    entry = rfc8785.dumps(
        {
            "v": 1,
            "seq": 1,
            "txn": 1,
            "n": 3,
            "ts": NOON_US,
            "type": "obj.applied.v1",
            "scope": "default/example.org",
            "obj": "DNSRecordSet/default/www",
            "ver": 1,
            "manager": "kudurru",
            "body": sha256(b"\x10" + salt + body).hex(),
            "who": sha256(b"\x10" + who_salt + who).hex(),
        }
    )
    leaf = sha256(b"\x00" + entry)
    assert row.entry == entry
    assert (row.salt, row.body, row.who_salt, row.who) == (salt, body, who_salt, who)
    assert row.leaf == leaf
    assert row.head == sha256(b"\x02" + sha256(b"\x03" + ORIGIN.encode()) + leaf)


def test_a_chain_once_written_keeps_its_hashes() -> None:
    rows = sealed_rows()
    assert chain.genesis(ORIGIN).hex() == GENESIS
    assert (rows[0].leaf.hex(), rows[-1].head.hex()) == (FIRST_LEAF, LAST_HEAD)


GENESIS = "7d31758c8006133e8374637a2b6696203dd66fb84818def250152833506043ae"
FIRST_LEAF = "634ac57019bbe34c7a66d64f4005fb2cd69e664066242db1120ff0dc66f46d1b"
LAST_HEAD = "0a25b3ccc4b20e789736c7c4c0c2095a6e28eaafe3859733104c6532362eea6e"

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
integers = st.integers(0, INTEGER_MAX)


@settings(deadline=None)
@given(
    st.builds(
        chain.Header,
        body=text,
        manager=text,
        n=integers,
        obj=text,
        scope=text,
        seq=integers,
        ts=integers,
        txn=integers,
        type=text,
        v=integers,
        ver=integers,
        who=text,
    )
)
def test_an_entry_is_rfc_8785_and_reads_back(header: chain.Header) -> None:
    entry = chain.encode_header(header)
    assert entry == rfc8785.dumps(msgspec.to_builtins(header))
    assert chain.decode_header(entry) == header


names = st.sampled_from(["a", "b", "c/d", "é"])


@st.composite
def histories(draw: st.DrawFn) -> list[ChangeSet]:
    versions: dict[str, int] = {}
    change_sets = []
    for _ in range(draw(st.integers(1, 5))):
        events = []
        for name in draw(st.lists(names, min_size=1, max_size=4)):
            versions[name] = versions.get(name, 0) + 1
            scope = draw(st.sampled_from(["", "default/zone"]))
            events.append(applied(name, versions[name], scope=scope, body=draw(st.binary())))
        change_sets.append(change(*events, actor=draw(st.sampled_from(["user:1", "system"]))))
    return change_sets


@settings(deadline=None)
@given(histories())
def test_what_was_sealed_verifies(change_sets: list[ChangeSet]) -> None:
    assert damages_of(sealed_rows(change_sets)) == []


KIND_OF_COLUMN = {
    "seq": "gap",
    "txn": "entry",
    "ts": "entry",
    "obj": "entry",
    "ver": "entry",
    "scope": "entry",
    "type": "entry",
    "entry": "entry",
    "salt": "payload",
    "body": "payload",
    "who_salt": "payload",
    "who": "payload",
    "leaf": "chain",
    "head": "chain",
}


@settings(max_examples=150, deadline=None)
@given(histories(), st.sampled_from(sorted(KIND_OF_COLUMN)), st.data())
def test_one_octet_changed_in_any_column_is_found(
    change_sets: list[ChangeSet], column: str, data: st.DataObject
) -> None:
    rows = sealed_rows(change_sets)
    row = data.draw(st.sampled_from(rows))
    changed = data.draw(changes_of(getattr(row, column), column))
    tampered = sorted(with_row(rows, row.seq, **{column: changed}), key=lambda row: row.seq)
    kind, position = damages_of(tampered)[0]
    assert (kind, position) == (KIND_OF_COLUMN[column], row.seq)


def changes_of(value: Any, column: str) -> st.SearchStrategy[Any]:
    """Another value of the column: one octet changed, added or gone, or a NULL."""
    if column == "seq":
        return st.integers(20, 2**40)  # a lower one is taken by another row
    if isinstance(value, int):
        return st.integers(0, 62).map(lambda bit: value ^ (1 << bit))
    if isinstance(value, str):
        if not value:
            return st.just("x") | st.none()
        at = st.integers(0, len(value) - 1)
        return st.none() | at.map(lambda i: value[:i] + chr(ord(value[i]) ^ 1) + value[i + 1 :])
    flipped = st.tuples(st.integers(0, max(len(value) - 1, 0)), st.integers(1, 255)).map(
        lambda pick: (
            value[: pick[0]]
            + bytes([value[pick[0]] ^ pick[1]] if value else [pick[1]])
            + value[pick[0] + 1 :]
        )
    )
    longer = st.integers(0, 255).map(lambda octet: value + bytes([octet]))
    shorter = [st.just(value[:-1])] if value else []
    return st.one_of(flipped, longer, *shorter)


def test_a_damage_does_not_hide_or_invent_others() -> None:
    rows = sealed_rows()
    rows = with_row(rows, 2, body=b"{}")
    rows = with_row(rows, 4, head=bytes(32))
    rows = with_row(rows, 6, entry=rows[5].entry.replace(b'"n":4', b'"n":5'))
    rows = with_row(rows, 8, ts=1, leaf=bytes(32))
    del rows[8]
    assert damages_of(rows) == [
        ("payload", 2),
        ("chain", 4),
        ("entry", 6),
        ("chain", 8),
        ("entry", 8),
        ("gap", 9),
    ]


MATRIX: list[tuple[str, Callable[[list[LogRow]], list[LogRow]], tuple[str, int]]] = [
    ("the first row is gone", lambda rows: rows[1:], ("gap", 1)),
    ("a row is gone", lambda rows: rows[:4] + rows[5:], ("gap", 5)),
    ("three rows are gone", lambda rows: rows[:4] + rows[7:], ("gap", 5)),
    ("the tail is cut inside a change set", lambda rows: rows[:7], ("gap", 8)),
    (
        "a row is gone and the rest moved up",
        lambda rows: rows[:4] + [msgspec.structs.replace(r, seq=r.seq - 1) for r in rows[5:]],
        ("chain", 5),
    ),
    (
        "two rows are swapped",
        lambda rows: [
            *rows[:3],
            msgspec.structs.replace(rows[4], seq=4),
            msgspec.structs.replace(rows[3], seq=5),
            *rows[5:],
        ],
        ("chain", 4),
    ),
    (
        "a row is put in",
        lambda rows: [
            *rows[:3],
            *[msgspec.structs.replace(r, seq=r.seq + 1) for r in [rows[2], *rows[3:]]],
        ],
        ("chain", 4),
    ),
    ("an entry of another log", lambda rows: with_row(rows, 3, entry=b"{}"), ("entry", 3)),
    ("NULL entry", lambda rows: with_row(rows, 3, entry=None), ("entry", 3)),
    ("text for octets", lambda rows: with_row(rows, 3, head="ab"), ("entry", 3)),
    ("octets for text", lambda rows: with_row(rows, 3, type=b"obj.applied.v1"), ("entry", 3)),
    ("a text body", lambda rows: with_row(rows, 3, body="{}"), ("payload", 3)),
    ("a salt erased alone", lambda rows: with_row(rows, 3, salt=None), ("payload", 3)),
    ("a body erased alone", lambda rows: with_row(rows, 3, body=None), ("payload", 3)),
    (
        "octets moved between salt and body",
        lambda rows: with_row(rows, 3, salt=rows[2].salt + b"{", body=rows[2].body[1:]),
        ("payload", 3),
    ),
    (
        "a forger drops the end of a change set",
        lambda rows: rechained(rows[:7]),
        ("gap", 8),
    ),
    ("a forger changes n", lambda rows: with_header(rows, 7, n=3), ("gap", 7)),
    ("a forger moves a row out of its set", lambda rows: with_header(rows, 7, txn=7), ("gap", 7)),
    ("a forger puts a row before its set", lambda rows: with_header(rows, 7, txn=8), ("gap", 7)),
    ("a forger turns time back", lambda rows: with_header(rows, 7, ts=1), ("entry", 7)),
    ("a forger skips a version", lambda rows: with_header(rows, 6, ver=4), ("entry", 6)),
    ("a forger begins a stream late", lambda rows: with_header(rows, 7, ver=2), ("entry", 7)),
    (
        "an entry that is not canonical",
        lambda rows: rechained(with_row(rows, 3, entry=rows[2].entry.replace(b",", b", ", 1))),
        ("entry", 3),
    ),
    (
        "an entry with a field more",
        lambda rows: rechained(with_row(rows, 3, entry=b'{"a":1,' + rows[2].entry[1:])),
        ("entry", 3),
    ),
]


@pytest.mark.parametrize(
    ("tamper", "first"), [case[1:] for case in MATRIX], ids=[case[0] for case in MATRIX]
)
def test_every_way_to_tamper_is_found_where_it_begins(
    tamper: Callable[[list[LogRow]], list[LogRow]], first: tuple[str, int]
) -> None:
    assert damages_of(tamper(sealed_rows()))[0] == first


class CountingVerifier(Verifier):
    """Knows which rows were not plain."""

    def __init__(self) -> None:
        super().__init__(ORIGIN)
        self.looked_at: list[int] = []

    def _feed_closely(self, row: LogRow) -> None:
        self.looked_at.append(row.seq)
        super()._feed_closely(row)


def test_rows_in_which_nothing_is_special_are_taken_the_short_way() -> None:
    verifier = CountingVerifier()
    verifier.feed_all(sealed_rows([change(applied(f"n{i}")) for i in range(100)]))
    assert not verifier.finish()
    assert verifier.looked_at == [1]  # from which it has who writes and how many rows at a time


def test_managers_and_change_sets_may_alternate_and_are_looked_at_once_each() -> None:
    def one(i: int) -> ChangeSet:
        events = (applied(f"n{i}.{j}") for j in range(1 + i % 3))
        manager = ("kudurru", 'a "quoted",\\"obj": one', "näme")[i // 3 % 3]
        return change(*(msgspec.structs.replace(event, manager=manager) for event in events))

    verifier = CountingVerifier()
    verifier.feed_all(sealed_rows([one(i) for i in range(90)]))
    assert not verifier.finish()
    assert verifier.seq == 180
    assert verifier.looked_at == [1, 2, 4, 7, 8, 10, 13, 14, 16]  # first rows of sets


class Counted(list[LogRow]):
    """Knows how many rows were copied out of it."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        Counted.copied += len(found) if isinstance(at, slice) else 0
        return found


def test_many_rows_that_are_not_plain_take_time_by_their_number_only() -> None:
    """Each copied all that come after it: 80,000 in one page took half a minute."""
    names = [f"m{i}" for i in range(2_000)]
    events = [msgspec.structs.replace(applied(m), manager=m) for m in names]
    rows = Counted(sealed_rows([change(event) for event in events]))
    verifier = CountingVerifier()
    verifier.feed_all(rows)
    assert not verifier.finish()
    assert len(verifier.looked_at) == len(rows)
    assert Counted.copied <= verification.AT_ONCE * len(rows)


def test_what_a_verifier_remembers_of_managers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "SAID_MAX", 3)
    names = [f"m{i % 5}" for i in range(50)]
    events = [msgspec.structs.replace(applied(f"n{i}"), manager=m) for i, m in enumerate(names)]
    verifier = CountingVerifier()
    verifier.feed_all(sealed_rows([change(event) for event in events]))
    assert not verifier.finish()
    assert verifier.seq == 50
    assert len(verifier._said) <= 3


def test_a_manager_as_long_as_may_be_is_remembered_and_a_longer_one_is_not() -> None:
    for text, is_remembered in (('"' * MANAGER_MAX, True), ("é" * MANAGER_MAX, True),
                                ("\x01" * (2 * MANAGER_MAX), False)):  # fmt: skip
        events = [msgspec.structs.replace(applied(f"n{i}"), manager=text) for i in range(20)]
        verifier = CountingVerifier()
        verifier.feed_all(sealed_rows([change(event) for event in events]))
        assert not verifier.finish()
        assert verifier.seq == 20
        assert verifier.looked_at == ([1] if is_remembered else list(range(1, 21)))
        assert bool(verifier._said) is is_remembered


@pytest.mark.parametrize(
    "fields",
    [
        *({name: "7"} for name in ("txn", "ts", "ver")),
        *({name: None} for name in ("obj", "scope", "type")),
        {"ver": 2.0},
        {"txn": True},
    ],
    ids=str,
)
def test_a_value_of_another_type_is_found_though_the_column_has_it_too(
    fields: dict[str, Any],
) -> None:
    assert ("entry", 2) in damages_of(with_header(sealed_rows(), 2, **fields))


def test_another_log_id_or_epoch_is_another_chain() -> None:
    for origin in ("kudurru/0123456789abcdef/2", "kudurru/0123456789abcdee/1"):
        verifier = Verifier(origin)
        for row in sealed_rows():
            verifier.feed(row)
        assert [(d.kind, d.position) for d in verifier.finish()] == [("chain", 1)]


def test_a_row_of_a_newer_version_is_no_damage_but_stops() -> None:
    newer = sealed_rows()[2].entry.replace(b'"v":1', b'"v":2').replace(b'{"', b'{"a":[],"', 1)
    rows = rechained(with_row(sealed_rows(), 3, entry=newer))
    with pytest.raises(LogNewer, match="position 3 is of entry version 2"):
        damages_of(rows)


def redaction(body: bytes) -> ChangeSet:
    log = Event(PAYLOAD_REDACTED, applied("log").key, 1, "", "kudurru", body)
    return change(log)


def erased(rows: list[LogRow], seq: int, part: str) -> list[LogRow]:
    return with_row(rows, seq, **{part: None, "salt" if part == "body" else "who_salt": None})


@pytest.mark.parametrize(
    ("erase", "says", "expected"),
    [
        ("body", b'{"actor":"user:0","part":"body","seq":2}', []),
        ("body", b'{"seq":2}', []),
        ("who", b'{"part":"who","seq":2}', []),
        ("who", b'{"part":"body","seq":2}', [("payload", 2)]),
        ("body", b'{"part":"who","seq":2}', [("payload", 2)]),
        ("body", b'{"part":"body","seq":3}', [("payload", 2)]),
        ("body", b"no JSON", [("payload", 2)]),
    ],
)
def test_an_erased_payload_needs_an_event_that_names_it(
    erase: str, says: bytes, expected: list[tuple[str, int]]
) -> None:
    rows = sealed_rows([*history(), redaction(says)])
    assert damages_of(erased(rows, 2, erase)) == expected


def test_an_event_excuses_only_what_was_before_it() -> None:
    first = sealed_rows([redaction(b'{"seq":2}'), *history()])
    assert damages_of(erased(first, 2, "body")) == [("payload", 2)]
    itself = sealed_rows([*history(), redaction(b'{"seq":11}')])
    assert damages_of(erased(itself, 11, "body")) == [("payload", 11)]


def test_verification_goes_on_from_a_trusted_head_anywhere() -> None:
    rows = sealed_rows()
    for row in rows:
        after = LogHead(Position(row.seq), row.ts, row.head)
        assert damages_of(rows[row.seq :], after) == []
    wrong = LogHead(Position(4), 0, bytes(32))
    assert damages_of(rows[4:], wrong) == [("chain", 5)]


def test_a_log_that_is_wrong_throughout_is_described_in_bounded_memory() -> None:
    change_sets = [change(applied("www", ver)) for ver in range(1, DAMAGES_MAX + 101)]
    verifier = Verifier(ORIGIN)
    for row in sealed_rows(change_sets):
        verifier.feed(msgspec.structs.replace(row, body=b"{}"))
    damages = verifier.finish()
    assert (len(damages), verifier.damage_count) == (DAMAGES_MAX, DAMAGES_MAX + 100)


def test_a_damage_says_what_is_wrong_and_what_to_do() -> None:
    verifier = Verifier(ORIGIN)
    for row in with_row(sealed_rows(), 2, scope="else"):
        verifier.feed(row)
    (damage,) = verifier.finish()
    assert str(damage) == (
        "position 2: columns contradict the entry: scope is 'else' and was 'default/example.org'; "
        "keep this log as evidence and go back to a backup that verifies"
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 9), st.data())
def test_no_octets_in_an_entry_make_the_verifier_fail(at: int, data: st.DataObject) -> None:
    rows = sealed_rows()
    entry = bytearray(rows[at].entry)
    for where, octet in data.draw(
        st.lists(st.tuples(st.integers(0, len(entry) - 1), st.integers(0, 255)), min_size=1)
    ):
        entry[where] = octet
    if bytes(entry) == rows[at].entry:
        return
    assert damages_of(with_row(rows, at + 1, entry=bytes(entry)))[0] == ("entry", at + 1)
    try:  # and as a forger would chain it
        forged = damages_of(rechained(with_row(rows, at + 1, entry=bytes(entry))))
    except LogNewer:
        return
    assert all(kind in ("entry", "gap", "payload") for kind, _ in forged)


def test_verify_calls_back_after_each_row_and_counts() -> None:
    log = memory_log()
    recorded_history(log)
    seen: list[int] = []
    verified = verify(log, seen=lambda row: seen.append(row.seq))
    assert verified.is_whole
    assert seen == list(range(1, 11))
    assert (verified.rows, verified.newest) == (10, 10)


def test_an_entry_that_cannot_be_read_is_named() -> None:
    with pytest.raises(LogDamaged, match="position 7: the entry cannot be read"):
        chain.recorded_of(7, b"{", None, None)
    assert [row.entry for row in rows_of(memory_log())] == []
