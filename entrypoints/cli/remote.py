"""`--server` and `--token`: the options of every command that can work on a server far away.

They are added to each command that takes `--data`, in one place. A command that reads the log
itself says that it cannot, instead of reading another one than was meant.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kudurru.domain.errors import Cause, Invalid
from kudurru.entrypoints.cli.app import command_app

if TYPE_CHECKING:
    from kudurru.entrypoints.api_client import ApiService

SERVER, TOKEN, CA = "KUDURRU_SERVER", "KUDURRU_TOKEN", "KUDURRU_CA"  # names of variables

ABLE = frozenset({
    "apply", "blocking status", "blocking enable", "blocking disable", "cache flush",
    "cache stats", "config set", "config show", "config unset", "delete", "describe", "doctor",
    "edit", "explain", "get", "history", "import", "list status", "list refresh", "query",
    "token create", "token list", "token revoke", "tsig create", "tsig list", "tsig revoke", "undo",
    "zone export", "zone import", "zone refresh", "audit export", "audit mark", "audit redact",
    "diff", "restore",
})  # fmt: skip
"""Commands that ask a `Service`, and nothing else."""

_chosen: dict[str, str] = {}
"""Of the command that runs: "server", "token" and "ca", as far as they are given."""


def with_server(command: Any, path: str) -> Any:
    """The command, and those below it, with the options added."""
    for name, below in getattr(command, "commands", {}).items():
        with_server(below, f"{path} {name}")
    if any(parameter.name == "data" for parameter in command.params):
        command.params += _options(_able if path in ABLE else _unable)
    return command


def _options(function: Any) -> list[Any]:
    """The options that typer makes of a function: of what class, depends on its version."""
    from typer.main import get_command

    app = command_app()
    app.command()(function)
    options: list[Any] = get_command(app).params
    return options


def forget() -> None:
    """Before a command runs."""
    _chosen.clear()


def service() -> "ApiService | None":
    """The server that was chosen, None where a data directory was. Raises: Invalid."""
    url = _chosen.get("server")
    if not url:
        return None
    from kudurru.entrypoints.api_client import ApiService

    return ApiService(url, _token(_chosen.get("token", "")), _chosen.get("ca", ""))


def _choose(context: typer.Context, parameter: typer.CallbackParam, value: str) -> None:
    if not value:
        return
    source = context.get_parameter_source(parameter.name or "")
    is_given = source is not None and source.name == "COMMANDLINE"
    if _source_of_data(context) == "COMMANDLINE":
        if is_given:
            raise typer.BadParameter("give either --data or --server")
        return  # the variable is for commands that say nothing
    _chosen["server"] = value


def _refuse(context: typer.Context, parameter: typer.CallbackParam, value: str) -> None:
    if not value or _source_of_data(context) == "COMMANDLINE":
        return
    fault = (
        "this command reads the log itself: run it where the data directory is, with --data "
        f"(and without {SERVER})"
    )
    raise Invalid(f"--{parameter.name}", [Cause("", fault)])


def _take_token(value: str) -> None:
    if value:
        _chosen["token"] = value


def _take_ca(value: str) -> None:
    if value:
        _chosen["ca"] = value


def _able(
    server: Annotated[
        str,
        typer.Option(
            "--server",
            metavar="URL",
            envvar=SERVER,
            help="A server's API instead of --data, such as http://127.0.0.1:8080.",
            show_default=False,
            expose_value=False,
            callback=_choose,
        ),
    ] = "",
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="T",
            envvar=TOKEN,
            help="Token for --server, or file:PATH of one.",
            show_default=False,
            expose_value=False,
            callback=_take_token,
        ),
    ] = "",
    ca: Annotated[
        str,
        typer.Option(
            "--ca",
            metavar="FILE",
            envvar=CA,
            help="CA of an https:// server's certificate; else the system's.",
            show_default=False,
            expose_value=False,
            callback=_take_ca,
        ),
    ] = "",
) -> None:
    """Declares options; never called."""


def _unable(
    server: Annotated[
        str,
        typer.Option("--server", envvar=SERVER, hidden=True, expose_value=False, callback=_refuse),
    ] = "",
) -> None:
    """Declares an option; never called."""


def _source_of_data(context: Any) -> str:
    """Where --data came from; it is processed first when it is on the command line."""
    source = context.get_parameter_source("data")
    return source.name if source is not None else "DEFAULT"


def _token(text: str) -> str:
    if not text.startswith("file:"):
        return text.strip()
    path = text.removeprefix("file:")
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123  # a path as it was given
            return file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no text"
        raise Invalid("--token", [Cause("", f"{path}: {why}")]) from None
