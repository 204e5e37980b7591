"""kudurru audit: verify the log, prove it to others, compare and follow it."""

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kudurru.adapters.clock import SystemEntropy
from kudurru.adapters.data_dir import open_data_dir
from kudurru.domain.errors import LogDamaged
from kudurru.domain.ports import LogRow, VerifiableLog
from kudurru.domain.verify import TAIL_ROWS, Verified
from kudurru.domain.verify import verify as verify_log
from kudurru.domain.verify_tree import Trust
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import (
    audit_compare,
    audit_export,
    audit_prove,
    audit_prune,
    audit_redact,
    common,
)
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import (
    Output,
    counted,
    echo,
    escape,
    note,
    print_documents,
    print_jsonl,
)
from kudurru.entrypoints.cli.progress import EVERY, progress
from kudurru.entrypoints.history import describe_event
from kudurru.entrypoints.published import first_difference
from kudurru.entrypoints.service import MarkRequest

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
    """Verify, prove, export and follow the log."""


app.command()(audit_prove.checkpoint)
app.command()(audit_prove.prove)
app.command()(audit_prove.key)
app.command()(audit_export.export)
app.command()(audit_compare.compare)
app.command()(audit_prune.prune)
app.command()(audit_redact.redact)


class Level(StrEnum):
    tail = "tail"
    since = "since"
    full = "full"
    state = "state"


@app.command()
def verify(
    data: common.DataOption = common.DEFAULT_DATA,
    level: Annotated[
        Level | None,
        typer.Option(
            "--level",
            help="tail, full, or state (full and a replay). Default: full, since with --since.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="CHECKPOINT",
            help="A checkpoint that was kept elsewhere (a file, or - for standard input), or the "
            "size of one in the log: it is held against the log, and what came after is verified.",
        ),
    ] = None,
    keys: audit_prove.KeysOption = None,
    config: common.ConfigOption = None,
    output: common.OutputOption = Output.table,
) -> None:
    """Verify the log: every row, commitment and link of the chain, the tree, and the signatures of
    its checkpoints. The exit code names what is bad: 10 gap, 11 payload, 12 entry, 13 chain,
    14 tree, 15 signature, 16 truncation, 17 state."""
    level = level or (Level.since if since else Level.full)
    if level is Level.since and not since:
        raise typer.BadParameter("level since needs --since CHECKPOINT")
    with directory.open_reader(data) as node:
        log: VerifiableLog = node.log  # type: ignore[assignment]  # as open_reader made it
        checkpoint = audit_prove.read_checkpoint(since, log) if since else None
        trust = directory.trust_of(audit_prove.trusted_keys(keys, config), checkpoint)
        verified = _verify(log, level, trust)
        damages = list(verified.damages) or _of_storage(log, level) or _of_copy(data, log)
        if level is Level.state and not damages:
            from kudurru.entrypoints.cli.replay import replay_compared

            try:
                replay_compared(node, None)
            except LogDamaged as error:
                damages.append(error)
    _report(damages, verified, level, output)
    if damages:
        raise typer.Exit(EXIT_CODES[damages[0].kind])


def _of_storage(log: VerifiableLog, level: Level) -> list[LogDamaged]:
    """What only the storage itself can see, once all rows are whole: indexes that lie."""
    if level in (Level.full, Level.state):
        try:
            log.check_storage()
        except LogDamaged as damage:
            return [damage]
    return []


def _of_copy(data: Path, log: VerifiableLog) -> list[LogDamaged]:
    """That the log was set back or replaced, as the checkpoint beside it shows."""
    damage = first_difference(open_data_dir(data), log, (), SystemEntropy())
    return [damage] if damage is not None else []


def _verify(log: VerifiableLog, level: Level, trust: Trust) -> Verified:
    total = log.head().seq
    after = min(trust.checkpoint.size, total) if trust.checkpoint and level is Level.since else 0
    tail = TAIL_ROWS if level is Level.tail else None
    with progress("verifying") as move:

        def seen(row: LogRow) -> None:
            if move is not None and row.seq % EVERY == 0:
                move(row.seq, total)

        return verify_log(log, after=after, tail=tail, trust=trust, seen=seen if move else None)


def _report(damages: list[LogDamaged], verified: Verified, level: Level, output: Output) -> None:
    signed = verified.signed
    document = {
        "level": level.value,
        "rows": verified.rows,
        "newest": verified.newest,
        "pruned": verified.pruned,
        "ok": not damages,
        "signed": signed.size,
        "key": signed.key,
        "trusted": signed.is_trusted,
        "openRedaction": signed.open_redaction,
        "damages": [
            {"kind": d.kind, "position": d.position, "message": d.message} for d in damages
        ],
    }
    if print_documents(output, [document], single=True):
        return
    if not damages:
        begins = f"; those up to {verified.pruned} were pruned" if verified.pruned else ""
        newest = f"the newest is at position {verified.newest}"
        echo(f"ok: {counted(verified.rows, 'event')} verified, {newest}{begins}")
        echo(escape(_signatures(verified)))
        if verified.signed.open_redaction:
            note(
                f"the redaction at {verified.signed.open_redaction} is under no checkpoint yet: "
                "the node that has the key signs it within audit.checkpoint.interval. Until then "
                "anybody who can write to the database could have made it; verify again after that"
            )
        return
    for damage in damages[:SHOWN_MAX]:
        echo(escape(f"{damage.kind}: {damage}"))
    count = max(verified.damage_count, len(damages))
    if count > SHOWN_MAX:
        echo(f"and {count - SHOWN_MAX} more")
    note(f"the log is damaged: the first bad position is {damages[0].position}")


def _signatures(verified: Verified) -> str:
    """What the signatures say, and what nobody has signed yet."""
    signed = verified.signed
    if not signed.size:
        return "consistent; no checkpoint is signed: run `kudurru audit checkpoint`"
    rest = verified.newest - signed.size
    after = f"; the newest {counted(rest, 'event is', 'events are')} not signed yet" if rest else ""
    if signed.is_trusted:
        return f"signed by {signed.key}, which is trusted{after}"
    return f"consistent; signed by {signed.key}, which was not checked against anything{after}"


@app.command()
def tail(
    data: common.DataOption = common.DEFAULT_DATA,
    lines: Annotated[int, typer.Option("--lines", help="Events shown first.", min=0)] = 10,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as events come.")] = False,
    output: common.OutputOption = Output.table,
) -> None:
    """Show the newest events. With --follow also each new one as it comes; for programs that is a
    line each, as with -o jsonl."""
    with directory.open_reader(data) as node:
        position = max(0, node.log.head().seq - lines)
        if output in (Output.json, Output.yaml) and not follow:
            events = node.log.read(position)
            print_documents(output, [describe_event(event, node.log) for event in events])
            return
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
