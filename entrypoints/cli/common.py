"""What most commands share: options, the way to a node, manifests from files."""

import getpass
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from kudurru.adapters.manifests import read_manifest_files
from kudurru.domain.errors import Cause, Invalid, NotFound
from kudurru.domain.events import Position, Who
from kudurru.domain.kinds.meta import DEFAULT_NAMESPACE
from kudurru.domain.kinds.registry import Kind, kind_by_word
from kudurru.domain.kinds.validation import CAUSES_MAX, Manifest, parse_manifest
from kudurru.domain.objects import Key, key_of
from kudurru.domain.ports import EventLog
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli.output import Output
from kudurru.entrypoints.service import Service
from kudurru.entrypoints.wiring import Node

DataOption = Annotated[
    Path,
    typer.Option(
        "--data", metavar="DIR", envvar="KUDURRU_DATA", help="Data directory.", show_default=True
    ),
]
OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="How to print.", show_default=True)
]
NamespaceOption = Annotated[
    str, typer.Option("-n", "--namespace", metavar="NS", help="Namespace.", show_default=True)
]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="R", help="Why; kept in the log.", show_default=False)
]
ManagerOption = Annotated[
    str,
    typer.Option("--manager", metavar="M", help="Who manages the objects.", show_default=True),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Take objects over from other managers.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show it, write nothing.")]
FilesOption = Annotated[
    list[Path],
    typer.Option("-f", "--filename", metavar="F", help="File, folder, or - for standard input."),
]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="T", help="As of a position, a time, or for example '2h ago'."),
]
DEFAULT_DATA = Path("kudurru-data")


def me(source: str = "cli") -> Who:
    """The person at the keyboard, as the operating system knows them."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return Who(actor=f"user:{name}", source=source)


@contextmanager
def service(data: Path, *, write: bool = False) -> Iterator[Service]:
    """The node of a data directory: through the server that holds it, else directly."""
    with directory.open_service(data, who=me(), write=write) as found:
        yield found


@contextmanager
def reader(data: Path, at: str | None = None, *, zones: bool = True) -> Iterator[Node]:
    """A node of its own over the log, now or as of a target; nothing can be written to it."""
    with directory.open_reader(data) as node:
        upto = None
        if at is not None:
            upto = resolve(at, node.log)
        directory.replay(node, upto, zones=zones)
        yield node


def resolve(target: str, log: EventLog) -> Position:
    """Position of a target, told to the person unless they named it."""
    from kudurru.adapters.clock import SystemClock
    from kudurru.domain import targets
    from kudurru.entrypoints.cli.output import note

    position = targets.resolve(target, log, SystemClock().now_us())
    if not target.strip().isdigit():
        event = log.get(position)
        note(f"at position {position}" + (f", {format_time(event.ts)}" if event else ""))
    return position


def format_time(ts_us: int) -> str:
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(ts_us / 1_000_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def key_from(kind_word: str, name: str, namespace: str) -> tuple[Kind, Key]:
    kind = kind_by_word(kind_word)
    return kind, key_of(kind.name, namespace if kind.namespaced else "", name)


def split_reference(text: str, namespace: str) -> tuple[Kind, Key]:
    """`KIND/NAME` as people write it on the command line."""
    word, slash, name = text.partition("/")
    if not slash or not name:
        raise Invalid("object", [Cause("", f"{text!r} is not KIND/NAME")])
    return key_from(word, name, namespace)


def load_manifests(files: list[Path], namespace: str) -> list[Manifest]:
    """Manifests of files, folders and standard input; every fault of all of them at once."""
    from kudurru.domain.documents import read_documents

    manifests: list[Manifest] = []
    causes: list[Cause] = []
    for source, data in read_manifest_files(files, sys.stdin.buffer):
        try:
            documents = read_documents(data, what=source)
        except Invalid as error:
            causes += error.causes
            continue
        for document in documents:
            for value in _items(document.value):
                try:
                    manifest = parse_manifest(
                        value,
                        what=document.source,
                        default_namespace=namespace or DEFAULT_NAMESPACE,
                        source_text=document.text_of,
                    )
                    manifests.append(manifest)
                except Invalid as error:
                    causes += _located(document, error)
    if causes:
        raise Invalid("manifests", causes[:CAUSES_MAX])
    _refuse_twice(manifests)
    if not manifests:
        raise NotFound("no objects in " + ", ".join(map(str, files)))
    return manifests


def _items(value: Any) -> list[Any]:
    """A `List` as `kubectl get -o yaml` writes it is its items."""
    if isinstance(value, dict) and value.get("kind") == "List" and "items" in value:
        items = value["items"]
        return items if isinstance(items, list) else [items]
    return [value]


def _located(document: Any, error: Invalid) -> list[Cause]:
    located: list[Cause] = document.located(error.causes)
    return located


def _refuse_twice(manifests: list[Manifest]) -> None:
    seen: set[Key] = set()
    causes = []
    for manifest in manifests:
        if manifest.key in seen:
            causes.append(Cause(str(manifest.key), "given twice; keep one"))
        seen.add(manifest.key)
    if causes:
        raise Invalid("manifests", causes)
