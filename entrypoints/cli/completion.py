"""kudurru completion: what a shell needs to complete our commands and their options."""

from enum import StrEnum
from typing import Annotated

import typer
from click.shell_completion import get_completion_class

from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import echo

app = command_app()

VARIABLE = "_KUDURRU_COMPLETE"


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(help="Which shell reads it.")],
) -> None:
    """Print a script for a shell. For bash: `eval "$(kudurru completion bash)"`."""
    from kudurru.entrypoints.cli.main import cli

    kind = get_completion_class(shell.value)
    assert kind is not None, "click knows these three"
    echo(kind(cli, {}, "kudurru", VARIABLE).source())
