"""kudurru audit export: the log in the formats of others, and in one that proves itself."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from kudurru.domain.errors import Cause, Invalid, StorageFailed
from kudurru.domain.ports import VerifiableLog
from kudurru.entrypoints import directory, exporting
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.output import counted, note
from kudurru.entrypoints.cli.progress import progress
from kudurru.entrypoints.exporting import Format, Selection, Wanted

if TYPE_CHECKING:
    from kudurru.entrypoints.api_client import ApiService


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
        Path | None,
        typer.Option("--output", metavar="F", help="Default: standard output.", readable=False),
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
    wanted = Wanted(since=since, until=until, kind=kind, zone=zone, actor=actor)
    far = remote.service()
    if far is not None:
        with far:
            count = _from_afar(far, wanted, format_, output)
    else:
        count = _from_directory(data, wanted, format_, output)
    if output is not None:
        note(f"{counted(count, 'event')} written to {output}")


def _from_directory(data: Path, wanted: Wanted, format_: Format, output: Path | None) -> int:
    with directory.open_reader(data) as node:
        log: VerifiableLog = node.log  # type: ignore[assignment]  # as open_reader made it
        selection = exporting.selection_of(wanted, log, node.clock.now_us())
        if wanted.until:
            common.tell(wanted.until, selection.upto, log)
        if format_ is Format.jsonl and (left_out := exporting.unsigned(log, selection)):
            _note_unsigned(left_out)
        with progress("exporting") as moved:
            if format_ is Format.sqlite:
                assert output is not None
                return _write_sqlite(log, selection, output, moved)
            lines = exporting.lines(log, selection, format_, moved)
            return _write(lines, format_, output)


def _from_afar(far: "ApiService", wanted: Wanted, format_: Format, output: Path | None) -> int:
    if format_ is Format.sqlite:
        fault = "a database is made where the data directory is; far away take another format"
        raise Invalid("--format", [Cause("", fault)])
    export = far.audit_export(wanted, format_)
    if export.left_out:
        _note_unsigned(export.left_out)
    return _write(export.parts, format_, output)


def _note_unsigned(count: int) -> None:
    note(
        f"the newest {count} events are under no checkpoint yet and left out; "
        "`kudurru audit checkpoint` signs them"
    )


def _write(parts: Iterable[bytes], format_: Format, output: Path | None) -> int:
    """Lines, or parts of them. How many events they have."""
    count, is_quoted = 0, False
    with _target(output) as file:
        for part in parts:
            file.write(part)
            if format_ is not Format.csv:
                count += part.count(b"\n")
                continue
            for i, text in enumerate(part.split(b'"')):  # a line may end inside of a cell
                is_quoted ^= i > 0
                count += 0 if is_quoted else text.count(b"\n")
        file.flush()
    return count - {Format.jsonl: 2, Format.csv: 1}.get(format_, 0)


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


def _write_sqlite(
    log: VerifiableLog, selection: Selection, output: Path, moved: exporting.Moved
) -> int:
    from kudurru.adapters.sqlite.export import write_events

    if output.exists():
        raise Invalid("--output", [Cause("", f"{output} is there already: name a new file")])
    with _whole(output) as partial:
        return write_events(partial, exporting.table_rows(log, selection, moved))
