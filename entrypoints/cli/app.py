"""How a command is made: help as plain text, like that of the program, and no completion of its
own, because the program completes all of them (`_KUDURRU_COMPLETE=bash_source kudurru`)."""

from typing import Any

import typer


def command_app(**options: Any) -> typer.Typer:
    """One command, or a group of them; `options` as typer has them."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, **options)
