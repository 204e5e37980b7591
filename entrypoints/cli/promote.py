"""kudurru promote: make a node that follows the one that is written to."""

import os
from typing import Annotated

import msgspec
import typer

from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, echo, note, print_documents
from kudurru.entrypoints.service import PromoteRequest, because
from kudurru.entrypoints.settings import load_settings

app = command_app()


@app.command()
def promote(
    data: common.DataOption = common.DEFAULT_DATA,
    config: common.ConfigOption = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Though the leader takes writes, or others do not answer."),
    ] = False,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Make the node that follows the one that is written to. What its leader took and had not sent
    is lost, so a new epoch of the log begins: others follow it with --adopt, its key being new."""
    request = PromoteRequest(force=force, reason=reason)
    remote = directory.running(data)
    if remote is not None:
        with remote:
            done = remote.promote(request)
    else:
        from kudurru.entrypoints.promoting import promote_directory

        settings = load_settings(config, os.environ).settings.follow
        who = because(common.me(), reason)
        done = promote_directory(data, settings, request, who)
    for warning in done.warnings:
        note(f"warning: {warning}")
    if print_documents(output, [msgspec.to_builtins(done)], single=True):
        return
    echo(f"{done.origin} begins at position {done.position}")
    note(
        f"this node no longer follows {done.followed}. Keep that one from being started as it was: "
        "with --follow and --adopt it copies this node"
    )
