"""kudurru list: what became of subscribed lists, and fetching them now."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from kudurru.domain.kinds.blocklist import SourceStatus
from kudurru.domain.objects import ref_of
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, echo, print_documents, print_table
from kudurru.entrypoints.list_service import ListRow, list_key

app = command_app(no_args_is_help=True)


@app.callback()
def list_() -> None:
    """Show subscribed lists, and fetch them."""


@app.command()
def status(
    data: common.DataOption = common.DEFAULT_DATA, output: common.OutputOption = Output.table
) -> None:
    """Show every list and its sources: how many rules, how fresh, and what went wrong."""
    with common.service(data) as service:
        rows = service.lists()
    if print_documents(output, msgspec.to_builtins(rows)):
        return
    headings = ["NAMESPACE", "NAME", "SOURCE", "PHASE", "RULES", "INVALID", "SUCCESS", "ERROR"]
    print_table(headings, [cells for row in rows for cells in _cells(row)])


def _cells(row: ListRow) -> Iterator[list[str]]:
    if not row.enabled or not row.sources:
        waits = "not fetched yet" if row.enabled else "Disabled"
        yield [row.namespace, row.name, "", waits, "", "", "", ""]
        return
    for source in row.sources:
        yield [row.namespace, row.name, *_of_source(source)]


def _of_source(source: SourceStatus) -> list[str]:
    return [
        source.source, source.phase, str(source.entries), str(source.invalid_entries),
        source.last_success, source.error,
    ]  # fmt: skip


@app.command()
def refresh(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[[NS/]NAME]...", help="Which; else all.")
    ] = None,
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = "default",
    output: common.OutputOption = Output.table,
) -> None:
    """Fetch lists now, whatever their interval says or their last failure. Returns at once:
    `kudurru list status` shows what became of it."""
    keys = [list_key(name, namespace) for name in names or ()]
    with common.service(data) as service:
        asked = service.refresh_lists(keys)
    documents = [{"namespace": ref_of(key).namespace, "name": ref_of(key).name} for key in asked]
    if print_documents(output, documents):
        return
    for key in asked:
        echo(f"{ref_of(key)} is fetched")
    if not asked:
        echo("no list has a source that is fetched")
