"""kudurru import: what other products are configured to do, as objects here."""

import shlex
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.imports.model import Imported
from kudurru.domain.imports.objects import check_prefix
from kudurru.domain.kinds.meta import API_VERSION, DEFAULT_NAMESPACE
from kudurru.domain.kinds.registry import DNS_ZONE
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.object_store import DEFAULT_MANAGER
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.apply import print_result, warn_of_problems
from kudurru.entrypoints.cli.diff import of_manifest, print_difference
from kudurru.entrypoints.cli.output import Output, counted, echo, escape, note, print_documents
from kudurru.entrypoints.importing import TITLES, import_files
from kudurru.entrypoints.service import ChangeRequest, ListRequest, Service, collect

app = command_app()

LEFT_OUT_SHOWN = 200


class Product(StrEnum):
    """What files are of; `TITLES` has a title for each."""

    hosts = "hosts"
    dnsmasq = "dnsmasq"
    pihole = "pihole"
    adguard = "adguard"
    blocky = "blocky"


@app.command("import")
def import_(
    product: Annotated[Product, typer.Argument(help="What the files are of.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="F...", help="Its files: a backup, a configuration.", readable=False
        ),
    ],
    prefix: Annotated[
        str,
        typer.Option(
            "--prefix", metavar="P", help="Begins names of objects. Default: the product."
        ),
    ] = "",
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = DEFAULT_NAMESPACE,
    manager: common.ManagerOption = DEFAULT_MANAGER,
    force: common.ForceOption = False,
    allow_mass_change: common.MassChangeOption = False,
    dry_run: common.DryRunOption = False,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Import lists, rules, clients and local records of another product as one change. With
    -o yaml nothing is applied: the manifests are written, for `kudurru apply -f`. What has no
    counterpart is told, and so are settings, which are no objects."""
    check_prefix(prefix := prefix or product.value)
    if output is Output.yaml:
        found = import_files(product.value, files, prefix=prefix, namespace=namespace, zones={})
        print_documents(output, [_document(manifest) for manifest in found.manifests])
        _tell(found)
        return
    with common.service(data, write=True) as service, directory.nothing_collected():
        zones = _zones(service)
        found = import_files(product.value, files, prefix=prefix, namespace=namespace, zones=zones)
        given = ", ".join(path.name for path in files)
        result = service.change(
            ChangeRequest(
                apply=found.manifests,
                manager=manager,
                force=force,
                dry_run=dry_run,
                reason=reason or f"import from {TITLES[product.value]}: {given}",
                allow_mass_change=allow_mass_change,
            )
        )
        if dry_run and output in (Output.table, Output.wide):
            _show_differences(service, found.manifests)
        else:
            print_result(result, output, dry_run=dry_run)
        if not dry_run:
            warn_of_problems(service, result)
    _tell(found)


def _zones(service: Service) -> dict[Name, tuple[str, str]]:
    """DNSZones by DNS name: object name and type."""
    return {
        names.key(names.from_text(document["spec"]["zoneName"])): (
            document["metadata"]["name"],
            document["spec"].get("type", "Primary"),
        )
        for document in collect(service, ListRequest(kind=DNS_ZONE.name))
    }


def _show_differences(service: Service, manifests: list[Manifest]) -> None:
    """As `diff -f` shows them."""
    differing = [d for manifest in manifests if (d := of_manifest(service, manifest))]
    for difference in differing:
        print_difference(difference)
    echo(f"{counted(len(differing), 'object')} of {len(manifests)} would differ (dry run)")


def _document(manifest: Manifest) -> dict[str, Any]:
    meta = {
        field: value
        for field, value in msgspec.to_builtins(manifest.meta).items()
        if value and field in ("name", "namespace", "labels", "annotations")
    }
    spec = msgspec.to_builtins(manifest.spec)
    return {"apiVersion": API_VERSION, "kind": manifest.kind.name, "metadata": meta, "spec": spec}


def _tell(found: Imported) -> None:
    """What is left to a person."""
    for line in _left_to_do(found):
        note(escape(line))


def _left_to_do(found: Imported) -> Iterator[str]:
    for left in found.left_out[:LEFT_OUT_SHOWN]:
        yield f"left out: {left}"
    if (more := len(found.left_out) - LEFT_OUT_SHOWN) > 0:
        yield f"left out: {more} more"
    for name, value in found.settings.items():
        yield f"a setting, to be set by: kudurru config set {shlex.join([name, value])}"
