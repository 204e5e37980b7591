"""The log in the formats of others, and in one that proves itself: as lines, one after the other,
so that a log of any length takes no memory."""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any

import msgspec

from kudurru.domain import export as formats
from kudurru.domain import targets
from kudurru.domain.chain import recorded_of
from kudurru.domain.checkpoint import AdoptionBody, parse_checkpoint
from kudurru.domain.epochs import epochs, first_origin, origins
from kudurru.domain.errors import NotFound
from kudurru.domain.events import SIGNING_KEY, Recorded
from kudurru.domain.kinds.registry import kind_by_word
from kudurru.domain.ports import LogRow, StoredCheckpoint, VerifiableLog
from kudurru.domain.tree import Tree
from kudurru.entrypoints.escaping import escape
from kudurru.entrypoints.history import first_position, matches, zone_meant

Moved = Callable[[int, int], None] | None
"""Hears how many events were looked at, of how many."""

MOVED_EVERY = 256


class Format(StrEnum):
    jsonl = "jsonl"
    k8s = "k8s"
    cloudevents = "cloudevents"
    ocsf = "ocsf"
    csv = "csv"
    sqlite = "sqlite"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are wanted, as a person says it. Empty: all."""

    since: str | None = None
    until: str | None = None
    kind: str | None = None
    zone: str | None = None
    actor: str | None = None


class Selection(msgspec.Struct, frozen=True):
    """Which events those are."""

    after: int
    upto: int
    kind: str
    zone: str | None
    actor: str | None
    said: formats.Filter  # as the person wrote it

    def has(self, event: Recorded) -> bool:
        is_kind = not self.kind or event.key.startswith(self.kind + "/")
        return is_kind and matches(event, self.zone, self.actor)


def selection_of(wanted: Wanted, log: VerifiableLog, now_us: int) -> Selection:
    """Raises: Invalid for what is no moment or kind; NotFound."""
    said = {name: text for name, text in msgspec.structs.asdict(wanted).items() if text is not None}
    return Selection(
        after=first_position(wanted.since, log, now_us) - 1 if wanted.since else 0,
        upto=targets.resolve(wanted.until, log, now_us) if wanted.until else log.head().seq,
        kind=kind_by_word(wanted.kind).name if wanted.kind else "",
        zone=zone_meant(wanted.zone, log) if wanted.zone is not None else None,
        actor=wanted.actor,
        said=said,
    )


def lines(
    log: VerifiableLog, selection: Selection, format_: Format, moved: Moved = None
) -> Iterator[bytes]:
    """Of every format but sqlite. The first may raise NotFound: jsonl is proved by a checkpoint."""
    assert format_ is not Format.sqlite, "a database is no lines"
    if format_ is Format.jsonl:
        return _jsonl(log, selection, moved)
    return _plain(log, selection, format_, moved)


def table_rows(
    log: VerifiableLog, selection: Selection, moved: Moved = None
) -> Iterator[dict[str, Any]]:
    """Events as rows of a table."""
    for _, event in _rows(log, selection, selection.upto, moved):
        yield formats.to_row(formats.exported(event))


def unsigned(log: VerifiableLog, selection: Selection) -> int:
    """How many events jsonl leaves out, since no checkpoint is over them yet. Raises: NotFound."""
    checkpoint = covering(log, 1)
    return log.head().seq - checkpoint.size if selection.upto > checkpoint.size else 0


def covering(log: VerifiableLog, seq: int) -> StoredCheckpoint:
    """The newest checkpoint. Raises: NotFound when it does not cover a position."""
    newest = log.newest_checkpoint()
    head = log.head().seq
    if seq > head:
        raise NotFound(f"position {seq} is not in the log, which ends at {head}")
    if newest is None or newest.size < seq:
        raise NotFound(
            f"position {seq} is under no checkpoint yet: run `kudurru audit checkpoint` first"
        )
    return newest


def _rows(
    log: VerifiableLog, selection: Selection, upto: int, moved: Moved
) -> Iterator[tuple[LogRow, Recorded]]:
    last = min(selection.upto, upto)
    for row in log.rows(selection.after, last):
        if moved is not None and row.seq % MOVED_EVERY == 0:
            moved(row.seq - selection.after, last - selection.after)
        event = recorded_of(row.seq, row.entry, row.body, row.who)
        if not selection.said or selection.has(event):
            yield row, event


def _jsonl(log: VerifiableLog, selection: Selection, moved: Moved) -> Iterator[bytes]:
    checkpoint = covering(log, 1)
    # What is left of a pruned log is a selection too: each event is proved by itself.
    said = selection.said | ({"pruned": str(log.oldest())} if log.oldest() else {})
    origin, adoptions = parse_checkpoint(checkpoint.note).origin, _adoptions(log, checkpoint)
    yield formats.first_line(origin, checkpoint.size, said, adoptions, first_origin(log))
    tree = Tree(checkpoint.size, log.hashes) if said else None
    count = 0
    for row, _ in _rows(log, selection, checkpoint.size, moved):
        yield formats.event_line(row, tree.inclusion_proof(row.seq - 1) if tree else None)
        count += 1
    yield formats.last_line(checkpoint, count)


def _adoptions(log: VerifiableLog, checkpoint: StoredCheckpoint) -> Iterable[str]:
    """Of the epoch that the checkpoint is of."""
    epoch = max((seq for seq, _ in epochs(log, checkpoint.size)), default=0)
    for event in log.read(epoch, checkpoint.size, key=SIGNING_KEY):
        if event.body is not None:
            yield msgspec.json.decode(event.body, type=AdoptionBody).note


def _plain(
    log: VerifiableLog, selection: Selection, format_: Format, moved: Moved
) -> Iterator[bytes]:
    rows = _rows(log, selection, selection.upto, moved)
    if format_ is Format.csv:
        yield formats.csv_line(formats.COLUMNS)
        for _, event in rows:
            row = formats.to_row(formats.exported(event))
            yield formats.csv_line(escape(c) if isinstance(c, str) else c for c in row.values())
        return
    convert = formats.JSON_FORMATS[format_.value]
    names = origins(log)
    for _, event in rows:
        # That of its epoch: an event has one name, also in an export after a restore.
        origin = next(name for began, name in reversed(names) if began <= event.seq)
        yield msgspec.json.encode(convert(origin, formats.exported(event))) + b"\n"
