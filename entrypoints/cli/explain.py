"""kudurru explain: why a client gets what it gets for a name."""

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kudurru.domain.filtering.explain import Explanation
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, echo, escape, note, print_documents
from kudurru.entrypoints.filtering import ExplainRequest
from kudurru.entrypoints.settings import load_settings

app = command_app()

LISTS_OF_NOW = "fetched lists are not part of the log: they count as they are now"
_ACTIONS = {"block": "blocked", "rewrite": "rewritten", "pass": "passed on"}
_REASONS = {
    "none": "nothing names it",
    "bypass": "the client's policy bypasses filtering",
    "paused": "blocking is paused for the client",
    "rewrite": "a policy rewrites it",
    "important-allow": "an $important rule of a list allows it",
    "important-deny": "an $important rule of a list denies it",
    "policy-allow": "a policy allows it",
    "policy-deny": "a policy denies it",
    "blocked-type": "a policy blocks the type",
    "list-allow": "a list allows it",
    "list-deny": "a list denies it",
    "safe-search": "safe search",
}


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A DNS name.")],
    rtype: Annotated[
        str, typer.Argument(metavar="TYPE", help="Its record type.", show_default=True)
    ] = "A",
    data: common.DataOption = common.DEFAULT_DATA,
    client: Annotated[
        str, typer.Option("--client", metavar="IP", help="Who asks.", show_default=True)
    ] = "127.0.0.1",
    mac: Annotated[str, typer.Option("--mac", help="Its MAC; else as this host knows it.")] = "",
    client_id: Annotated[
        str, typer.Option("--client-id", metavar="ID", help="Its ID over DoH, DoT or DoQ.")
    ] = "",
    listener: Annotated[
        str, typer.Option("--listener", metavar="PROTO", help="Where it asks.", show_default=True)
    ] = "udp",
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE|DIR",
            help="Settings as `serve` has them, where no server runs.",
            readable=False,
        ),
    ] = None,
    at: common.AtOption = None,
    output: common.OutputOption = Output.table,
) -> None:
    """Say which zone, policy, list and rule decide what a client gets, now or as of a moment, and
    who is asked for what none of them answers."""
    settings = None
    if config is not None:
        layer = directory.settings_layer(data)
        settings = load_settings(config, os.environ, layer=layer).settings
    request = ExplainRequest(
        name=name, type=rtype, client=client, mac=mac, client_id=client_id, listener=listener
    )
    far = remote.service() if at is not None else None
    if far is not None:
        with far:
            found = far.explain(request, at=at or "")
        note(LISTS_OF_NOW)
    elif at is not None:
        with directory.open_reader(data) as node:
            upto = common.resolve(at, node.log)
            found = directory.explain_as_of(data, node, upto, request, settings)
        note(LISTS_OF_NOW)
    else:
        with common.service(data, settings=settings) as service:
            found = service.explain(request)
    if not print_documents(output, [msgspec.to_builtins(found)], single=True):
        for line in lines(found):
            echo(escape(line))


def lines(found: Explanation) -> list[str]:
    """An explanation for people."""
    told = [f"{found.name} {found.type} for {found.client}"]
    if found.answered_by == "zone":
        told.append(f"answered from the zone {found.zone}; policies have no say over local zones")
    elif found.answered_by == "special":
        told.append("answered here: it is a special name, which goes to no upstream")
    elif found.answered_by == "nobody":
        told.append(f"refused: {_REASONS[found.reason]}, and {found.refusal}")
    else:
        told.append(f"{_ACTIONS[found.action]}: {_REASONS[found.reason]}")
        if found.answered_by == "resolver" and not found.upstreams:
            told.append("which upstreams is a setting of the server: give its --config")
    for word, value in (
        ("rule", f"{found.rule} (line {found.line})" if found.line else found.rule),
        ("list", f"{found.list} ({found.source})" if found.source else found.list),
        ("policy", found.policy),
        ("groups", ", ".join(found.groups)),
        ("policies that apply", ", ".join(found.policies)),
        ("upstreams", ", ".join(found.upstreams)),
    ):
        if value:
            told.append(f"{word}: {value}")
    return told
