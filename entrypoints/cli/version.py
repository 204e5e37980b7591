"""kudurru version. Made with click alone: it says three words, and typer, which makes the other
commands, takes longer to load than all that is done here."""

import importlib
import platform

import click

from kudurru import __version__
from kudurru.entrypoints.cli.output import Output, echo, print_documents

OUTPUTS = [output.value for output in Output]


@click.command(help="Show the version, and whether the native engine was built.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(OUTPUTS),
    metavar=f"<{'|'.join(OUTPUTS)}>",  # as typer has it
    default="table",
    help="How to print.",
    show_default=True,
)
def app(output: str) -> None:
    engine = _engine()
    document = {"version": __version__, "python": platform.python_version(), "engine": engine}
    if not print_documents(Output(output), [document], single=True):
        echo(f"kudurru {__version__} (Python {document['python']}, engine {engine})")


def _engine() -> str:
    """As `engine_native.is_available` has it, without what that engine needs."""
    try:
        importlib.import_module("kudurru.adapters.dns._engine")
    except ImportError:
        return "python"
    return "native"
