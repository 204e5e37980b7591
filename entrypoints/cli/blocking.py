"""kudurru blocking: pause what policies deny, for a while or until it is resumed."""

from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.durations import duration_us
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, counted, echo, escape, print_documents
from kudurru.entrypoints.filtering import BlockingRequest, BlockingState

app = command_app(no_args_is_help=True)

GroupOption = Annotated[
    str, typer.Option("--group", metavar="[NS/]NAME", help="A client group; else everybody.")
]


@app.command()
def status(
    data: common.DataOption = common.DEFAULT_DATA, output: common.OutputOption = Output.table
) -> None:
    """Show who is paused and until when, and what is wrong with policies."""
    with common.service(data) as service:
        _print(service.blocking(), output)


@app.command()
def disable(
    data: common.DataOption = common.DEFAULT_DATA,
    for_: Annotated[
        str, typer.Option("--for", metavar="10m", help="How long; else until it is enabled.")
    ] = "",
    group: GroupOption = "",
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Deny nothing to a group, or to anybody. Rewrites and zones stay."""
    for_s = None
    if for_:
        try:
            for_s = duration_us(for_) // 1_000_000
        except ValueError as error:
            raise Invalid("--for", [Cause("", str(error))]) from None
    _set(data, BlockingRequest(blocks=False, group=group, for_s=for_s, reason=reason), output)


@app.command()
def enable(
    data: common.DataOption = common.DEFAULT_DATA,
    group: GroupOption = "",
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """End a pause."""
    _set(data, BlockingRequest(blocks=True, group=group, reason=reason), output)


def _set(data: common.DataOption, request: BlockingRequest, output: Output) -> None:
    with common.service(data, write=True) as service:
        _print(service.set_blocking(request), output)


def _print(state: BlockingState, output: Output) -> None:
    if print_documents(output, [msgspec.to_builtins(state)], single=True):
        return
    for pause in state.pauses:
        who = pause.group or "everybody"
        until = "until it is enabled"
        if pause.until is not None:
            until = f"until {datetime.fromtimestamp(pause.until, UTC):%Y-%m-%dT%H:%M:%SZ}"
        echo(escape(f"paused for {who} {until}"))
    if not state.pauses:
        echo(f"blocking is enabled, by {counted(state.policies, 'policy', 'policies')}")
    for diagnosis in state.diagnoses:
        echo(escape(diagnosis))
