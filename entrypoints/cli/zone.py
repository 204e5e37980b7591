"""kudurru zone: master files in and out."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kudurru.domain.dns import names
from kudurru.domain.errors import NotFound
from kudurru.domain.events import OBJECT_APPLIED, OBJECT_DELETED
from kudurru.domain.kinds.meta import is_dns_subdomain
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.kinds.stored import read_zone
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.kinds.zone import DNSZoneSpec, zone_warnings
from kudurru.domain.object_store import DEFAULT_MANAGER, decode_body
from kudurru.domain.objects import Key, key_of
from kudurru.domain.zone_import import Present, may_share_names, zone_object_name
from kudurru.domain.zone_model import soa_of
from kudurru.entrypoints import answering, directory
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.apply import short_name
from kudurru.entrypoints.cli.diff import of_manifest, print_difference
from kudurru.entrypoints.cli.output import Output, counted, echo, escape, note, print_documents
from kudurru.entrypoints.cli.progress import progress
from kudurru.entrypoints.service import (
    ChangeRequest,
    ListRequest,
    Service,
    collect,
    manifest_from_wire,
)
from kudurru.entrypoints.wiring import Result
from kudurru.entrypoints.zone_files import ZoneFile, read_zone_file, to_manifests

if TYPE_CHECKING:
    from kudurru.entrypoints.api_client import ApiService

app = command_app(no_args_is_help=True)

WARNINGS_SHOWN = 20
OBJECTS_SHOWN = 200
"""By a dry run: more than that nobody reads."""

ZoneOption = Annotated[
    str | None,
    typer.Option("--zone", metavar="Z", help="The zone, by DNS name or object name."),
]


@app.callback()
def zone() -> None:
    """Import, export and check zones as master files (RFC 1035)."""


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="F", help="A master file.", readable=False)],
    zone: ZoneOption = None,
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = "default",
    replace: Annotated[
        bool, typer.Option("--replace", help="Also delete what the file no longer has.")
    ] = False,
    manager: common.ManagerOption = DEFAULT_MANAGER,
    force: common.ForceOption = False,
    allow_mass_change: common.MassChangeOption = False,
    dry_run: common.DryRunOption = False,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Import a master file as one change. It becomes one DNSZone and one DNSRecordSet per owner
    name; what is there already and equal is left alone."""
    named = _zone_name_of(data, zone) if zone else None
    with progress(f"reading {file}") as on_progress:
        read = read_zone_file(file, zone=named or zone, on_progress=on_progress)
    _warn(read)
    with (
        common.service(data, write=True) as service,
        _waiting("recording"),
        directory.nothing_collected(),
    ):
        present = _present(service, read, zone if named else None, namespace)
        manifests = to_manifests(read, namespace=namespace, present=present)
        zone_name = manifests[0].meta.name
        result = service.change(
            ChangeRequest(
                apply=manifests,
                delete=_surplus(service, namespace, manifests) if replace else [],
                manager=manager,
                force=force,
                dry_run=dry_run,
                reason=reason or f"zone import {file.name}",
                imported_serials={zone_name: read.soa[2]},
                allow_mass_change=allow_mass_change,
            )
        )
        serial = None if dry_run else _serial_of(service, manifests[0])
        if dry_run and output in (Output.table, Output.wide):
            _show_differences(service, manifests, result)
    _show_imported(read, zone_name, result, output, dry_run=dry_run)
    if serial not in (None, read.soa[2]) and output in (Output.table, Output.wide):
        why = "is kept as long as the content is" if not result.seq else "goes on from the last one"
        note(f"its serial is {serial}, and {read.soa[2]} in the file: a serial {why}")


def _show_imported(
    read: ZoneFile, name: str, result: Result, output: Output, *, dry_run: bool
) -> None:
    counts = Counter(outcome.verb for outcome in result.outcomes)
    document = {
        "zone": names.to_text(read.apex),
        "name": name,
        "records": len(read.records),
        "objects": dict(counts),
        "position": result.seq,
        "dryRun": dry_run,
    }
    if print_documents(output, [document], single=True):
        return
    shown = ", ".join(f"{count} {verb}" for verb, count in sorted(counts.items()))
    suffix = " (dry run)" if dry_run else ""
    size = counted(len(read.records), "record")
    echo(escape(f"{document['zone']}: {size}; objects: {shown}{suffix}"))


