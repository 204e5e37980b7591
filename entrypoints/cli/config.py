"""`kudurru config`: show, check and describe settings."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kudurru.domain.errors import Invalid
from kudurru.domain.settings import KEYS
from kudurru.domain.settings_docs import settings_schema
from kudurru.domain.settings_layers import Resolved, unknown_key
from kudurru.entrypoints.settings import load_settings

app = typer.Typer(help="Show, check and describe settings.", no_args_is_help=True)


class Output(StrEnum):
    table = "table"
    json = "json"
    yaml = "yaml"


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Node file, or a folder of them.", metavar="FILE|DIR"),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Form of the output.")]


@app.command()
def show(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys or sections; none: all.")] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Print every setting, its value, and where it came from."""
    with _refusing():
        resolved = load_settings(config, os.environ)
        rows = [_row(resolved, path) for path in _chosen(keys or [])]
    if output is Output.json:
        typer.echo(json.dumps(rows, indent=2))
    elif output is Output.yaml:
        # A file that --config reads: flat keys, each with its origin as a comment.
        for row in rows:
            typer.echo(f"{row['key']}: {_text(row['value'])}  # {_printable(row['source'])}")
    else:
        _print_table(rows)


@app.command()
def validate(config: ConfigOption = None, output: OutputOption = Output.table) -> None:
    """Check settings as `serve` would read them; every fault is named, with its place."""
    if output is Output.table:
        with _refusing():
            load_settings(config, os.environ)
        typer.echo("valid")
        return
    try:
        load_settings(config, os.environ)
    except Invalid as error:
        faults = [{"field": c.field, "message": c.message, "at": c.at} for c in error.causes]
        _print_data({"valid": False, "faults": faults}, output)
        raise typer.Exit(1) from None
    _print_data({"valid": True, "faults": []}, output)


@app.command()
def schema(output: OutputOption = Output.json) -> None:
    """Print the JSON Schema of settings files, for editors."""
    _print_data(settings_schema(), output)


def _chosen(wanted: list[str]) -> list[str]:
    """Keys named by themselves or by their section, in the table's order."""
    for name in wanted:
        if not any(_is_within(path, name) for path in KEYS):
            typer.echo(_printable(unknown_key(name)), err=True)
            raise typer.Exit(2)
    return [path for path in KEYS if not wanted or any(_is_within(path, name) for name in wanted)]


def _is_within(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


def _row(resolved: Resolved, path: str) -> dict[str, Any]:
    marks = KEYS[path].marks
    return {
        "key": path,
        "value": resolved.shown(path),
        "source": ", ".join(str(origin) for origin in resolved.origins[path]),
        "scope": marks.scope,
        "restart": marks.restart,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("KEY", "VALUE", "SOURCE", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(row["key"], _text(row["value"]), _printable(row["source"]))
    # Outside of a terminal nothing is wrapped: such output is searched and cut by line.
    width = None if sys.stdout.isatty() else 1000
    Console(markup=False, highlight=False, width=width).print(table)


def _print_data(value: Any, output: Output) -> None:
    if output is Output.yaml:
        import yaml

        typer.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip())
    else:
        typer.echo(json.dumps(value, indent=2))


def _text(value: Any) -> str:
    """JSON with everything unprintable as escapes that YAML reads too."""
    return "".join(
        c if c.isprintable() else f"\\U{ord(c):08x}" for c in json.dumps(value, ensure_ascii=False)
    )


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


@contextmanager
def _refusing() -> Iterator[None]:
    """Faults go to stderr, and the command ends with 1."""
    try:
        yield
    except Invalid as error:
        typer.echo("\n".join(map(_printable, str(error).split("\n"))), err=True)
        raise typer.Exit(1) from None
