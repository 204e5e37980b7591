"""kudurru replay: every view, rebuilt from the log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from kudurru import __version__
from kudurru.domain.checkpoint import decode_state
from kudurru.domain.dns import names
from kudurru.domain.errors import ADVICE, Cause, Invalid, LogDamaged
from kudurru.domain.events import CHECKPOINT_STATE, Position, Recorded
from kudurru.domain.ports import LogRow, VerifiableLog
from kudurru.domain.verify import verify
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import (
    Output,
    counted,
    echo,
    escape,
    note,
    print_documents,
    print_table,
)
from kudurru.entrypoints.cli.progress import EVERY, progress
from kudurru.entrypoints.state_export import FIRST, MANIFESTS, REFUSED, Exported, export_state
from kudurru.entrypoints.verify_child import CHILD_MIN, verified_beside
from kudurru.entrypoints.wiring import Node
from kudurru.projections.follow import Follower
from kudurru.projections.zone_state import ZoneState

app = command_app()

DIFFERENT_SHOWN_MAX = 10


@app.command()
def replay(
    data: common.DataOption = common.DEFAULT_DATA,
    to: Annotated[
        str | None, typer.Option("--to", metavar="T", help="Stop at this moment.")
    ] = None,
    projection: Annotated[
        str | None,
        typer.Option("--projection", metavar="P", help="Rebuild and show only this view."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--verify", help="Verify the chain, every stamp, and a running server."),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="DIR",
            help="Write the state there: manifests for `kudurru apply`, and master files.",
            readable=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    output: common.OutputOption = Output.table,
) -> None:
    """Rebuild every view from the empty state and show its digest."""
    with directory.open_reader(data) as node:
        upto = common.resolve(to, node.log) if to else None
        # Stamps and files are of zones and objects: who wants those wants all views.
        only = projection if not check and export is None else None
        follower = _follower(node, projection, only)
        started = time.perf_counter()
        if check:
            with _verified(data, node):
                replayed = replay_compared(node, upto)
        else:
            replayed = _replay(node, follower, upto)
        took_s = time.perf_counter() - started
        digests = {p.name: p.digest() for p in follower.projections}
        compared = _compare_live(data, node, digests) if check and to is None else None
        exported = _export(node, export) if export is not None else None
        position = follower.position
    rate = round(replayed.events / max(took_s, 1e-6))
    digests = {name: text for name, text in digests.items() if projection in (None, name)}
    document: dict[str, Any] = {
        "position": position,
        "events": replayed.events,
        "seconds": round(took_s, 3),
        "eventsPerSecond": rate,
        "digests": digests,
    }
    if check:
        document["stampsChecked"] = replayed.stamps
        document["server"] = compared
    if exported is not None:
        document["exported"] = _described(exported)
    if print_documents(Output.json if as_json else output, [document], single=True):
        return
    print_table(["VIEW", "DIGEST"], list(digests.items()))
    pruned = f", up to position {position}" if position != replayed.events else ""
    note(f"{counted(replayed.events, 'event')} replayed{pruned} in {took_s:.2f} s, {rate} a second")
    if check:
        note(f"chain verified; {replayed.stamps} stamped versions equal the zones replayed")
        note(compared or "no server holds the directory: nothing live to compare with")
    if exported is not None and export is not None:
        _tell(exported, export)


def _follower(node: Node, projection: str | None, only: str | None) -> Follower:
    """What leads to one view, or to all. Raises Invalid for a view that there is not."""
    names_ = [p.name for p in node.views.follower.projections]
    if projection is not None and projection not in names_:
        raise Invalid("projection", [Cause("", f"{projection!r} is none of {', '.join(names_)}")])
    return node.views.follower_to(only) if only is not None else node.views.follower


class Replayed(NamedTuple):
    """Of a pruned log fewer events than its positions."""

    events: int
    stamps: int  # that were compared


def _replay(node: Node, follower: Follower, upto: Position | None) -> Replayed:
    with _moving("replaying", node, upto) as seen:
        return Replayed(directory.replay(node, upto, follower=follower, seen=seen), 0)


@contextmanager
def _moving(what: str, node: Node, upto: Position | None) -> Iterator[Callable[[int], None] | None]:
    """What is told of positions, and moves a bar on a terminal; None where there is none."""
    total = int(upto if upto is not None else node.log.head().seq)
    with progress(what) as move:
        yield partial(_move, move, total) if move is not None else None


def _move(move: Callable[[int, int], None], total: int, position: int) -> None:
    if position % EVERY == 0:
        move(position, total)


@contextmanager
def _verified(data: Path, node: Node) -> Iterator[None]:
    """Verify the log before the block, or in another process meanwhile when that is worth it.
    Raises LogDamaged at the first damage."""
    if node.log.head().seq < CHILD_MIN:
        _verify_rows(node.log)  # type: ignore[arg-type]  # as open_reader made it
        yield
    else:
        with verified_beside(data):
            yield


def _verify_rows(log: VerifiableLog) -> None:
    total = log.head().seq
    with progress("verifying") as move:

        def seen(row: LogRow) -> None:
            if move is not None:
                _move(move, total, row.seq)

        damages = verify(log, trust=directory.trust_of(), seen=seen if move else None).damages
    if damages:
        raise damages[0]


def replay_compared(node: Node, upto: Position | None) -> Replayed:
    """Replay, comparing at every stamp and every checkpoint in the log what it says with the state
    as it is rebuilt: log to state to what was served. Raises LogDamaged at the first difference."""
    events, stamps = 0, _Stamps(node)
    follower = node.views.follower
    with (
        _moving("replaying", node, upto) as seen,
        directory.nothing_collected(),
        node.objects.rebuilding(),
        node.zones.stamps_told(stamps.compare),
    ):
        for event in node.log.read(0, upto):
            if event.type == CHECKPOINT_STATE and event.seq > stamps.oldest:
                _compare_state(node, event)
            follower.apply(event)
            if follower.stopped_at is not None:
                break
            events += 1
            if seen is not None:
                seen(event.seq)
    if upto is None:
        node.advance()
    return Replayed(events, stamps.compared)


class _Stamps:
    """Holds each stamped version against the zone as it was rebuilt."""

    def __init__(self, node: Node) -> None:
        self._zones = node.zones
        self.oldest = node.log.oldest()  # before that rows are missing, and no state is whole
        self.compared = 0

    def compare(self, state: ZoneState, seq: Position, said: object) -> None:
        """Raises: LogDamaged."""
        assert state.zone is not None, "it was stamped"
        if seq <= self.oldest or not self._zones.is_known(state.name):
            return
        found = state.zone.digest()
        if said != found:
            raise LogDamaged(
                "state",
                seq,
                f"zone {names.to_text(state.apex)} was stamped with content {said}, "
                f"replay makes it {found}",
            )
        self.compared += 1


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
        if info.version != __version__:
            return f"the server is kudurru {info.version}: its views were not compared"
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


def _export(node: Node, folder: Path) -> Exported:
    moved: Callable[[int], None] = lambda _: None  # noqa: E731  # a bar where there is none
    total = len(node.objects)
    with progress("exporting") as move:
        if move is not None:
            moved = partial(_move, move, total)
        return export_state(node, folder, moved)


def _described(exported: Exported) -> dict[str, Any]:
    return {
        "zones": exported.zones,
        "manifests": exported.manifests,
        "first": exported.first,
        "refused": exported.refused,
        "redacted": exported.redacted,
        "stateDigest": exported.digest,
    }


def _tell(exported: Exported, folder: Path) -> None:
    manifests = counted(exported.manifests, "manifest")
    echo(f"exported to {folder}: {manifests}, {counted(exported.zones, 'zone')}")
    echo(f"state {exported.digest}")
    if exported.first:
        note(
            f"{exported.first} record sets are not inside their zone, which `apply` refuses once "
            f"that is there: apply {folder / FIRST} before {folder / MANIFESTS}"
        )
    if exported.refused:
        note(f"{exported.refused} objects are accepted no more: see {folder / REFUSED}")
    for name in exported.redacted:
        note(escape(f"left out, as its content was redacted: {name}"))