def _show_differences(service: Service, manifests: list[Manifest], result: Result) -> None:
    """What would be done, object by object, as `diff` shows it."""
    by_key = {manifest.key: manifest for manifest in manifests}
    changed = [outcome for outcome in result.outcomes if outcome.verb != "unchanged"]
    for outcome in changed[:OBJECTS_SHOWN]:
        if (manifest := by_key.get(outcome.key)) is None:
            echo(escape(f"{short_name(outcome)} would be deleted"))
        elif (difference := of_manifest(service, manifest)) is not None:
            print_difference(difference)
    if (more := len(changed) - OBJECTS_SHOWN) > 0:
        echo(f"and {counted(more, 'object')} more")


def _serial_of(service: Service, zone: Manifest) -> int | None:
    status = service.get(zone.key).get("status") or {}
    serial = status.get("serial")
    return serial if isinstance(serial, int) else None


@app.command()
def export(
    zone: Annotated[str, typer.Argument(metavar="Z", help="By DNS name or object name.")],
    data: common.DataOption = common.DEFAULT_DATA,
    at: common.AtOption = None,
) -> None:
    """Print a zone as a master file. Other servers load it; with --at it is as it was."""
    far = remote.service()
    if far is not None:
        with far:
            lines = far.export(zone, at=at or "")
    elif at is not None:
        with directory.open_reader(data) as node:
            lines = answering.export_as_of(node.log, common.resolve(at, node.log), zone)
    else:
        with common.service(data) as service:
            lines = service.export(zone)
    sys.stdout.writelines(lines)


@app.command()
def refresh(
    zone: Annotated[str, typer.Argument(metavar="Z", help="By DNS name or object name.")],
    data: common.DataOption = common.DEFAULT_DATA,
    output: common.OutputOption = Output.table,
) -> None:
    """Ask the primaries of a secondary zone now. What came of it is in the zone's status."""
    with common.service(data) as service:
        asked = service.refresh_zone(zone)
    if not print_documents(output, [{"zone": asked}], single=True):
        note(f"{escape(asked)}: its primaries are asked")


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="F|Z", help="A file, or a zone that is served.")],
    zone: ZoneOption = None,
    data: common.DataOption = common.DEFAULT_DATA,
    output: common.OutputOption = Output.table,
) -> None:
    """Check a master file or a served zone. Says what is wrong with it; exit code 1 then."""
    if Path(file).exists() or "/" in file:
        named = _zone_name_of(data, zone) if zone else None
        document = _check_file(Path(file), named or zone)
    else:
        document = _check_served(data, file)
    if not print_documents(output, [document], single=True):
        for problem in document["problems"]:
            echo(escape(f"problem: {problem}"))
        for warning in document["warnings"]:
            echo(escape(f"warning: {warning}"))
        verdict = "ok" if not document["problems"] else "not ok"
        serial = f", serial {document['serial']}" if document["serial"] is not None else ""
        size = counted(document["records"], "record")
        echo(escape(f"{document['zone']}: {size}{serial}: {verdict}"))
    if document["problems"]:
        raise typer.Exit(1)


def _check_file(path: Path, zone: str | None) -> dict[str, Any]:
    read = read_zone_file(path, zone=zone)
    return {
        "zone": names.to_text(read.apex),
        "records": len(read.records),
        "serial": read.soa[2],
        "problems": [],
        "warnings": [str(warning) for warning in read.warnings],
    }


def _check_served(data: Path, zone: str) -> dict[str, Any]:
    with common.reader(data) as node:
        state = node.zones.find(zone)
        if state is None:
            raise NotFound(f"{zone!r} is neither a file nor a zone of {data}")
        problems = [] if state.zone else ["another DNSZone serves this name, or it is forwarded"]
        problems += [
            f"{key}: {p.reason}: {p.dns_name} {p.record_type}: {p.message}"
            for key in node.objects.keys(DNS_RECORD_SET.name)
            if node.objects.find(key) and _is_of(node.objects.find(key), state.name)
            for p in node.zones.problems(key)
        ]
        return {
            "zone": names.to_text(names.from_text(state.spec.zone_name)),
            "records": state.zone.record_count + 1 if state.zone else 0,
            "serial": state.zone.serial if state.zone else None,
            "problems": problems,
            "warnings": [*zone_warnings(state.spec), *_unnamed(state.spec)],
        }


