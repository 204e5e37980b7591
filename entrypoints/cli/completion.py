"""kudurru completion: what a shell needs to complete our commands and their options."""

from enum import StrEnum
from typing import Annotated

import typer
from click.shell_completion import get_completion_class

from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import echo

app = command_app()


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script by which a shell completes commands, options, and names of objects. For good:
    `eval "$(kudurru completion bash)"` in ~/.bashrc, the same with zsh in ~/.zshrc, or
    `kudurru completion fish > ~/.config/fish/completions/kudurru.fish`."""
    from kudurru.entrypoints.cli.main import COMPLETION, cli

    kind = get_completion_class(shell.value)
    assert kind is not None, "click knows these three"
    echo(kind(cli, {}, "kudurru", COMPLETION).source())
