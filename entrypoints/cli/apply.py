"""kudurru apply: objects from files, all or nothing."""

import typer

from kudurru.domain.object_store import DEFAULT_MANAGER, Outcome
from kudurru.domain.objects import ref_of
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.output import Output, echo, escape, note, print_documents
from kudurru.entrypoints.service import ChangeRequest
from kudurru.entrypoints.wiring import Result

app = typer.Typer()


@app.command()
def apply(
    files: common.FilesOption,
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = "default",
    manager: common.ManagerOption = DEFAULT_MANAGER,
    force: common.ForceOption = False,
    dry_run: common.DryRunOption = False,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Create or change objects from files, folders or standard input, all or nothing."""
    manifests = common.load_manifests(files, namespace)
    request = ChangeRequest(
        apply=manifests, manager=manager, force=force, dry_run=dry_run, reason=reason
    )
    with common.service(data, write=True) as service:
        result = service.change(request)
    print_result(result, output, dry_run=dry_run)


def print_result(result: Result, output: Output, *, dry_run: bool = False) -> None:
    """One line per object, or a document for programs."""
    documents = [_document(outcome) for outcome in result.outcomes]
    if print_documents(output, documents):
        return
    for outcome in result.outcomes:
        echo(f"{escape(short_name(outcome))} {outcome.verb}" + (" (dry run)" if dry_run else ""))
    if result.seq:
        note(f"recorded at position {result.seq}")


def short_name(outcome: Outcome) -> str:
    ref = ref_of(outcome.key)
    where = f"{ref.namespace}/" if ref.namespace else ""
    return f"{ref.kind.lower()}/{where}{ref.name}"


def _document(outcome: Outcome) -> dict[str, str]:
    ref = ref_of(outcome.key)
    return {
        "kind": ref.kind,
        "namespace": ref.namespace,
        "name": ref.name,
        "result": outcome.verb,
        "resourceVersion": outcome.resource_version,
    }
