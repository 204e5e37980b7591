"""kudurru serve."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app

app = command_app()


@app.command()
def serve(
    data: common.DataOption = common.DEFAULT_DATA,
    dns: Annotated[
        list[str] | None,
        typer.Option("--dns", metavar="ADDR:PORT", help="UDP and TCP; repeats; port 0 picks one."),
    ] = None,
    http: Annotated[
        str, typer.Option("--http", metavar="ADDR:PORT", help="API and health.")
    ] = "127.0.0.1:8080",
    ops: Annotated[
        str, typer.Option("--ops", metavar="ADDR:PORT", help="Health, for operators.")
    ] = "127.0.0.1:8081",
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="ADDR:PORT", help="Prometheus metrics.")
    ] = "127.0.0.1:9153",
    demo: Annotated[bool, typer.Option("--demo", help="Add the zone demo.example once.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit when the log is damaged, do not serve the rest.")
    ] = False,
    pid_file: Annotated[
        Path | None, typer.Option("--pid-file", metavar="F", help="Write the process id there.")
    ] = None,
) -> None:
    """Serve zones over DNS until SIGTERM or Control-C."""
    from kudurru.entrypoints.server import ServeOptions, Server

    options = ServeOptions(
        data=data,
        dns=tuple(dns or ["127.0.0.1:5300"]),
        http=http,
        ops=ops,
        metrics=metrics,
        with_demo=demo,
        pid_file=pid_file,
        strict=strict,
    )

    async def run() -> None:
        await Server(options).run(_announce)

    asyncio.run(run())


def _announce(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
