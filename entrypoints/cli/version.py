"""kudurru version."""

import platform
import sys
from typing import Annotated

import typer

from kudurru import __version__

app = typer.Typer()


@app.command()
def version(
    output: Annotated[str, typer.Option("-o", "--output", help="text or json.")] = "text",
) -> None:
    """Show the version."""
    if output == "json":
        text = f'{{"version": "{__version__}", "python": "{platform.python_version()}"}}'
    else:
        text = f"kudurru {__version__} (Python {platform.python_version()})"
    sys.stdout.write(text + "\n")
