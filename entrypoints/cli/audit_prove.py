"""kudurru audit checkpoint, prove, key: what goes out, so that others can hold the log to it."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kudurru.domain.errors import Cause, Invalid, NotFound, Pruned, StorageFailed
from kudurru.domain.ports import VerifiableLog
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.output import Output, echo, note, print_documents
from kudurru.entrypoints.exporting import covering

if TYPE_CHECKING:
    from kudurru.domain.checkpoint import Checkpoint

KeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="Key that must have signed, or a later one adopted under it; repeats. Default: the "
        "setting audit.trustedKeys.",
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--output", metavar="F", help="Write there. Default: standard output", readable=False
    ),
]


def checkpoint(
    data: common.DataOption = common.DEFAULT_DATA,
    publish: Annotated[
        list[Path] | None,
        typer.Option(
            "--publish",
            metavar="F",
            help="File or folder outside of the data directory; repeats.",
            readable=False,
        ),
    ] = None,
    output: common.OutputOption = Output.table,
) -> None:
    """Print the signed checkpoint of the whole log; it is made when there is none. Keep it where
    nobody who can change the log can change it too."""
    from kudurru.adapters.clock import SystemClock
    from kudurru.adapters.publishing import publish as write
    from kudurru.domain.checkpoint import parse_checkpoint

    _check_log(data)
    with common.service(data, write=True) as service:
        text = service.checkpoint()
    parsed = parse_checkpoint(text)
    for target in publish or []:
        path = write(str(target), text, parsed.origin, SystemClock().now_us())
        note(f"written to {path}")
    document = {
        "origin": parsed.origin,
        "size": parsed.size,
        "root": parsed.root.hex(),
        "note": text,
    }
    if not print_documents(output, [document], single=True):
        sys.stdout.write(text)


def prove(
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="Position of the event.")],
    data: common.DataOption = common.DEFAULT_DATA,
    output: FileOption = None,
) -> None:
    """Write a proof that the event at a position is in the log (c2sp.org/tlog-proof), with its
    entry as extra data: `kudurru-verify` reads it."""
    from kudurru.domain.checkpoint import tlog_proof
    from kudurru.domain.tree import Tree

    with directory.open_reader(data) as node:
        log: VerifiableLog = node.log  # type: ignore[assignment]  # as open_reader made it
        newest = covering(log, seq)
        row = next(iter(log.rows(seq - 1, seq)), None)
        if row is None:
            raise Pruned(f"position {seq}", log.oldest())
        path = Tree(newest.size, log.hashes).inclusion_proof(seq - 1)
        text = tlog_proof(seq - 1, path, newest.note, row.entry)
    write_text(output, text)


def key(
    data: common.DataOption = common.DEFAULT_DATA,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Let a new key take over, signed by both.")
    ] = False,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Print the key that verifies the checkpoints of the log. Keep it outside of this machine."""
    if rotate:
        _check_log(data)
        with common.service(data, write=True) as service:
            service.rotate_key(reason)
    found = _adopted_keys(data)
    if not found:
        raise NotFound(
            f"the log at {data} has no key yet: it gets one with its first checkpoint, "
            "`kudurru audit checkpoint`"
        )
    document = {"key": found[-1], "previous": found[:-1]}
    if not print_documents(output, [document], single=True):
        echo(found[-1])


def _check_log(data: Path) -> None:
    """Raises: NotFound when there is no log: signing makes none."""
    with directory.open_reader(data):
        pass


def _adopted_keys(data: Path) -> list[str]:
    """Oldest first; the one in `keys/` where the log names none yet."""
    with directory.open_reader(data) as node:
        return [str(one) for one in directory.adopted_keys(data, node)]


def trusted_keys(keys: list[str] | None, config: Path | None) -> tuple[str, ...]:
    """Keys to hold signatures against: as given, else by the settings."""
    if keys:
        return tuple(keys)
    from kudurru.entrypoints.settings import load_settings

    return load_settings(config, os.environ).settings.audit.trusted_keys


def read_checkpoint(text: str, log: VerifiableLog) -> "Checkpoint":
    """A checkpoint from a file, from standard input, or from the log by its size. A TXT record as
    `dig +short` prints it will do. Raises: Invalid, NotFound."""
    from kudurru.domain.checkpoint import note_of_txt, parse_checkpoint

    size = text.removeprefix("checkpoint:")
    if size.isascii() and size.isdigit():
        wanted = int(size)
        found = next(log.checkpoints(wanted - 1), None)
        if found is None or found.size != wanted:
            raise NotFound(f"the log has no checkpoint of {wanted} events")
        return parse_checkpoint(found.note)
    try:
        content = sys.stdin.read() if text == "-" else Path(text).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise Invalid("--since", [Cause("", f"{text}: {why}")]) from None
    return parse_checkpoint(note_of_txt(content))


def write_text(path: Path | None, text: str) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror} - check the path and the disk") from None
    note(f"written to {path}")
