"""kudurru version."""

import platform
from typing import Annotated

import typer

from kudurru import __version__
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, echo, print_documents

app = command_app()


@app.command()
def version(
    output: Annotated[
        Output, typer.Option("-o", "--output", help="How to print.", show_default=True)
    ] = Output.table,
) -> None:
    """Show the version, and whether the native engine was built."""
    from kudurru.adapters.dns import engine_native

    engine = "native" if engine_native.is_available() else "python"
    document = {"version": __version__, "python": platform.python_version(), "engine": engine}
    if not print_documents(output, [document], single=True):
        echo(f"kudurru {__version__} (Python {document['python']}, engine {engine})")
