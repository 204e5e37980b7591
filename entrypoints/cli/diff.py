"""kudurru diff: what applying files would change, or what changed between two moments."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kudurru.domain.differences import differences
from kudurru.domain.errors import Cause, Invalid, NotFound
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.object_store import annotations_after
from kudurru.domain.objects import ref_of
from kudurru.domain.restore import Scope, content
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.history import print_change
from kudurru.entrypoints.cli.output import Output, echo, escape, print_documents
from kudurru.entrypoints.service import Service
from kudurru.projections import as_of

app = command_app()

EXIT_DIFFERENT = 1


@app.command()
def diff(
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "-f", "--filename", metavar="F", help="File, folder, or - for standard input."
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
            found = [d for m in manifests if (d := _of_manifest(service, m))]
    else:
        found = _between(data, from_ or "", to, zone)
    if not print_documents(output, found):
        for document in found:
            echo(escape(f"{document['object']} {document['verb']}"))
            for change in document["changes"]:
                print_change(change, "  ")
    if found:
        raise typer.Exit(EXIT_DIFFERENT)


def _of_manifest(service: Service, manifest: Manifest) -> dict[str, Any] | None:
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
    return _difference(manifest.key, before, after, verb)


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


def _difference(key: Any, before: Any, after: Any, verb: str) -> dict[str, Any] | None:
    changes = list(differences(before, after))
    if not changes:
        return None
    ref = ref_of(key)
    where = f"{ref.namespace}/" if ref.namespace else ""
    return {"object": f"{ref.kind.lower()}/{where}{ref.name}", "verb": verb, "changes": changes}


def _between(data: Any, from_: str, to: str | None, zone: str | None) -> list[dict[str, Any]]:
    """Objects that differ between two positions."""
    with directory.open_reader(data) as node:
        first = common.resolve(from_, node.log)
        last = common.resolve(to, node.log) if to else node.log.head().seq
        if last < first:
            raise Invalid("diff", [Cause("", f"--to {last} is before --from {first}")])
        scope = Scope(everything=True)
        if zone is not None:
            scope = Scope(zone=as_of.zone_named(node.log, zone, last, first))
        found = as_of.between(node.log, scope, first, last)
        differing = []
        for key in sorted(found.then.keys() | found.now.keys()):
            old, new = found.then.get(key), found.now.get(key)
            verb = "created" if old is None else "deleted" if new is None else "changed"
            if difference := _difference(key, content(old), content(new), verb):
                differing.append(difference)
        return differing
