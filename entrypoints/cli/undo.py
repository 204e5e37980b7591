"""kudurru undo: take one change back, or one restore."""

from pathlib import Path
from typing import Annotated

import typer

from kudurru.domain.errors import NotFound
from kudurru.domain.events import OBJECT_STATUS
from kudurru.domain.objects import ref_of
from kudurru.entrypoints import directory, restoring
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, escape, note
from kudurru.entrypoints.cli.plans import print_carried, print_plan
from kudurru.entrypoints.restoring import UndoRequest

app = command_app()


@app.command()
def undo(
    what: Annotated[
        str,
        typer.Argument(
            metavar="SEQ|KIND/NAME|ID",
            help="A position of the change, an object whose newest change is meant, or a "
            "restore's id.",
        ),
    ],
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = "default",
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
    if "/" in what:
        what = _newest_change(what, namespace, data)
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


def _newest_change(reference: str, namespace: str, data: Path) -> str:
    """Its position, which is told: what is undone is that change, whatever comes meanwhile."""
    key = common.split_reference(reference, namespace)[1]
    far = remote.service()
    if far is not None:
        with far:
            asked = common.asked_of(key) | {"noStatus": True}
            found = [document["seq"] for document in far.events(asked, 1)]
    else:
        with directory.open_reader(data) as node:
            events = node.log.read(key=key, newest_first=True)
            newest = next((event for event in events if event.type != OBJECT_STATUS), None)
            found = [newest.seq] if newest is not None else []
    if not found:
        raise NotFound(f"{ref_of(key)} was never changed; `kudurru history` shows what was")
    note(escape(f"the newest change of {ref_of(key)} is at position {found[0]}"))
    return str(found[0])
