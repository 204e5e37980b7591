"""kudurru get: objects now, or as they were."""

import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from kudurru.domain.errors import Cause, Invalid, NotFound, Redacted
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE, Kind, kind_by_word
from kudurru.domain.object_store import to_document
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.ports import EventLog
from kudurru.domain.restore import Scope
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, age, escape, note, print_documents, print_table
from kudurru.entrypoints.cli.watch import watch as follow
from kudurru.entrypoints.service import ListRequest, collect, collect_pages
from kudurru.projections import as_of

app = command_app()


@app.command()
def get(
    kind_word: common.KindArgument,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of them.", show_default=False)
    ] = None,
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = "default",
    all_namespaces: Annotated[
        bool, typer.Option("-A", "--all-namespaces", help="Of all namespaces.")
    ] = False,
    selector: Annotated[
        str, typer.Option("-l", "--selector", metavar="SELECTOR", help="By labels: a=b,c!=d.")
    ] = "",
    at: common.AtOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on, and show each change as it comes.")
    ] = False,
    output: common.OutputOption = Output.table,
) -> None:
    """Show objects of a kind, or one object; with --at as they were."""
    kind = kind_by_word(kind_word)
    key = common.key_from(kind.name, name or "any", namespace)[1]
    request = ListRequest(
        kind=kind.name,
        namespace=None if all_namespaces or not kind.namespaced else namespace,
        selector=selector,
    )
    table = partial(_table, kind, wide=output is Output.wide, all_=all_namespaces)
    if watch and at is not None:
        raise typer.BadParameter("--watch shows what comes, --at what was: give one of them")
    if watch and remote.service() is not None:
        raise Invalid("--watch", [Cause("", "follows the log of a data directory: give --data")])
    if watch:
        follow(data, request, name, output, table)
    documents = _read(data, request, key if name else None, at)
    if print_documents(output, documents, single=name is not None):
        return
    if documents:
        print_table(*table(documents))
        return
    hint = f" in namespace {namespace}; -A shows all" if request.namespace else ""
    note(f"no {kind.plural}{hint}")


def _read(
    data: Path, request: ListRequest, key: Key | None, at: str | None
) -> list[dict[str, Any]]:
    """The object of a key, or all that a request lists."""
    far = remote.service() if at is not None else None
    if far is not None and at is not None:
        with far:
            if key is not None:
                return [far.get(key, at=at)]
            return collect_pages(partial(far.list_objects, at=at), request)
    if at is not None:
        with directory.open_reader(data) as node:
            return _read_as_of(node.log, common.resolve(at, node.log), request, key)
    with common.service(data) as service:
        return [service.get(key)] if key is not None else collect(service, request)


def _read_as_of(
    log: EventLog, upto: int, request: ListRequest, key: Key | None
) -> list[dict[str, Any]]:
    scope = Scope(
        namespace=request.namespace or "",
        kind=request.kind,
        selector=request.selector,
        keys=(key,) if key is not None else (),
    )

    def erased(of: Key, why: str) -> None:
        if key is not None:
            raise Redacted(f"{ref_of(of)} cannot be shown: {why}")
        note(escape(f"{ref_of(of)} is left out: {why}"))

    found = as_of.objects(log, scope, upto, erased)
    if key is not None and key not in found:
        raise NotFound(f"{ref_of(key)} did not exist at position {upto}")
    return [to_document(stored) for stored in found.values()]


def _table(
    kind: Kind, documents: Sequence[dict[str, Any]], *, wide: bool, all_: bool
) -> tuple[list[str], list[list[Any]]]:
    columns = ["NAMESPACE"] if all_ and kind.namespaced else []
    columns.append("NAME")
    if kind is DNS_ZONE:
        columns += ["ZONE", "TYPE", "SERIAL", "RECORDS"]
    elif kind is DNS_RECORD_SET:
        columns += ["ZONE", "RECORDS"]
    columns += ["MANAGER", "AGE"]
    if wide:
        columns += ["GENERATION", "VERSION", "UID"]
    now_s = time.time()
    return columns, [_row(kind, d, wide, all_, now_s) for d in documents]


def _row(kind: Kind, document: dict[str, Any], wide: bool, all_: bool, now_s: float) -> list[Any]:
    meta, spec = document["metadata"], document["spec"]
    status = document.get("status") or {}
    row = [meta.get("namespace", "")] if all_ and kind.namespaced else []
    row.append(meta["name"])
    if kind is DNS_ZONE:
        row += [
            spec["zoneName"],
            spec.get("type", "Primary"),
            status.get("serial", ""),
            status.get("recordCount", ""),
        ]
    elif kind is DNS_RECORD_SET:
        shown = [
            f"{endpoint['recordType']} {target}"
            for endpoint in spec.get("endpoints", [])
            for target in endpoint["targets"]
        ]
        more = f" +{len(shown) - 2}" if len(shown) > 2 and not wide else ""
        row += [spec["zoneRef"]["name"], ", ".join(shown if wide else shown[:2]) + more]
    created = datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
    row += [meta["annotations"][MANAGED_BY], age(created, now_s)]
    if wide:
        row += [meta["generation"], meta["resourceVersion"], meta["uid"]]
    return row
