"""kudurru query: what a name answers, now or back then."""

from typing import Annotated, Any

import typer

from kudurru.entrypoints import answering, directory
from kudurru.entrypoints.asking import answer_document, query_packet
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, echo, escape, note, print_documents
from kudurru.entrypoints.service import LOOPBACK

app = command_app()

NOT_AUTHORITATIVE = 20  # of RFC 8914
NOT_HERE = (
    "no zone here has it: what upstreams would answer is not asked for, see `kudurru explain`"
)
NOT_HERE_THEN = (
    "no zone here had it, and only zones are asked of the past: `kudurru explain --at` says what "
    "policies did with it; what upstreams answered is not in the log"
)


@app.command()
def query(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A DNS name.")],
    rtype: Annotated[
        str, typer.Argument(metavar="TYPE", help="Its record type.", show_default=True)
    ] = "A",
    data: common.DataOption = common.DEFAULT_DATA,
    client: Annotated[
        str, typer.Option("--client", metavar="IP", help="As this client.", show_default=True)
    ] = LOOPBACK,
    at: common.AtOption = None,
    dnssec: Annotated[bool, typer.Option("--dnssec", help="Set the DO bit.")] = False,
    output: common.OutputOption = Output.table,
) -> None:
    """Ask what a name answers, now or as of a moment. Prints as dig does. Upstreams are not asked,
    and as of a moment zones alone answer, not policies: `kudurru explain` has those."""
    packet = query_packet(name, rtype, dnssec=dnssec)
    far = remote.service() if at is not None else None
    if far is not None:
        with far:
            wire = far.query(packet, client, at=at or "")
    elif at is not None:
        with directory.open_reader(data) as node:
            wire = answering.answer_as_of(node.log, common.resolve(at, node.log), packet)
    else:
        with common.service(data) as service:
            wire = service.query(packet, client)
    message = answer_document(wire)
    if any(ede["code"] == NOT_AUTHORITATIVE for ede in message["ede"]):
        note(NOT_HERE if at is None else NOT_HERE_THEN)
    if print_documents(output, [message], single=True):
        return
    _print(message)


def _print(message: dict[str, Any]) -> None:
    question = message["question"]
    echo(f";; status: {message['rcode']}, flags: {' '.join(message['flags'])}")
    for ede in message["ede"]:
        echo(f";; EDE: {ede['code']} {escape(ede['text'])}")
    echo(f";; QUESTION:\n;{escape(question['name'])}\tIN\t{question['type']}")
    for section in ("answer", "authority", "additional"):
        if message[section]:
            echo(f";; {section.upper()}:")
        for record in message[section]:
            text = f"{record['name']}\t{record['ttl']}\tIN\t{record['type']}\t{record['data']}"
            echo("\t".join(escape(part) for part in text.split("\t")))
