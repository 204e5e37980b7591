"""kudurru lameduck: have balancers send their clients elsewhere, while queries are answered."""

import os
import time
from typing import Annotated

import typer

from kudurru.adapters.ops_client import ask, faults
from kudurru.domain.errors import Busy, Cause, Invalid
from kudurru.domain.kinds.durations import duration_us
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import echo, escape
from kudurru.entrypoints.settings import load_settings

app = command_app()


@app.command()
def lameduck(
    duration: Annotated[
        str | None,
        typer.Argument(metavar="[DURATION]", help="How long to wait. Default: health.lameduck."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End it: send queries again.")] = False,
    ops: common.OpsOption = None,
    config: common.ConfigOption = None,
) -> None:
    """Turn readiness to 503 and the health name to SERVFAIL, then wait until balancers have
    noticed. Queries that come are answered all the same. It lasts until it is cancelled or the
    server ends."""
    settings = load_settings(config, os.environ).settings
    address = ops or str(settings.ops.address)
    wait_s = 0.0 if cancel else settings.health.lameduck.total_seconds()
    if duration is not None:
        wait_s = _seconds(duration, cancel)
    code, document = ask(address, "DELETE" if cancel else "POST", "/lameduck")
    if code != 200:
        raise Busy("; ".join(faults(document)))
    if cancel and document.get("lameduck"):
        raise Busy("the server is stopping, which is not taken back")
    echo(escape("queries are welcome again" if cancel else f"lameduck; waiting {wait_s:g} s"))
    time.sleep(wait_s)


def _seconds(text: str, cancel: bool) -> float:
    if cancel:
        raise Invalid("DURATION", [Cause("", "--cancel waits for nothing; leave the one out")])
    try:
        return duration_us(text) / 1_000_000
    except ValueError as error:
        raise Invalid("DURATION", [Cause("", str(error))]) from None
