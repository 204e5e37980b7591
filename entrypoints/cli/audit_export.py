"""kudurru audit export: the log in the formats of others, and in one that proves itself."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer

from kudurru.domain import export as formats
from kudurru.domain.chain import recorded_of
from kudurru.domain.checkpoint import AdoptionBody, parse_checkpoint
from kudurru.domain.epochs import epochs, first_origin, origins
from kudurru.domain.errors import Cause, Invalid, StorageFailed
from kudurru.domain.events import SIGNING_KEY, Recorded
from kudurru.domain.kinds.registry import kind_by_word
from kudurru.domain.ports import LogRow, StoredCheckpoint, VerifiableLog
from kudurru.domain.tree import Tree
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.audit_prove import covering
from kudurru.entrypoints.cli.output import counted, note
from kudurru.entrypoints.cli.progress import EVERY, progress
from kudurru.entrypoints.history import first_position, matches, zone_meant

Move = Callable[[int, int], None] | None


class Format(StrEnum):
    jsonl = "jsonl"
    k8s = "k8s"
    cloudevents = "cloudevents"
    ocsf = "ocsf"
    csv = "csv"
    sqlite = "sqlite"


class Selection(msgspec.Struct, frozen=True):
    """Which events are wanted."""

    after: int
    upto: int
    kind: str
    zone: str | None
    actor: str | None
    said: formats.Filter  # as the person wrote it

    def has(self, event: Recorded) -> bool:
        is_kind = not self.kind or event.key.startswith(self.kind + "/")
        return is_kind and matches(event, self.zone, self.actor)


def export(
    data: common.DataOption = common.DEFAULT_DATA,
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="jsonl proves itself, see kudurru-verify. The others cannot be verified: "
            "k8s (audit.k8s.io/v1), cloudevents (1.0), ocsf (API Activity), csv, sqlite.",
        ),
    ] = Format.jsonl,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="F", help="Default: standard output.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="T", help="Not before.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="T", help="Not after.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Of one kind.")] = None,
    zone: Annotated[str | None, typer.Option("--zone", metavar="Z", help="Of one zone.")] = None,
    actor: Annotated[str | None, typer.Option("--actor", metavar="A", help="By whom.")] = None,
) -> None:
    """Write the log, or a selection of it.

    jsonl ends with the newest checkpoint, and with the last event under it. With filters each event
    carries the proof that it is in the log; that none is left out between them cannot be proven.
    """
    if format_ is Format.sqlite and output is None:
        raise typer.BadParameter("--format sqlite needs --output F")
    with directory.open_reader(data) as node:
        log: VerifiableLog = node.log  # type: ignore[assignment]  # as open_reader made it
        now_us = node.clock.now_us()
        said = {"since": since, "until": until, "kind": kind, "zone": zone, "actor": actor}
        selection = Selection(
            after=first_position(since, log, now_us) - 1 if since else 0,
            upto=common.resolve(until, log) if until else log.head().seq,
            kind=kind_by_word(kind).name if kind else "",
            zone=zone_meant(zone, log) if zone is not None else None,
            actor=actor,
            said={name: text for name, text in said.items() if text is not None},
        )
        with progress("exporting") as move:
            count = _write(log, selection, format_, output, move)
    if output is not None:
        note(f"{counted(count, 'event')} written to {output}")


def _write(
    log: VerifiableLog, selection: Selection, format_: Format, output: Path | None, move: Move
) -> int:
    if format_ is Format.sqlite:
        assert output is not None
        return _write_sqlite(log, selection, output, move)
    if format_ is Format.jsonl:
        lines = _jsonl(log, selection, move)
    else:
        lines = _lines(log, selection, format_, move)
    count = -1 if format_ is Format.csv else 0
    with _target(output) as file:
        for line in lines:
            file.write(line)
            count += 1
        file.flush()
    return count - 2 if format_ is Format.jsonl else count


@contextmanager
def _target(output: Path | None) -> Iterator[BinaryIO]:
    """Where lines go."""
    if output is None:
        yield sys.stdout.buffer
        return
    with _whole(output) as partial, partial.open("wb") as file:
        yield file


@contextmanager
def _whole(output: Path) -> Iterator[Path]:
    """Where to write a file, which has its name once it is whole."""
    partial = output.with_name(f"{output.name}.part")
    try:
        partial.unlink(missing_ok=True)
        yield partial
        partial.replace(output)
    except OSError as error:
        raise StorageFailed(f"{output}: {error.strerror} - check the path and the disk") from None
    finally:
        with suppress(OSError):  # told already where the folder is the reason
            partial.unlink(missing_ok=True)


def _rows(
    log: VerifiableLog, selection: Selection, upto: int, move: Move
) -> Iterator[tuple[LogRow, Recorded]]:
    last = min(selection.upto, upto)
    for row in log.rows(selection.after, last):
        if move is not None and row.seq % EVERY == 0:
            move(row.seq - selection.after, last - selection.after)
        event = recorded_of(row.seq, row.entry, row.body, row.who)
        if not selection.said or selection.has(event):
            yield row, event


def _jsonl(log: VerifiableLog, selection: Selection, move: Move) -> Iterator[bytes]:
    checkpoint = covering(log, 1)
    unsigned = log.head().seq - checkpoint.size
    if unsigned and selection.upto > checkpoint.size:
        note(
            f"the newest {unsigned} events are under no checkpoint yet and left out; "
            "`kudurru audit checkpoint` signs them"
        )
    # What is left of a pruned log is a selection too: each event is proved by itself.
    said = selection.said | ({"pruned": str(log.oldest())} if log.oldest() else {})
    origin, adoptions = parse_checkpoint(checkpoint.note).origin, _adoptions(log, checkpoint)
    yield formats.first_line(origin, checkpoint.size, said, adoptions, first_origin(log))
    tree = Tree(checkpoint.size, log.hashes) if said else None
    count = 0
    for row, _ in _rows(log, selection, checkpoint.size, move):
        yield formats.event_line(row, tree.inclusion_proof(row.seq - 1) if tree else None)
        count += 1
    yield formats.last_line(checkpoint, count)


def _adoptions(log: VerifiableLog, checkpoint: StoredCheckpoint) -> Iterable[str]:
    """Of the epoch that the checkpoint is of."""
    epoch = max((seq for seq, _ in epochs(log, checkpoint.size)), default=0)
    for event in log.read(epoch, checkpoint.size, key=SIGNING_KEY):
        if event.body is not None:
            yield msgspec.json.decode(event.body, type=AdoptionBody).note


def _lines(
    log: VerifiableLog, selection: Selection, format_: Format, move: Move
) -> Iterator[bytes]:
    rows = _rows(log, selection, selection.upto, move)
    if format_ is Format.csv:
        yield formats.csv_line(formats.COLUMNS)
        for _, event in rows:
            yield formats.csv_line(formats.to_row(formats.exported(event)).values())
        return
    convert = formats.JSON_FORMATS[format_.value]
    names = origins(log)
    for _, event in rows:
        # That of its epoch: an event has one name, also in an export after a restore.
        origin = next(name for began, name in reversed(names) if began <= event.seq)
        yield msgspec.json.encode(convert(origin, formats.exported(event))) + b"\n"


def _write_sqlite(log: VerifiableLog, selection: Selection, output: Path, move: Move) -> int:
    from kudurru.adapters.sqlite.export import write_events

    if output.exists():
        raise Invalid("--output", [Cause("", f"{output} is there already: name a new file")])
    rows = (
        formats.to_row(formats.exported(event))
        for _, event in _rows(log, selection, selection.upto, move)
    )
    with _whole(output) as partial:
        return write_events(partial, rows)
