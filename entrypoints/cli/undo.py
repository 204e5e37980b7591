"""kudurru undo: take one change back, or one restore."""

from typing import Annotated

import typer

from kudurru.entrypoints import directory, restoring
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output
from kudurru.entrypoints.cli.plans import print_carried, print_plan
from kudurru.entrypoints.restoring import UndoRequest

app = command_app()


@app.command()
def undo(
    what: Annotated[
        str, typer.Argument(metavar="SEQ|ID", help="A position of the change, or a restore's id.")
    ],
    data: common.DataOption = common.DEFAULT_DATA,
    dry_run: common.DryRunOption = False,
    skip_conflicts: Annotated[
        bool,
        typer.Option("--skip-conflicts", help="Leave objects that changed since, undo the rest."),
    ] = False,
    allow_mass_change: common.MassChangeOption = False,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Take back what one change did, by a new change. Objects that changed since are conflicts:
    they are listed, and never overwritten."""
    far = remote.service() if dry_run else None
    if far is not None:
        with far:
            carried = far.undo(UndoRequest(what=what, skip_conflicts=True), apply=False)
            print_plan(carried.plan, output)
        return
    if dry_run:
        with directory.open_reader(data) as node:
            plan = restoring.plan_undo(node.log, what)
            now_s = node.clock.now_us() // 1_000_000
            print_plan(restoring.describe(node.log, plan, now_s), output)
        return
    request = UndoRequest(
        what=what,
        skip_conflicts=skip_conflicts,
        allow_mass_change=allow_mass_change,
        reason=reason,
    )
    with common.service(data, write=True) as service:
        print_carried(service.undo(request), output)
