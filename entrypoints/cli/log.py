"""kudurru log: back the log up, and go on from a backup."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kudurru.domain.checkpoint import note_of_txt, parse_checkpoint
from kudurru.domain.errors import Cause, Invalid, NotFound, StorageFailed
from kudurru.domain.ports import VerifiableLog
from kudurru.entrypoints import backups, directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, counted, echo, note, print_documents
from kudurru.entrypoints.cli.progress import progress
from kudurru.entrypoints.service import because

app = command_app(no_args_is_help=True)


@app.callback()
def log() -> None:
    """Back the log up, and go on from a backup."""


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="F", help="A new file.", readable=False)],
    data: common.DataOption = common.DEFAULT_DATA,
    output: common.OutputOption = Output.table,
) -> None:
    """Write the log into one file that verifies by itself, while a server goes on writing. It holds
    every object and its history; the signing key and other secrets are not in it."""
    is_signed = True
    try:
        with common.service(data, write=True) as service:
            service.checkpoint()
    except (NotFound, StorageFailed) as error:  # no key, or no room: all the more reason
        is_signed = False
        note(f"the newest events are not signed: {error}")
    with directory.open_reader(data) as node, progress("exporting") as move:
        source: VerifiableLog = node.log  # type: ignore[assignment]  # as open_reader made it
        exported = backups.export_log(source, file, move or _still, with_unsigned=not is_signed)
    if not print_documents(output, [msgspec.to_builtins(exported)], single=True):
        echo(f"{exported.size} events of {exported.origin} written to {file}, and verified")


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="F", help="What `log export` wrote.", readable=False)
    ],
    data: common.DataOption = common.DEFAULT_DATA,
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY", help="Key that must have signed it; repeats."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="F",
            help="A checkpoint that was kept elsewhere: the backup must not end before it.",
            readable=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Verify the backup, import nothing.")
    ] = False,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Go on from a backup, in an empty data directory. What was acknowledged after the backup is
    lost, so a new epoch begins: no version is used twice, and who watches lists anew."""
    kept = parse_checkpoint(note_of_txt(_read(checkpoint))) if checkpoint else None
    trust = directory.trust_of(keys or (), kept)
    who = because(common.me(), reason)
    with progress("verifying") as move:
        imported = backups.import_log(file, data, who, trust, move or _still, dry_run=dry_run)
    document = msgspec.to_builtins(imported)
    if dry_run:
        if not print_documents(output, [document], single=True):
            echo(f"{imported.size} events verify; nothing was imported")
        return
    with common.service(data, write=True) as service:
        service.checkpoint()
    with directory.open_reader(data) as node:
        document["key"] = str(directory.adopted_keys(data, node)[-1])
    if print_documents(output, [document], single=True):
        return
    size = counted(imported.size, "event")
    echo(f"{size} imported; {imported.origin} begins at {imported.position}")
    echo(f"it is signed by {document['key']}")


def _still(position: int, total: int) -> None:
    """Nobody looks."""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise Invalid("--checkpoint", [Cause("", f"{path}: {why}")]) from None
