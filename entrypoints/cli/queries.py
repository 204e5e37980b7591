"""kudurru queries: the query log."""

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from kudurru.adapters.data_dir import open_data_dir
from kudurru.adapters.query_log.reader import Logged, QueryLogReader, Wanted, open_reader
from kudurru.domain import targets
from kudurru.domain.dns import record_types
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.filtering.policies import full_name
from kudurru.domain.kinds.meta import DEFAULT_NAMESPACE
from kudurru.entrypoints.asking import logged_document
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import (
    Output,
    counted,
    echo,
    escape,
    note,
    print_documents,
    print_jsonl,
    print_table,
)

app = command_app()

LIMIT = 100
PAGE = 1_000
FOLLOW_INTERVAL_S = 0.5


@app.command()
def queries(
    data: common.DataOption = common.DEFAULT_DATA,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Of a name and those below it.")
    ] = "",
    client: Annotated[
        str, typer.Option("--client", metavar="IP", help="As it is kept: an address, a network.")
    ] = "",
    rtype: Annotated[str, typer.Option("--type", metavar="TYPE", help="Of a type.")] = "",
    source: Annotated[
        str, typer.Option("--source", metavar="S", help="blocked, cache, forward, …")
    ] = "",
    blocked: Annotated[bool, typer.Option("--blocked", help="Short for --source blocked.")] = False,
    policy: Annotated[
        str, typer.Option("--policy", metavar="[NS/]NAME", help="Decided by this policy.")
    ] = "",
    list_: Annotated[
        str, typer.Option("--list", metavar="[NS/]NAME", help="Decided by this list.")
    ] = "",
    since: Annotated[str | None, typer.Option("--since", metavar="T", help="Not before.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="T", help="Before.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", help="How many at most; 0: all of them.", min=0)
    ] = LIMIT,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as queries come.")] = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete all queries, or those before --until.")
    ] = False,
    output: common.OutputOption = Output.table,
) -> None:
    """Show queries, newest first; with --follow as they come. -o jsonl --limit 0 exports them."""
    now_us = time.time_ns() // 1000
    before = targets.moment_us(until, now_us) if until else None
    if purge:
        _purge(data, before, output)
        return
    wanted = Wanted(
        name=name.lower().rstrip("."),
        client=client,
        rtype=_type(rtype),
        source="blocked" if blocked else source,
        policy=full_name(policy, DEFAULT_NAMESPACE) if policy else "",
        list=full_name(list_, DEFAULT_NAMESPACE) if list_ else "",
        since_us=targets.moment_us(since, now_us) if since else None,
        until_us=before,
    )
    with open_reader(open_data_dir(data).querylog) as reader:
        if follow:
            _follow(reader, wanted, output)
        elif output is Output.jsonl:
            print_jsonl(map(logged_document, _all(reader, wanted, limit)))
        else:
            _show([logged_document(one) for one in _all(reader, wanted, limit)], output)


def _all(reader: QueryLogReader, wanted: Wanted, limit: int) -> Iterator[Logged]:
    return reader.queries(wanted, limit or -1)  # SQLite: no limit


def _type(text: str) -> int | None:
    if not text:
        return None
    try:
        return record_types.type_from_text(text)
    except record_types.BadRecord as error:
        raise Invalid("--type", [Cause("", str(error))]) from None


def _purge(data: common.DataOption, before: int | None, output: Output) -> None:
    with common.service(data, write=True) as service:
        deleted = service.purge_queries(before)
    if not print_documents(output, [{"deleted": deleted}], single=True):
        echo(f"deleted {counted(deleted, 'query', 'queries')}")


def _follow(reader: QueryLogReader, wanted: Wanted, output: Output) -> None:
    import sys

    import msgspec

    after = reader.newest()
    while True:
        for one in reader.queries(
            msgspec.structs.replace(wanted, after=after), PAGE, newest_first=False
        ):
            after = one.id
            if output in (Output.table, Output.wide):
                echo(escape(_line(logged_document(one))))
            else:
                print_jsonl([logged_document(one)])
        sys.stdout.flush()
        time.sleep(FOLLOW_INTERVAL_S)


def _why(found: dict[str, Any]) -> str:
    """Who decided, in a word: a list, a policy, an upstream."""
    if found["source"] in ("blocked", "rewritten"):
        return str(found["list"] or found["policy"])
    return str(found["upstream"])


def _line(found: dict[str, Any]) -> str:
    count = f"  x{found['count']}" if found["count"] > 1 else ""
    text = (
        f"{found['time']}  {found['client']}  {found['name']} {found['type']}  {found['source']}"
        f" {found['rcode']}  {_why(found)}{count}"
    )
    return text.rstrip()


def _show(found: list[dict[str, Any]], output: Output) -> None:
    if print_documents(output, found):
        return
    if not found:
        note("nothing in the query log matches")
        return
    print_table(
        ["TIME", "CLIENT", "NAME", "TYPE", "SOURCE", "RCODE", "BY", "MS", "COUNT"],
        [
            [d["time"], d["client"], d["name"], d["type"], d["source"], d["rcode"], _why(d),
             f"{d['durationMs']:.1f}", d["count"]]
            for d in found
        ],
    )  # fmt: skip
