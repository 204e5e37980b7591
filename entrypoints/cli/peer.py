"""kudurru peer: which zones another node serves."""

import os
from typing import Annotated

import msgspec
import typer

from kudurru.adapters.peer_client import PeerFiles, ask_peer
from kudurru.domain.errors import Cause, Invalid, Unreachable
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, note, print_documents, print_table
from kudurru.entrypoints.peers import ZONES, ServedZones
from kudurru.entrypoints.settings import load_settings

app = command_app()


@app.command()
def peer(
    address: Annotated[str, typer.Argument(metavar="ADDR:PORT", help="Its listeners.internal.")],
    config: common.ConfigOption = None,
    output: common.OutputOption = Output.table,
) -> None:
    """Show which zones another node serves, with their serials: where they differ from those here,
    it lags behind. Asked with the certificate of tls.internal, as nodes have one."""
    found = load_settings(config, os.environ).settings.tls.internal
    files = PeerFiles(found.ca, found.cert, found.key)
    if not all(files):
        fault = "give tls.internal.ca, .cert and .key in --config or the environment"
        raise Invalid("peer", [Cause("", fault)])
    try:
        given = msgspec.json.decode(ask_peer(address, ZONES, files), type=ServedZones)
    except msgspec.MsgspecError:
        raise Unreachable(f"{address} answers with something else than zones") from None
    if print_documents(output, [msgspec.to_builtins(given)], single=True):
        return
    if given.zones is None:
        note(f"{given.node or address} replays its log and does not know yet")
        return
    rows = [[one.zone, one.type, str(one.serial), str(one.records)] for one in given.zones]
    print_table(["ZONE", "TYPE", "SERIAL", "RECORDS"], rows)
