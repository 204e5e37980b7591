"""kudurru config: show, check and describe settings."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.settings import KEYS
from kudurru.domain.settings_docs import settings_schema
from kudurru.domain.settings_layers import Resolved, key_at, unknown_key, value_of_text
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import (
    Output,
    echo,
    escape,
    note,
    print_documents,
    print_json,
    print_table,
    print_yaml,
)
from kudurru.entrypoints.live_settings import PatchRequest, is_within, setting_row
from kudurru.entrypoints.settings import Sources, load_settings, read_sources

app = command_app(help="Show, check and describe settings.", no_args_is_help=True)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE|DIR", help="Node file, or a folder of them.", readable=False
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="Data directory. [default: node.dataDir]", readable=False
    ),
]
OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="How to print.", show_default=True)
]


@app.command()
def show(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...", help="Keys or sections; none: all.")
    ] = None,
    config: ConfigOption = None,
    data: DataOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Show every setting, its value, and where it came from: of the server that --server names or
    that holds the data directory, or as one would have them that starts with --config."""
    chosen = set(_chosen(keys or []))
    rows = [row for row in _rows(config, data) if row["key"] in chosen]
    if output is Output.yaml:
        # A file that --config reads: flat keys, each with its origin as a comment.
        for row in rows:
            echo(f"{row['key']}: {_text(row['value'])}  # {escape(row['source'])}")
    elif not print_documents(output, rows):
        columns = ["key", "value", "source", "changes"] + ["scope"] * (output is Output.wide)
        cells = [row | {"value": _with_running(row)} for row in rows]
        print_table([c.upper() for c in columns], [[cell[c] for c in columns] for cell in cells])


@app.command()
def validate(
    config: ConfigOption = None, data: DataOption = None, output: OutputOption = Output.table
) -> None:
    """Check settings as serve would read them. Every fault is named, with its place."""
    try:
        _loaded(config, data)
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
        if not any(is_within(path, name) for path in KEYS):
            raise typer.BadParameter(escape(unknown_key(name)))
    return [path for path in KEYS if not wanted or any(is_within(path, name) for name in wanted)]


def _rows(config: Path | None, data: Path | None) -> list[dict[str, Any]]:
    """Of the server that runs, unless settings of a start are asked for."""
    if config is None:
        here = load_settings(None, os.environ).settings.node.data_dir
        server = remote.service() or directory.running(data or Path(here))
        if server is not None:
            with server:
                return server.settings()
    resolved = _loaded(config, data)
    return [setting_row(resolved, path) for path in KEYS]


def _loaded(config: Path | None, data: Path | None) -> Resolved:
    """As `serve` would have them. Raises: Invalid."""
    read = read_sources(Sources(config, os.environ))
    where = data or Path(read.resolve().settings.node.data_dir)
    resolved = read.resolve(directory.settings_layer(where))
    for warning in resolved.warnings:
        note(escape(f"warning: {warning}"))
    return resolved


def _with_running(row: dict[str, Any]) -> str:
    text = _text(row["value"])
    return f"{text} (until the restart {_text(row['running'])})" if "running" in row else text


@app.command(name="set")
def set_(
    key: Annotated[str, typer.Argument(metavar="KEY", help="As in cache.maxEntries.")],
    values: Annotated[
        list[str], typer.Argument(metavar="VALUE", help="As in the environment: lists with commas.")
    ],
    data: common.DataOption = common.DEFAULT_DATA,
    config: ConfigOption = None,
    reason: common.ReasonOption = "",
    output: OutputOption = Output.table,
) -> None:
    """Change a setting: in the settings file where there is one, else in the log. What may be
    changed at once is, on the server that holds the data directory."""
    faults: list[Cause] = []
    found = key_at(key)
    if found is None:
        raise Invalid("config set", [Cause("KEY", unknown_key(key))])
    if len(values) > 1:
        together = ",".join(values)
        why = f"{len(values)} values; those of a list are one, with commas: {together}"
        raise Invalid("config set", [Cause("VALUE", why)])
    raw = value_of_text(*found, values[0], faults)
    if faults:
        raise Invalid("config set", faults)
    _patch(data, config, PatchRequest(set={key: raw}, reason=reason), output)


@app.command()
def unset(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="As in cache.maxEntries.")],
    data: common.DataOption = common.DEFAULT_DATA,
    config: ConfigOption = None,
    reason: common.ReasonOption = "",
    output: OutputOption = Output.table,
) -> None:
    """Take back what was set with `config set`, or stands in the settings file."""
    request = PatchRequest(set=dict.fromkeys(keys), reason=reason)
    _patch(data, config, request, output)


def _patch(data: Path, config: Path | None, request: PatchRequest, output: Output) -> None:
    with common.service(data, write=True, config=config) as service:
        reply = service.patch_settings(request)
    if print_documents(output, [msgspec.to_builtins(reply)], single=True):
        return
    for path, value in reply.changed.items():
        said = "unset" if value is None else f"set to {_text(value)}"
        later = ", from the next start on" if path in reply.restart else ""
        echo(escape(f"{path} {said} in the {reply.kept}{later}"))
    if not reply.changed:
        echo("unchanged")
    elif not reply.persisted:
        note("it is kept until the next start: write it into the node file to keep it")
    if reply.seq:
        note(f"recorded at position {reply.seq}")


def _report(error: Invalid | None) -> dict[str, Any]:
    causes = error.causes if error else ()
    faults = [{"field": c.field, "message": c.message, "at": c.at} for c in causes]
    return {"valid": error is None, "faults": faults}


def _text(value: Any) -> str:
    """JSON with everything unprintable as escapes that YAML reads too."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
