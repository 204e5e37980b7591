"""kudurru token: who may use the API, and for what."""

from typing import Annotated

import msgspec
import typer

from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.durations import duration_us
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import (
    Output,
    echo,
    escape,
    note,
    print_documents,
    print_table,
)
from kudurru.entrypoints.tokens import TokenRequest

app = command_app(help="Make, list and revoke tokens of the API.", no_args_is_help=True)

ROLES = ("viewer", "operator", "admin", "follower")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: ci, grafana.")]


@app.command()
def create(
    name: NameArgument,
    role: Annotated[str, typer.Option("--role", metavar="R", help=f"{', '.join(ROLES)}.")],
    data: common.DataOption = common.DEFAULT_DATA,
    namespaces: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", metavar="NS", help="Only objects there; repeats."),
    ] = None,
    zones: Annotated[
        list[str] | None,
        typer.Option("--zone", metavar="Z", help="Only these zones, by object name; repeats."),
    ] = None,
    cidrs: Annotated[
        list[str] | None,
        typer.Option("--cidr", metavar="NET", help="Only from these networks; repeats."),
    ] = None,
    expires_in: Annotated[
        str, typer.Option("--expires-in", metavar="30d", help="Else auth.tokens.maxLifetime.")
    ] = "",
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Make a token. It is shown now and never again."""
    if role not in ROLES:
        raise Invalid("token create", [Cause("--role", f"{role!r} is none of {', '.join(ROLES)}")])
    request = TokenRequest(
        name=name,
        role=role,  # type: ignore[arg-type]  # one of ROLES
        namespaces=namespaces or [],
        zones=zones or [],
        cidrs=cidrs or [],
        lifetime_s=_seconds(expires_in),
        reason=reason,
    )
    with common.service(data, write=True) as service:
        new = service.create_token(request)
    if print_documents(output, [msgspec.to_builtins(new)], single=True):
        return
    echo(new.token)
    note(f"this is the only time that it is shown; it works until {new.expires_at}")


def _seconds(text: str) -> int | None:
    if not text:
        return None
    try:
        return duration_us(text) // 1_000_000
    except ValueError as error:
        raise Invalid("token create", [Cause("--expires-in", str(error))]) from None


@app.command("list")
def list_(
    data: common.DataOption = common.DEFAULT_DATA, output: common.OutputOption = Output.table
) -> None:
    """Show tokens, what they may do, and when they were last used."""
    with common.service(data) as service:
        states = service.token_states()
    if print_documents(output, [msgspec.to_builtins(state) for state in states]):
        return
    rows = [
        [
            s.name, s.role, ",".join([*s.namespaces, *s.zones]) or "all",
            ",".join(s.cidrs) or "anywhere", s.expires_at, s.last_used or "-", s.problem or "ok",
        ]
        for s in states
    ]  # fmt: skip
    print_table(["NAME", "ROLE", "OVER", "FROM", "EXPIRES", "USED", "STATUS"], rows)


@app.command()
def revoke(
    name: NameArgument,
    data: common.DataOption = common.DEFAULT_DATA,
    reason: common.ReasonOption = "",
) -> None:
    """Take a token away, at once. Who it was and what it did stays in the log."""
    with common.service(data, write=True) as service:
        result = service.revoke_token(name, reason)
    echo(escape(f"token/{name} revoked"))
    note(f"recorded at position {result.seq}")
