"""kudurru audit: verify the log and follow it."""

import time
from typing import Annotated

import typer

from kudurru.domain.errors import KudurruError, LogDamaged
from kudurru.domain.verify import verify as verify_log
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.history import describe_event
from kudurru.entrypoints.cli.output import (
    Output,
    echo,
    escape,
    note,
    print_documents,
    print_jsonl,
)

app = typer.Typer(no_args_is_help=True)

EXIT_CODES = {
    "gap": 10,
    "payload": 11,
    "entry": 12,
    "chain": 13,
    "tree": 14,
    "signature": 15,
    "truncation": 16,
    "state": 17,
}
FOLLOW_INTERVAL_S = 0.5


@app.callback()
def audit() -> None:
    """Verify and follow the log."""


@app.command()
def verify(
    data: common.DataOption = common.DEFAULT_DATA,
    level: Annotated[
        str, typer.Option("--level", help="tail, full, or state (full and a replay).")
    ] = "full",
    output: common.OutputOption = Output.table,
) -> None:
    """Verify the log: every row, commitment and link of the chain. The exit code names what is
    bad: 10 gap, 11 payload, 12 entry, 13 chain, 17 state."""
    if level not in ("tail", "full", "state"):
        raise typer.BadParameter(f"{level!r} is none of tail, full, state")
    with directory.open_reader(data) as node:
        verified = verify_log(node.log, tail=directory.TAIL_ROWS if level == "tail" else None)  # type: ignore[arg-type]  # the reader's log is verifiable
        damages = list(verified.damages)
        if level == "state" and not damages:
            from kudurru.entrypoints.cli.replay import _replay_checked

            try:
                _replay_checked(node, None)
            except LogDamaged as error:
                damages.append(error)
    _report(damages, verified.rows, level, output)
    if damages:
        raise typer.Exit(EXIT_CODES[damages[0].kind])
