"""kudurru replay: every view, rebuilt from the log."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from kudurru.domain.checkpoint import decode_state
from kudurru.domain.dns import names
from kudurru.domain.errors import ADVICE, Cause, Invalid, LogDamaged
from kudurru.domain.events import CHECKPOINT_STATE, OBJECT_STATUS, Recorded
from kudurru.domain.object_store import decode_status
from kudurru.domain.objects import ref_of
from kudurru.domain.verify import verify
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, echo, note, print_documents, print_table
from kudurru.entrypoints.wiring import Node

app = command_app()

DIFFERENT_SHOWN_MAX = 10


@app.command()
def replay(
    data: common.DataOption = common.DEFAULT_DATA,
    to: Annotated[
        str | None, typer.Option("--to", metavar="T", help="Stop at this moment.")
    ] = None,
    projection: Annotated[
        str | None, typer.Option("--projection", metavar="P", help="Show only this view.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--verify", help="Verify the chain, every stamp, and a running server."),
    ] = False,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="DIR", help="Write zones and objects there.")
    ] = None,
    output: common.OutputOption = Output.table,
) -> None:
    """Rebuild every view from the empty state and show its digest."""
    with directory.open_reader(data) as node:
        upto = common.resolve(to, node.log) if to else None
        names_ = [p.name for p in node.views.follower.projections]
        if projection is not None and projection not in names_:
            raise Invalid(
                "projection", [Cause("", f"{projection!r} is none of {', '.join(names_)}")]
            )
        started = time.perf_counter()
        stamps = replay_checked(node, upto) if check else _replay(node, upto)
        took_s = time.perf_counter() - started
        digests = node.views.digests()
        compared = _compare_live(data, node, digests) if check and to is None else None
        if export is not None:
            _export(node, export)
        position = node.objects.position
    document = {
        "position": position,
        "seconds": round(took_s, 3),
        "digests": {n: d for n, d in digests.items() if projection in (None, n)},
    }
    if check:
        document["stampsChecked"] = stamps
        document["server"] = compared
    if print_documents(output, [document], single=True):
        return
    print_table(["VIEW", "DIGEST"], list(document["digests"].items()))  # type: ignore[attr-defined]  # a dict of texts
    note(f"{position} events replayed in {took_s:.2f} s")
    if check:
        note(f"chain verified; {stamps} stamped versions equal the zones replayed")
        note(compared or "no server holds the directory: nothing live to compare with")
    if export is not None:
        echo(f"exported to {export}")


def _replay(node: Node, upto: Any) -> int:
    directory.replay(node, upto)
    return 0


def replay_checked(node: Node, upto: Any) -> int:
    """Verify the log, then `replay_compared`. Raises LogDamaged at the first fault of either."""
    damages = verify(node.log, trust=directory.trust_of()).damages  # type: ignore[arg-type]  # as open_reader made it
    if damages:
        raise damages[0]
    return replay_compared(node, upto)


def replay_compared(node: Node, upto: Any) -> int:
    """Replay, comparing at every stamp and every checkpoint in the log what it says with the state
    as it is rebuilt: log to state to what was served. The number of stamps. Raises LogDamaged at
    the first difference."""
    stamps = 0
    follower, oldest = node.views.follower, node.log.oldest()
    for event in node.log.read(0, upto):
        is_told = event.seq > oldest  # before that rows are missing, and no state is whole
        if event.type == CHECKPOINT_STATE and is_told:
            _compare_state(node, event)
        is_status = event.type == OBJECT_STATUS and event.key.startswith("DNSZone/")
        state = node.zones.state(ref_of(event.key).name) if is_status and is_told else None
        before = state.zone.serial if state is not None and state.zone is not None else None
        follower.apply(event)
        if state is None or state.zone is None or event.body is None:
            continue
        if not node.zones.is_known(state.name):
            continue
        status = decode_status(event.body)
        if status.get("serial") in (None, before):
            continue  # no stamp: of conditions only, between stamps
        said, found = status.get("contentHash"), state.zone.digest()
        if said != found:
            raise LogDamaged(
                "state",
                event.seq,
                f"zone {names.to_text(state.apex)} was stamped with content {said}, "
                f"replay makes it {found}",
            )
        stamps += 1
    if upto is None:
        node.advance()
    return stamps


def _compare_state(node: Node, event: Recorded) -> None:
    if event.body is None:
        return
    different = node.objects.state_differences(decode_state(event.body))
    if different:
        names_ = ", ".join(different[:DIFFERENT_SHOWN_MAX])
        raise LogDamaged("state", event.seq, f"a checkpoint says otherwise of {names_}; {ADVICE}")


def _compare_live(data: Any, node: Node, digests: dict[str, str]) -> str | None:
    """Compare with the server that holds the directory; None when there is none. Raises LogDamaged
    when the same position means another state there."""
    from kudurru.adapters.data_dir import open_data_dir
    from kudurru.entrypoints import command_socket
    from kudurru.entrypoints.rpc import connect

    remote = connect(command_socket.find(open_data_dir(data)))
    if remote is None:
        return None
    with remote as server:
        info = server.info(digests=True)
        # It may have moved on while we replayed.
        if info.position > node.objects.position:
            directory.replay(node, None)
            digests |= node.views.digests()
            info = server.info(digests=True)
    if info.position != node.objects.position:
        return "the server is being written to: its views were not compared"
    different = [name for name, digest in info.digests.items() if digests[name] != digest]
    if different:
        raise LogDamaged(
            "state",
            info.position,
            f"the server's views differ from the log: {', '.join(different)}; restart it",
        )
    return "the server's views equal the replayed ones"


def _export(node: Node, folder: Path) -> None:
    """One master file per zone served, and all objects as JSON Lines. A log that somebody else
    wrote may hold any name, and none leads out of the folder."""
    import msgspec

    from kudurru.domain import zone_export
    from kudurru.domain.kinds.meta import is_dns_subdomain
    from kudurru.domain.kinds.registry import KINDS
    from kudurru.domain.object_store import to_document

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for state in node.zones.states():
            if state.zone is not None:
                if not is_dns_subdomain(state.name):
                    why = f"{state.name!r} is no object name, and no file is named like it"
                    raise Invalid("export", [Cause("", why)])
                path = folder / f"{state.name}.zone"
                path.write_text("".join(zone_export.lines(state.zone)))
        with (folder / "objects.jsonl").open("wb") as file:
            for kind in KINDS.values():
                if kind.is_internal:
                    continue  # of no use without its secret part
                for stored in node.objects.list(kind.name).objects:
                    file.write(msgspec.json.encode(to_document(stored)) + b"\n")
    except OSError as error:
        raise Invalid(str(folder), [Cause("", f"cannot be written: {error.strerror}")]) from None
