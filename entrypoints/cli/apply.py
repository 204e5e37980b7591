"""kudurru apply: objects from files, all or nothing."""

from typing import Any

from kudurru.domain.kinds.registry import DNS_RECORD_SET
from kudurru.domain.object_store import DEFAULT_MANAGER, Outcome
from kudurru.domain.objects import ref_of
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, echo, escape, note, print_documents
from kudurru.entrypoints.service import ChangeRequest, Service
from kudurru.entrypoints.wiring import Result

app = command_app()

CHECKED_MAX = 1_000
WARNINGS_SHOWN = 20


@app.command()
def apply(
    files: common.FilesOption,
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = "default",
    manager: common.ManagerOption = DEFAULT_MANAGER,
    force: common.ForceOption = False,
    allow_mass_change: common.MassChangeOption = False,
    dry_run: common.DryRunOption = False,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Create or change objects from files, folders or standard input, all or nothing."""
    loaded = common.load_manifests(files, namespace)
    request = ChangeRequest(
        apply=loaded.manifests,
        manager=manager,
        force=force,
        dry_run=dry_run,
        reason=reason,
        allow_mass_change=allow_mass_change,
    )
    with common.service(data, write=True) as service:
        with loaded.located():
            result = service.change(request)
        print_result(result, output, dry_run=dry_run)
        if not dry_run:
            warn_of_problems(service, result)


def warn_of_problems(service: Service, result: Result) -> None:
    """Tell of records that are stored and not served, such as a CNAME beside what another record
    set has at that name."""
    changed = [o for o in result.outcomes if ref_of(o.key).kind == DNS_RECORD_SET.name]
    warnings = [
        " ".join(f"warning: {short_name(outcome)} {p['dnsName']} {p['recordType']}".split())
        + f" is not served: {p['reason']}: {p['message']}"
        for outcome in changed[:CHECKED_MAX]
        for p in service.problems(outcome.key)
    ]
    for warning in warnings[:WARNINGS_SHOWN]:
        note(escape(warning))
    if len(warnings) > WARNINGS_SHOWN:
        note(f"and {len(warnings) - WARNINGS_SHOWN} more warnings: kudurru zone check")


def print_result(result: Result, output: Output, *, dry_run: bool = False) -> None:
    """One line per object, or a document for programs."""
    documents = [_document(outcome) for outcome in result.outcomes]
    if not print_documents(output, documents):
        suffix = " (dry run)" if dry_run else ""
        for outcome in result.outcomes:
            echo(f"{escape(short_name(outcome))} {outcome.verb}{suffix}")
        if result.seq:
            note(f"recorded at position {result.seq}")
    for outcome in result.outcomes:
        for warning in outcome.warnings:
            note(escape(f"warning: {warning}"))


def short_name(outcome: Outcome) -> str:
    ref = ref_of(outcome.key)
    where = f"{ref.namespace}/" if ref.namespace else ""
    return f"{ref.kind.lower()}/{where}{ref.name}"


def _document(outcome: Outcome) -> dict[str, Any]:
    ref = ref_of(outcome.key)
    document: dict[str, Any] = {
        "kind": ref.kind,
        "namespace": ref.namespace,
        "name": ref.name,
        "result": outcome.verb,
        "resourceVersion": outcome.resource_version,
    }
    return document | ({"warnings": list(outcome.warnings)} if outcome.warnings else {})
