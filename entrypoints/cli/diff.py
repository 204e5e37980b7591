"""kudurru diff: what applying files would change, or what changed between two moments."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kudurru.domain.errors import NotFound
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.object_store import annotations_after
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.history import print_change
from kudurru.entrypoints.cli.output import Output, echo, escape, print_documents
from kudurru.entrypoints.differing import Difference, difference, differing
from kudurru.entrypoints.service import Service

app = command_app()

EXIT_DIFFERENT = 1


@app.command()
def diff(
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "-f",
            "--filename",
            metavar="F",
            help="File, folder, or - for standard input.",
            readable=False,
        ),
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="T", help="Compare from this moment")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="T", help="to this one.")] = None,
    zone: Annotated[str | None, typer.Option("--zone", metavar="Z", help="Of one zone.")] = None,
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = "default",
    output: common.OutputOption = Output.table,
) -> None:
    """Show what applying files would change, or what changed between two moments. Exit code 1
    when there are differences."""
    if bool(files) == bool(from_):
        raise typer.BadParameter("give either -f FILE or --from T")
    if files and (to or zone):
        raise typer.BadParameter("--to and --zone go with --from, not with -f")
    if files:
        manifests = common.load_manifests(files, namespace).manifests
        with common.service(data) as service:
            found = [d for m in manifests if (d := of_manifest(service, m))]
    else:
        found = _between(data, from_ or "", to, zone)
    show_differences(found, output)


def show_differences(found: list[Difference], output: Output) -> None:
    """Raises: typer.Exit where there are any."""
    if not print_documents(output, msgspec.to_builtins(found)):
        for one in found:
            print_difference(one)
    if found:
        raise typer.Exit(EXIT_DIFFERENT)


def print_difference(one: Difference) -> None:
    echo(escape(f"{one.object} {one.verb}"))
    for change in one.changes:
        print_change(change, "  ")


def of_manifest(service: Service, manifest: Manifest) -> Difference | None:
    try:
        document = service.get(manifest.key)
    except NotFound:
        document = {}
    before = _content(document)
    meta = manifest.meta
    annotations = annotations_after(meta.annotations, before.get("annotations", {}))
    metadata = {"labels": meta.labels, "annotations": annotations}
    after = _content({"metadata": metadata, "spec": msgspec.to_builtins(manifest.spec)})
    verb = "would change" if document else "would be created"
    return difference(manifest.key, before, after, verb)


def _content(document: dict[str, Any]) -> dict[str, Any]:
    """What an Apply compares: spec, labels, annotations."""
    if not document:
        return {}
    meta = document["metadata"]
    annotations = {
        name: value for name, value in meta.get("annotations", {}).items() if name != MANAGED_BY
    }
    parts = {"spec": document["spec"], "labels": meta.get("labels"), "annotations": annotations}
    return {name: part for name, part in parts.items() if part}


def _between(data: Path, from_: str, to: str | None, zone: str | None) -> list[Difference]:
    """Objects that differ between two moments."""
    far = remote.service()
    if far is not None:
        with far:
            return far.differing(from_, to, zone)
    with directory.open_reader(data) as node:
        first = common.resolve(from_, node.log)
        last = common.resolve(to, node.log) if to else node.log.head().seq
        return differing(node.log, first, last, zone)
