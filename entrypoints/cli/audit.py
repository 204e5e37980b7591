"""kudurru audit: verify the log and follow it."""

import sys
import time
from typing import Annotated, Any

import typer

from kudurru.domain.errors import LogDamaged
from kudurru.domain.verify import TAIL_ROWS, Verified
from kudurru.domain.verify import verify as verify_log
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.history import describe_event
from kudurru.entrypoints.cli.output import (
    Output,
    echo,
    escape,
    note,
    print_documents,
    print_jsonl,
)
from kudurru.entrypoints.service import MarkRequest
from kudurru.entrypoints.wiring import Node

app = command_app(no_args_is_help=True)

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
SHOWN_MAX = 20


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
    """Verify the log. Every row, commitment and link of the chain; the exit code names what is
    bad: 10 gap, 11 payload, 12 entry, 13 chain, 17 state."""
    if level not in ("tail", "full", "state"):
        raise typer.BadParameter(f"{level!r} is none of tail, full, state")
    with directory.open_reader(data) as node:
        verified = verify_log(node.log, tail=TAIL_ROWS if level == "tail" else None)  # type: ignore[arg-type]  # the reader's log is verifiable
        damages = list(verified.damages) or _of_storage(node, level)
        if level == "state" and not damages:
            from kudurru.entrypoints.cli.replay import replay_checked

            try:
                replay_checked(node, None)
            except LogDamaged as error:
                damages.append(error)
    _report(damages, verified, level, output)
    if damages:
        raise typer.Exit(EXIT_CODES[damages[0].kind])


def _of_storage(node: Node, level: str) -> list[LogDamaged]:
    """What only the storage itself can see, once all rows are whole: indexes that lie."""
    if level != "tail":
        try:
            node.log.check_storage()
        except LogDamaged as damage:
            return [damage]
    return []


def _report(damages: list[LogDamaged], verified: Verified, level: str, output: Output) -> None:
    document = {
        "level": level,
        "rows": verified.rows,
        "newest": verified.newest,
        "ok": not damages,
        "damages": [
            {"kind": d.kind, "position": d.position, "message": d.message} for d in damages
        ],
    }
    if print_documents(output, [document], single=True):
        return
    if not damages:
        echo(f"ok: {verified.rows} events verified, the newest is at position {verified.newest}")
        return
    for damage in damages[:SHOWN_MAX]:
        echo(escape(f"{damage.kind}: {damage}"))
    count = max(verified.damage_count, len(damages))
    if count > SHOWN_MAX:
        echo(f"and {count - SHOWN_MAX} more")
    note(f"the log is damaged: the first bad position is {damages[0].position}")


@app.command()
def tail(
    data: common.DataOption = common.DEFAULT_DATA,
    lines: Annotated[int, typer.Option("--lines", help="Events shown first.", min=0)] = 10,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as events come.")] = False,
    output: common.OutputOption = Output.table,
) -> None:
    """Show the newest events. With --follow also each new one as it comes."""
    with directory.open_reader(data) as node:
        position = max(0, node.log.head().seq - lines)
        while True:
            for event in node.log.read(position):
                position = event.seq
                document = describe_event(event, node.log)
                if output in (Output.table, Output.wide):
                    _print_event(document)
                else:
                    print_jsonl([document])
            sys.stdout.flush()
            if not follow:
                return
            time.sleep(FOLLOW_INTERVAL_S)


def _print_event(document: dict[str, Any]) -> None:
    reason = f"  {document['reason']}" if document["reason"] else ""
    echo(
        escape(
            f"{document['seq']:>8}  {document['time']}  {document['actor']}  "
            f"{document['verb']} {document['object']}{reason}"
        )
    )


@app.command()
def mark(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Later: --at mark:NAME.")],
    data: common.DataOption = common.DEFAULT_DATA,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Give this moment a name, to be restored to or compared with."""
    with common.service(data, write=True) as service:
        position = service.mark(MarkRequest(name=name, reason=reason))
    if not print_documents(output, [{"name": name, "position": position}], single=True):
        echo(f"mark:{name} is position {position}")
