"""kudurru healthcheck: one question to the running server, for containers."""

import os
from typing import Annotated

import typer

from kudurru.adapters.ops_client import ask, faults
from kudurru.domain.errors import Busy
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import echo, escape
from kudurru.entrypoints.settings import load_settings

app = command_app()


@app.command()
def healthcheck(
    live: Annotated[
        bool, typer.Option("--live", help="Ask only whether it turns, not whether it is ready.")
    ] = False,
    ops: common.OpsOption = None,
    config: common.ConfigOption = None,
) -> None:
    """Exit with 0 when queries should be sent to the server here, else with 1 and why not."""
    address = ops or str(load_settings(config, os.environ).settings.ops.address)
    code, document = ask(address, "GET", "/livez" if live else "/readyz")
    if code != 200:
        raise Busy("not ready: " + "; ".join(faults(document)))
    echo("live" if live else "ready")
    for warning in document.get("warnings", []):
        echo(escape(f"warning: {warning}"))
