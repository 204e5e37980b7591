"""kudurru describe: one object with its problems and history."""

from datetime import datetime
from typing import Annotated, Any

import typer

from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.kinds.registry import DNS_RECORD_SET
from kudurru.domain.objects import Key, ref_of
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, age, echo, escape, print_documents
from kudurru.entrypoints.history import describe_event

app = command_app()

EVENTS_SHOWN = 10


@app.command()
def describe(
    kind_word: common.KindArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the object.")],
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = "default",
    output: common.OutputOption = Output.table,
) -> None:
    """Show one object: what it says, what is wrong with it, and its last changes."""
    kind, key = common.key_from(kind_word, name, namespace)
    with common.service(data) as service:
        document = service.get(key)
        problems = service.problems(key) if kind is DNS_RECORD_SET else []
        conditions = service.conditions(key)
    events = _events(data, key)
    if print_documents(
        output,
        [
            {
                "object": document,
                "conditions": conditions,
                "problems": problems,
                "events": events,
            }
        ],
        single=True,
    ):
        return
    _print(document)
    _print_conditions(conditions)
    if problems:
        echo("Problems:")
    for problem in problems:
        text = f"  {problem['reason']}: {problem['dnsName']} {problem['recordType']}"
        echo(escape(f"{text}: {problem['message']}"))
    echo("Events:")
    for event in events:
        reason = f": {event['reason']}" if event["reason"] else ""
        text = f"  {event['seq']}  {event['time']}  {event['verb']} by {event['actor']}"
        echo(escape(text + reason))


def _events(data: Any, key: Key) -> list[dict[str, Any]]:
    far = remote.service()
    if far is not None:
        ref = ref_of(key)
        which = {"kind": ref.kind, "namespace": ref.namespace, "name": ref.name}
        with far:
            return far.events({k: v for k, v in which.items() if v}, EVENTS_SHOWN)
    with directory.open_reader(data) as node:
        found = []
        for event in node.log.read(key=key, newest_first=True):
            found.append(describe_event(event, node.log))
            if len(found) == EVENTS_SHOWN:
                break
        return found


def _print(document: dict[str, Any]) -> None:
    meta = document["metadata"]
    created = datetime.fromisoformat(meta["creationTimestamp"])
    _field("Name", meta["name"])
    if "namespace" in meta:
        _field("Namespace", meta["namespace"])
    _field("Kind", f"{document['kind']} ({document['apiVersion']})")
    _field("Manager", meta["annotations"].pop(MANAGED_BY))
    for title, part in (("Labels", meta.get("labels")), ("Annotations", meta["annotations"])):
        for i, (key, value) in enumerate((part or {}).items()):
            _field(title if i == 0 else "", f"{key}={value}")
    _field("Created", f"{meta['creationTimestamp']} ({age(created.timestamp(), _now_s())} ago)")
    _field("Generation", meta["generation"])
    _field("Version", meta["resourceVersion"])
    said_below = ("conditions", "problems")
    status = {k: v for k, v in (document.get("status") or {}).items() if k not in said_below}
    for title, part in (("Spec", document.get("spec")), ("Status", status)):
        if part:
            echo(f"{title}:")
            _tree(part, "  ")


def _print_conditions(conditions: list[dict[str, Any]]) -> None:
    if conditions:
        echo("Conditions:")
    for found in conditions:
        text = f"  {found['type']}: {found['status']}, {found['reason']}"
        echo(escape(f"{text}: {found['message']}" if found.get("message") else text))


def _now_s() -> float:
    from kudurru.adapters.clock import SystemClock

    return SystemClock().now_us() / 1_000_000


def _field(title: str, value: Any) -> None:
    label = f"{title}:" if title else ""
    echo(f"{label:<13}{escape(str(value))}")


def _tree(value: Any, indent: str) -> None:
    """Nested values, one per line."""
    items = value.items() if isinstance(value, dict) else (("-", part) for part in value)
    for name, part in items:
        label = name if name == "-" else f"{name}:"
        if isinstance(part, (dict, list)) and part:
            echo(f"{indent}{escape(label)}")
            _tree(part, indent + "  ")
        else:
            echo(f"{indent}{escape(label)} {escape(str(part))}")
