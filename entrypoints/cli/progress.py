"""A bar on a terminal, for work that takes a moment."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kudurru.entrypoints.cli.output import escape

EVERY = 256
"""Rows between two movements of the bar."""


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A function of (done, total) that moves the bar; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
