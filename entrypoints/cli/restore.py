"""kudurru restore: bring objects back to a moment, plan first."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kudurru.domain import targets
from kudurru.domain.kinds.registry import kind_by_word
from kudurru.domain.ports import EventLog
from kudurru.domain.restore import Scope
from kudurru.entrypoints import directory, restoring
from kudurru.entrypoints.cli import common, remote
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, note
from kudurru.entrypoints.cli.plans import print_carried, print_plan
from kudurru.entrypoints.restoring import RestoreRequest
from kudurru.projections import as_of

if TYPE_CHECKING:
    from kudurru.entrypoints.api_client import ApiService

app = command_app()


@app.command()
def restore(
    references: Annotated[
        list[str] | None, typer.Argument(metavar="KIND/NAME...", help="These objects.")
    ] = None,
    at: common.AtOption = None,
    before_event: Annotated[
        int | None,
        typer.Option("--before-event", metavar="SEQ", help="To before the change of a position."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="ID", help="Go on with one that was cut off.")
    ] = None,
    zone: Annotated[
        str | None, typer.Option("--zone", metavar="Z", help="A zone with its record sets.")
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("-n", "--namespace", metavar="NS", help="A namespace, or that of the names."),
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="A kind.")] = None,
    selector: Annotated[
        str, typer.Option("-l", "--selector", metavar="SELECTOR", help="By labels: a=b,c!=d.")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="The whole store.")] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Carry out the plan of --plan-digest.")
    ] = False,
    plan_digest: Annotated[
        str, typer.Option("--plan-digest", metavar="H", help="The plan that was agreed to.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Plan and carry out in one step.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also objects that another manager owns since; any amount."),
    ] = False,
    allow_mass_change: common.MassChangeOption = False,
    reason: common.ReasonOption = "",
    data: common.DataOption = common.DEFAULT_DATA,
    output: common.OutputOption = Output.table,
) -> None:
    """Bring a zone, a namespace, objects or everything back to a moment. Shows the plan; --apply
    with its digest carries it out, and --yes does both."""
    if apply and not plan_digest:
        raise typer.BadParameter("--apply needs the --plan-digest that the plan shows; or --yes")
    if [at is not None, before_event is not None, resume is not None].count(True) != 1:
        raise typer.BadParameter("give one of --at T, --before-event SEQ and --resume ID")
    request = RestoreRequest(
        resume=resume or "",
        plan_digest=plan_digest,
        force=force,
        allow_mass_change=allow_mass_change,
        reason=reason,
    )
    if resume is None:
        keys = [
            common.split_reference(text, namespace or "default")[1] for text in references or ()
        ]
        scope = Scope(
            namespace="" if keys else namespace or "",
            kind=kind_by_word(kind).name if kind else "",
            selector=selector,
            keys=tuple(dict.fromkeys(keys)),
            everything=everything,
        )
        wanted = _Wanted(scope, zone, at, before_event)
        far = remote.service()
        if far is not None:
            with far:
                _far_away(far, request, wanted, output, goes_on=apply or yes)
            return
        request = _planned(data, request, wanted, output, goes_on=apply or yes)
    if apply or yes or resume is not None:
        with common.service(data, write=True) as service:
            print_carried(service.restore(request), output)


class _Wanted(NamedTuple):
    """What is brought back, and to when, as it was written."""

    scope: Scope
    zone: str | None
    at: str | None
    before_event: int | None


def _planned(
    data: Path, request: RestoreRequest, wanted: _Wanted, output: Output, *, goes_on: bool
) -> RestoreRequest:
    """The request with its target and scope found in the log; the plan is shown when that is all
    that was asked for."""
    import msgspec

    with directory.open_reader(data) as node:
        target = _target(node.log, wanted.at, wanted.before_event)
        scope = wanted.scope
        if wanted.zone is not None:
            name = as_of.zone_named(node.log, wanted.zone, target, node.log.head().seq)
            scope = msgspec.structs.replace(scope, zone=name)
        scope.check()
        request = msgspec.structs.replace(request, target=target, scope=scope)
        if not goes_on:
            plan = restoring.plan_restore(node.log, request)
            now_s = node.clock.now_us() // 1_000_000
            _show(restoring.describe(node.log, plan, now_s), output)
    return request


def _far_away(
    far: "ApiService", request: RestoreRequest, wanted: _Wanted, output: Output, *, goes_on: bool
) -> None:
    """As a server finds target and scope in its log."""
    import msgspec

    named = msgspec.structs.replace(wanted.scope, zone=wanted.zone or "")
    carried = far.restore_to(
        request, named, at=wanted.at or "", before_event=wanted.before_event, apply=goes_on
    )
    if goes_on:
        print_carried(carried, output)
    else:
        _show(carried.plan, output)


def _show(plan: dict[str, Any], output: Output) -> None:
    """A plan that waits for somebody to agree."""
    print_plan(plan, output)
    if plan["steps"]:
        # A time ago is another position by then, and that would be another plan.
        note(
            f"to carry it out, say the same objects with --at {plan['target']} "
            f"--apply --plan-digest {plan['digest']}"
        )


def _target(log: EventLog, at: str | None, before_event: int | None) -> int:
    if before_event is not None:
        target = targets.before_change(before_event, log)
        note(f"at position {target}")
        return target
    named = common.resolve(at or "", log)
    target = targets.whole_change(named, log)
    if target != named:
        note(f"position {named} is inside a change that ends at position {target}: to there")
    return target
