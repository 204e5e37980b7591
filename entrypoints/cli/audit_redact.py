"""kudurru audit redact: erase what must not be kept."""

from typing import Annotated

import msgspec
import typer

from kudurru.domain.errors import Cause, Invalid
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.output import Output, echo, note, print_documents
from kudurru.entrypoints.service import Erased
from kudurru.entrypoints.upkeep import RedactRequest

OUT_OF_REACH = (
    "not reached from here: backups and exports that were made before, other nodes' disks until "
    "they vacuum, secondaries, and what the file system and the disk keep of blocks that are free"
)


def redact(
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="Position of the event.")],
    data: common.DataOption = common.DEFAULT_DATA,
    who: Annotated[
        bool,
        typer.Option("--who", help="Erase the person and the reason, of the whole change."),
    ] = False,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Erase the object that a position holds, or with --who the person and the reason. That it was
    erased, by whom and why stays in the log, and the log verifies as before. What an object is now
    is not erased: delete or change it first."""
    if not reason.strip():
        raise Invalid("redact", [Cause("--reason", "say why: it is all that will be left")])
    with common.service(data, write=True) as service:
        erased = service.redact(RedactRequest(seq=seq, who=who, reason=reason))
    if print_documents(output, [msgspec.to_builtins(erased)], single=True):
        return
    echo(_what(erased))
    if erased.others:
        shown = ", ".join(map(str, erased.others))
        note(f"other versions of the same object are still there, at {shown}")
    note(OUT_OF_REACH)


def _what(erased: Erased) -> str:
    if erased.part == "body":
        return f"erased what position {erased.first} held"
    if erased.first == erased.last:
        return f"erased who did position {erased.first}, and why"
    return f"erased who did positions {erased.first} to {erased.last}, one change, and why"
