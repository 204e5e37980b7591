"""kudurru delete."""

from typing import Annotated

import typer

from kudurru.domain.object_store import DEFAULT_MANAGER
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.apply import print_result
from kudurru.entrypoints.cli.output import Output
from kudurru.entrypoints.service import ChangeRequest

app = command_app()


@app.command()
def delete(
    kind: common.KindArgument,
    objects: Annotated[list[str], typer.Argument(metavar="NAME...", help="Of the objects.")],
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = "default",
    manager: common.ManagerOption = DEFAULT_MANAGER,
    force: common.ForceOption = False,
    allow_mass_change: common.MassChangeOption = False,
    dry_run: common.DryRunOption = False,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Delete objects, all of them or none."""
    keys = [common.key_from(kind, name, namespace)[1] for name in dict.fromkeys(objects)]
    request = ChangeRequest(
        delete=keys,
        manager=manager,
        force=force,
        dry_run=dry_run,
        reason=reason,
        allow_mass_change=allow_mass_change,
    )
    with common.service(data, write=True) as service:
        result = service.change(request)
    print_result(result, output, dry_run=dry_run)
