"""kudurru top: the busiest names and clients."""

import time
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from kudurru.adapters.data_dir import open_data_dir
from kudurru.adapters.query_log.reader import open_reader
from kudurru.domain import targets
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, counted, note, print_documents, print_table

app = command_app()

LIMIT = 10


class Subject(StrEnum):
    domains = "domains"
    clients = "clients"
    blocked = "blocked"


@app.command()
def top(
    subject: Annotated[
        Subject, typer.Argument(metavar="[domains|clients|blocked]", help="What is counted.")
    ] = (Subject.domains),
    data: common.DataOption = common.DEFAULT_DATA,
    since: Annotated[
        str, typer.Option("--since", metavar="T", help="By the hour.", show_default=True)
    ] = "24h ago",
    limit: Annotated[int, typer.Option("--limit", help="How many.", min=1)] = LIMIT,
    output: common.OutputOption = Output.table,
) -> None:
    """Show the names or clients with the most queries, or the names blocked most."""
    since_us = targets.moment_us(since, time.time_ns() // 1000)
    with open_reader(open_data_dir(data).querylog) as reader:
        found = reader.top(subject.value, since_us, limit)
        totals = reader.totals(since_us)
    if output is not Output.table and output is not Output.wide:
        document: dict[str, Any] = {"top": msgspec.to_builtins(found), "totals": totals}
        print_documents(output, [document], single=True)
        return
    print_table(
        ["CLIENT" if subject is Subject.clients else "NAME", "QUERIES", "BLOCKED"],
        [[one.text, one.queries, one.blocked] for one in found],
    )
    shares = ", ".join(f"{count} {source}" for source, count in totals.items())
    asked = counted(sum(totals.values()), "query", "queries")
    note(f"{asked}: {shares}" if totals else "no queries")
