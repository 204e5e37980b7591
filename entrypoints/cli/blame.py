"""kudurru blame: who last changed each record of a zone, when and why."""

from typing import Annotated, Any

import typer

from kudurru.domain import blame as blaming
from kudurru.domain.dns import names, record_types
from kudurru.domain.kinds.registry import DNS_ZONE
from kudurru.domain.kinds.stored import read_zone
from kudurru.domain.objects import key_of
from kudurru.domain.ports import EventLog
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, note, print_documents, print_table
from kudurru.entrypoints.history import who_of
from kudurru.entrypoints.restoring import short_name
from kudurru.projections import as_of

app = command_app()


@app.command()
def blame(
    zone: Annotated[str, typer.Argument(metavar="ZONE", help="By DNS name or object name.")],
    data: common.DataOption = common.DEFAULT_DATA,
    at: common.AtOption = None,
    output: common.OutputOption = Output.table,
) -> None:
    """Show for each record of a zone who last changed it, when and why."""
    with directory.open_reader(data) as node:
        upto = common.resolve(at, node.log) if at is not None else node.log.head().seq
        name = as_of.zone_named(node.log, zone, upto)
        ttl = _default_ttl(node.log, name, upto)
        blamed = blaming.blame(as_of.events_of(node.log, name, upto=upto))
        oldest = node.log.oldest()
        documents = [_document(one, ttl, oldest) for one in blamed]
    if print_documents(output, documents):
        return
    print_table(
        ["NAME", "TTL", "TYPE", "DATA", "SEQ", "TIME", "ACTOR", "OBJECT", "REASON"],
        [
            [d["name"], d["ttl"], d["type"], d["data"],
             f"<={d['seq']}" if d["orBefore"] else d["seq"],
             d["time"], d["actor"], d["object"], d["reason"] or d["cause"]]
            for d in documents
        ],
    )  # fmt: skip
    if any(d["orBefore"] for d in documents):
        note(f"events up to {oldest} were pruned: <= is the newest change that may have brought it")


def _default_ttl(log: EventLog, zone: str, upto: int) -> int:
    known = as_of.find(log, key_of(DNS_ZONE.name, "", zone), upto, with_status=False)
    assert known is not None, f"{zone} was found and is not there"
    if known.erased:
        return 0
    return read_zone(known.stored(log.epoch).body.spec).default_ttl


def _document(blamed: blaming.Blamed, default_ttl: int, oldest: int) -> dict[str, Any]:
    event = blamed.event
    who = who_of(event)
    return {
        "name": names.to_text(blamed.owner),
        "ttl": default_ttl if blamed.ttl is None else blamed.ttl,
        "type": record_types.type_to_text(blamed.rtype),
        "data": blamed.data,
        "object": short_name(blamed.key),
        "seq": event.seq,
        # Where what was before it went, the object may have held the record already.
        "orBefore": event.seq <= oldest and event.ver > 1,
        "time": common.format_time(event.ts),
        "actor": who.actor,
        "source": who.source,
        "manager": event.manager,
        "reason": who.reason,
        "cause": who.cause,
    }
