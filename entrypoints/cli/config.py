"""kudurru config: show, check and describe settings."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from kudurru.domain.errors import Invalid
from kudurru.domain.settings import KEYS
from kudurru.domain.settings_docs import settings_schema
from kudurru.domain.settings_layers import Resolved, unknown_key
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import (
    Output,
    echo,
    escape,
    print_documents,
    print_json,
    print_table,
    print_yaml,
)
from kudurru.entrypoints.settings import load_settings

app = command_app(help="Show, check and describe settings.", no_args_is_help=True)

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE|DIR", help="Node file, or a folder of them."),
]
OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="How to print.", show_default=True)
]


@app.command()
def show(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys or sections; none: all.")] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Show every setting, its value, and where it came from."""
    chosen = _chosen(keys or [])
    resolved = load_settings(config, os.environ)
    rows = [_row(resolved, path) for path in chosen]
    if output is Output.yaml:
        # A file that --config reads: flat keys, each with its origin as a comment.
        for row in rows:
            echo(f"{row['key']}: {_text(row['value'])}  # {escape(row['source'])}")
    elif not print_documents(output, rows):
        columns = ["key", "value", "source", "changes"] + ["scope"] * (output is Output.wide)
        cells = [row | {"value": _text(row["value"])} for row in rows]
        print_table([c.upper() for c in columns], [[cell[c] for c in columns] for cell in cells])


@app.command()
def validate(config: ConfigOption = None, output: OutputOption = Output.table) -> None:
    """Check settings as serve would read them. Every fault is named, with its place."""
    try:
        load_settings(config, os.environ)
    except Invalid as error:
        if not print_documents(output, [_report(error)], single=True):
            raise
        raise typer.Exit(1) from None
    if not print_documents(output, [_report(None)], single=True):
        echo("the settings are valid")


@app.command()
def schema(output: OutputOption = Output.json) -> None:
    """Print the JSON Schema of settings files, for editors."""
    if output is Output.yaml:
        print_yaml(settings_schema())
    else:
        print_json(settings_schema())


def _chosen(wanted: list[str]) -> list[str]:
    """Keys named by themselves or by their section, in the table's order."""
    for name in wanted:
        if not any(_is_within(path, name) for path in KEYS):
            raise typer.BadParameter(escape(unknown_key(name)))
    return [path for path in KEYS if not wanted or any(_is_within(path, name) for name in wanted)]


def _is_within(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


def _row(resolved: Resolved, path: str) -> dict[str, Any]:
    marks = KEYS[path].marks
    return {
        "key": path,
        "value": resolved.shown(path),
        "source": ", ".join(str(origin) for origin in resolved.origins[path]),
        "changes": "at restart" if marks.restart else "at once",
        "scope": marks.scope,
    }


def _report(error: Invalid | None) -> dict[str, Any]:
    causes = error.causes if error else ()
    faults = [{"field": c.field, "message": c.message, "at": c.at} for c in causes]
    return {"valid": error is None, "faults": faults}


def _text(value: Any) -> str:
    """JSON with everything unprintable as escapes that YAML reads too."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