def _unnamed(spec: DNSZoneSpec) -> Iterator[str]:
    """Of a zone that nobody outside can find the servers of."""
    if spec.type == "Primary" and not spec.nameservers and spec.catalog is None:
        mname = names.to_text(soa_of(spec).mname)
        yield (
            f"no NS at its apex, as spec.nameservers is empty, and SOA names {mname}"
            + ("" if spec.soa.mname else ", which nobody wrote down")
            + ": secondaries and the zone above find no server by it; see `kudurru edit zone`"
        )


def _is_of(stored: Any, zone: str) -> bool:
    return stored is not None and stored.scope.partition("/")[2] == zone


def _zone_name_of(data: Path, name: str) -> str | None:
    """The DNS name of the DNSZone of that name, None when there is none: asked of a server far
    away, or read from the log, where the newest event of one object is found at once, without
    building the views."""
    if not is_dns_subdomain(name):
        return None
    key = key_of(DNS_ZONE.name, "", name)
    if (far := remote.service()) is not None:
        return _zone_name_far_away(far, key)
    if not data.is_dir():
        return None
    try:
        with directory.open_reader(data) as node:
            for event in node.log.read(key=key, newest_first=True):
                if event.type == OBJECT_DELETED:
                    return None
                if event.type == OBJECT_APPLIED and event.body is not None:
                    return read_zone(decode_body(event.body).spec).zone_name
    except NotFound:
        pass
    return None


def _zone_name_far_away(far: "ApiService", key: Key) -> str | None:
    with far:
        try:
            return str(far.get(key)["spec"]["zoneName"])
        except NotFound:
            return None


def _present(service: Service, read: ZoneFile, named: str | None, namespace: str) -> Present:
    """The DNSZone that has this zone name already, by object name where one is given, and names of
    record sets that must not be met."""
    apex = names.key(read.apex)
    zones = collect(service, ListRequest(kind=DNS_ZONE.name))
    ours = [
        document
        for document in zones
        if named in (None, document["metadata"]["name"])
        and names.key(names.from_text(document["spec"]["zoneName"])) == apex
    ]
    name = ours[0]["metadata"]["name"] if ours else zone_object_name(read.apex)
    zone = manifest_from_wire(ours[0]) if ours else None
    others = [z["metadata"]["name"] for z in zones if z["metadata"]["name"] != name]
    if not any(may_share_names(name, other) for other in others):
        return Present(zone)
    sets: dict[bool, set[str]] = {True: set(), False: set()}
    for document in collect(service, ListRequest(kind=DNS_RECORD_SET.name, namespace=namespace)):
        is_ours = document["spec"]["zoneRef"]["name"] == name
        sets[is_ours].add(document["metadata"]["name"])
    return Present(zone, frozenset(sets[True]), frozenset(sets[False]))


def _surplus(service: Service, namespace: str, manifests: list[Manifest]) -> list[Key]:
    """Record sets of the zone in this namespace that the file does not have. `manifests` are what
    it has, the zone first."""
    zone, kept = manifests[0].meta.name, {manifest.key for manifest in manifests}
    documents = collect(service, ListRequest(kind=DNS_RECORD_SET.name, namespace=namespace))
    keys = [
        key_of(DNS_RECORD_SET.name, namespace, document["metadata"]["name"])
        for document in documents
        if document["spec"]["zoneRef"]["name"] == zone
    ]
    return [key for key in keys if key not in kept]


def _warn(read: ZoneFile) -> None:
    for warning in read.warnings[:WARNINGS_SHOWN]:
        note(escape(f"warning: {warning}"))
    if len(read.warnings) > WARNINGS_SHOWN:
        note(f"and {len(read.warnings) - WARNINGS_SHOWN} more warnings: kudurru zone check")


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
