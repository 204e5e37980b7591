"""kudurru history: who changed what, when and why."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from kudurru.domain import targets
from kudurru.domain.events import OBJECT_STATUS
from kudurru.domain.objects import Key
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, echo, escape, note, print_documents, print_table
from kudurru.entrypoints.history import describe_event, first_position, matches, zone_meant
from kudurru.entrypoints.history_names import NameChanges, changes_near, is_wanted, name_changes
from kudurru.entrypoints.wiring import Node

app = command_app()

LIMIT = 50


@app.command()
def history(
    reference: Annotated[
        str | None, typer.Argument(metavar="KIND/NAME", help="Of one object.")
    ] = None,
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = "default",
    zone: Annotated[str | None, typer.Option("--zone", metavar="Z", help="Of one zone.")] = None,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Of a DNS name, whatever object has it. Read are all changes of the zones that "
            "can have it: little of a log of many zones, and the whole log where it has one.",
        ),
    ] = "",
    type_: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Of one record type, with --name.")
    ] = "",
    actor: Annotated[str | None, typer.Option("--actor", metavar="A", help="By whom.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="T", help="Not before.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="T", help="Not after.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="How many at most.", min=1)] = LIMIT,
    status: Annotated[
        bool, typer.Option("--status", help="Also each status that the system wrote.")
    ] = False,
    output: common.OutputOption = Output.table,
) -> None:
    """Show changes, newest first; field by field with -o wide. Statuses are the system's and left
    out, unless --status asks for them."""
    asked = _Asked(
        key=common.split_reference(reference, namespace)[1] if reference else None,
        name=name,
        type=type_,
        at_name=name_changes(name, type_),
        zone=zone,
        actor=actor,
        since=since,
        until=until,
        with_statuses=status,
        with_changes=output is not Output.table,
    )
    far = remote.service()
    if far is not None:
        with far:
            documents = far.events(_params(asked), limit)
    else:
        with directory.open_reader(data) as node:
            documents = list(islice(_read(node, asked), limit))
    _show(documents, output)


class _Asked(NamedTuple):
    """Which changes, and what of them."""

    key: Key | None
    name: str
    type: str
    at_name: NameChanges | None  # what the two mean
    zone: str | None
    actor: str | None
    since: str | None
    until: str | None
    with_statuses: bool
    with_changes: bool


def _read(node: Node, asked: _Asked) -> Iterator[dict[str, Any]]:
    """Newest first."""
    log, now_us = node.log, node.clock.now_us()
    after = first_position(asked.since, log, now_us) - 1 if asked.since else 0
    upto = targets.resolve(asked.until, log, now_us) if asked.until else None
    zone = zone_meant(asked.zone, log) if asked.zone is not None else None
    if asked.key is not None:
        events = log.read(after, upto, key=asked.key, newest_first=True)
    else:
        events = changes_near(asked.at_name, log, after, upto)
    for event in events:
        if event.type == OBJECT_STATUS and not asked.with_statuses:
            continue
        if matches(event, zone, asked.actor) and is_wanted(asked.at_name, event, log):
            yield describe_event(event, log, with_changes=asked.with_changes)


def _params(asked: _Asked) -> dict[str, str | int | bool]:
    """What the API is asked."""
    texts = {
        "zone": asked.zone,
        "actor": asked.actor,
        "since": asked.since,
        "until": asked.until,
        "dnsName": asked.name,
        "recordType": asked.type,
    }
    switches = {"changes": asked.with_changes, "noStatus": not asked.with_statuses}
    return {
        **(common.asked_of(asked.key) if asked.key is not None else {}),
        **{name: text for name, text in texts.items() if text},
        **{name: True for name, is_on in switches.items() if is_on},
    }


def _show(documents: list[dict[str, Any]], output: Output) -> None:
    if print_documents(output, documents):
        return
    if not documents:
        note("nothing in the log matches (statuses are shown with --status)")
    elif output is Output.wide:
        for document in documents:
            _print_wide(document)
    else:
        print_table(
            ["SEQ", "TIME", "ACTOR", "MANAGER", "WHAT", "OBJECT", "REASON"],
            [
                [d["seq"], d["time"], d["actor"], d["manager"], d["verb"], d["object"],
                 d["reason"] or d.get("cause", "")]
                for d in documents
            ],
        )  # fmt: skip


def _print_wide(document: dict[str, Any]) -> None:
    who = f"{document['actor']} ({document['source']}) as {document['manager']}"
    echo(
        escape(
            f"{document['seq']}  {document['time']}  {document['verb']} "
            f"{document['object']}  by {who}"
        )
    )
    if document["reason"]:
        echo(escape(f"    reason: {document['reason']}"))
    if document.get("cause"):
        echo(escape(f"    cause: {document['cause']}"))
    for change in document.get("changes", ()):
        print_change(change, "    ")


def print_change(change: dict[str, Any], indent: str = "") -> None:
    """One difference, as a person reads it."""
    if "from" in change:
        echo(escape(f"{indent}- {change['field']}: {_shown(change['from'])}"))
    if "to" in change:
        echo(escape(f"{indent}+ {change['field']}: {_shown(change['to'])}"))


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()
