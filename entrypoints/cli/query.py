"""kudurru query: what a name answers, now or back then."""

from typing import Annotated, Any

import typer

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.errors import Cause, Invalid
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, echo, escape, print_documents
from kudurru.entrypoints.service import LOOPBACK

app = command_app()


@app.command()
def query(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    rtype: Annotated[str, typer.Argument(metavar="TYPE")] = "A",
    data: common.DataOption = common.DEFAULT_DATA,
    client: Annotated[
        str, typer.Option("--client", metavar="IP", help="As this client.", show_default=True)
    ] = LOOPBACK,
    at: common.AtOption = None,
    dnssec: Annotated[bool, typer.Option("--dnssec", help="Set the DO bit.")] = False,
    output: common.OutputOption = Output.table,
) -> None:
    """Ask what a name answers, now or as of a moment. Prints as dig does."""
    packet = _packet(name, rtype, dnssec)
    if at is not None:
        with directory.open_reader(data) as node:
            wire = directory.answer_as_of(node.log, common.resolve(at, node.log), packet)
    else:
        with common.service(data) as service:
            wire = service.query(packet, client)
    message = _document(wire)
    if print_documents(output, [message], single=True):
        return
    _print(message)


def _packet(name: str, rtype: str, dnssec: bool) -> bytes:
    causes = []
    owner, number = names.ROOT, 0
    try:
        owner = names.from_text(name)
    except names.BadName as error:
        causes.append(Cause("NAME", str(error)))
    try:
        number = record_types.type_from_text(rtype)
    except record_types.BadRecord as error:
        causes.append(Cause("TYPE", str(error)))
    if causes:
        raise Invalid("query", causes)
    # No ID: nothing crosses a network. EDNS with the largest buffer: no answer is cut.
    opt = b"\x00\x00\x29\xff\xff\x00\x00" + (b"\x80\x00" if dnssec else b"\x00\x00") + b"\x00\x00"
    head = b"\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x01"
    return head + owner + number.to_bytes(2, "big") + b"\x00\x01" + opt


def _document(wire: bytes) -> dict[str, Any]:
    """The answer as builtins with stable keys."""
    import dns.flags
    import dns.message
    import dns.rcode

    message = dns.message.from_wire(wire)
    question = message.question[0]
    return {
        "question": {
            "name": names.to_text(question.name.to_wire() or b"\x00"),
            "type": record_types.type_to_text(question.rdtype),
        },
        "rcode": dns.rcode.to_text(message.rcode()),
        "flags": dns.flags.to_text(message.flags).lower().split(),
        "answer": _records(message.answer),
        "authority": _records(message.authority),
        "additional": _records(message.additional),
        "ede": [
            {"code": int(option.code), "text": option.text or ""}
            for option in message.options
            if hasattr(option, "text") and hasattr(option, "code")
        ],
    }


def _records(section: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": names.to_text(rrset.name.to_wire()),
            "ttl": rrset.ttl,
            "type": record_types.type_to_text(rrset.rdtype),
            "data": records.rdata_to_text(rrset.rdtype, rdata.to_wire()),
        }
        for rrset in section
        for rdata in rrset
    ]


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
