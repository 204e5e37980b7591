"""kudurru audit prune: let old rows of the log go."""

import os
from typing import Annotated

import msgspec
import typer

from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.output import Output, counted, echo, note, print_documents
from kudurru.entrypoints.upkeep import PruneRequest, older_than, position_before


def prune(
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="T",
            help="Rows before this position or moment go. Default: older than audit.retention.",
        ),
    ] = None,
    data: common.DataOption = common.DEFAULT_DATA,
    dry_run: common.DryRunOption = False,
    reason: common.ReasonOption = "",
    config: common.ConfigOption = None,
    output: common.OutputOption = Output.table,
) -> None:
    """Let old rows of the log go. What the present state needs of them stays, and everything that
    stays verifies as before; a moment before can no longer be asked for. Export first: nothing
    brings rows back."""
    from kudurru.adapters.clock import SystemClock

    now_us = SystemClock().now_us()
    with directory.open_reader(data) as node:
        if before is None:
            from kudurru.domain.settings_changes import layer_of
            from kudurru.entrypoints.settings import load_settings

            layer = layer_of(node.log)

            retention = load_settings(config, os.environ, layer=layer).settings.audit.retention
            position = older_than(retention, node.log, now_us) if retention else 0
        else:
            position = position_before(before, node.log, now_us)
    with common.service(data, write=True) as service:
        pruned = service.prune(PruneRequest(before=position, dry_run=dry_run, reason=reason))
    if print_documents(output, [msgspec.to_builtins(pruned)], single=True):
        return
    if not pruned.upto:
        what = f"before {before}" if before else "that is older than audit.retention"
        echo(f"nothing to prune {what}")
        note("whole tiles of 256 events go, and never up to the newest checkpoint")
        return
    would = "would go" if dry_run else "went"
    echo(
        f"{counted(pruned.rows, 'event')} up to position {pruned.upto} {would}; "
        f"{pruned.kept} stay, as the state needs them; "
        f"the log begins with the checkpoint of {counted(pruned.anchor, 'event')}"
    )
    if not dry_run:
        note("the file keeps its size: what is free in it is used again")
