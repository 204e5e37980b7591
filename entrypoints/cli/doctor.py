"""kudurru doctor: what is wrong with a node, and what to do about it."""

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kudurru.entrypoints import directory, doctor
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, note, print_documents, print_table

app = command_app()

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE|DIR", help="Settings, where no server runs.", readable=False
    ),
]


@app.command(name="doctor")
def doctor_(
    data: common.DataOption = common.DEFAULT_DATA,
    config: ConfigOption = None,
    output: common.OutputOption = Output.table,
) -> None:
    """Look a node over: the server that --server names or that holds the data directory, or the
    directory itself. Exit code 1 when something failed; warnings are not failures."""
    server = remote.service() or directory.running(data)
    if server is not None:
        with server:
            found = server.doctor()
    else:
        found = doctor.examine_directory(data, config, os.environ)
    if not print_documents(output, [msgspec.to_builtins(found)], single=True):
        rows = [[one.status, one.check, one.message] for one in found.checks]
        print_table(["STATUS", "CHECK", "MESSAGE"], rows)
        note(f"failures: {found.failures}, warnings: {found.warnings}")
    if found.failures:
        raise typer.Exit(1)
