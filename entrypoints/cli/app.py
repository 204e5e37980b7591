"""How a command is made: help as plain text, like that of the program, and no completion of its
own, because the program completes all of them (`kudurru completion bash`)."""

from typing import Any

import typer


def command_app(**options: Any) -> typer.Typer:
    """One command, or a group of them; `options` as typer has them."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, **options)
