"""The command `kudurru`. Commands are imported when they are used, so that `kudurru version` does
not pay for a DNS server."""

import gc
import importlib
import io
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from kudurru import __version__
from kudurru.domain.errors import KudurruError

EXIT_FAILED = 1
EXIT_USAGE = 2
COMPLETION = "_KUDURRU_COMPLETE"
"""The variable by which a shell asks what completes a line."""

# name -> (module, one line of help)
COMMANDS = {
    "serve": ("serve", "Serve zones over DNS."),
    "apply": ("apply", "Create or change objects from files."),
    "get": ("get", "Show objects, now or as they were."),
    "describe": ("describe", "Show one object with its problems and history."),
    "edit": ("edit", "Change one object in an editor."),
    "delete": ("delete", "Delete objects."),
    "diff": ("diff", "Show what applying files would change."),
    "history": ("history", "Show who changed what, when and why."),
    "blame": ("blame", "Show who last changed each record of a zone."),
    "undo": ("undo", "Take one change back."),
    "restore": ("restore", "Bring objects back to a moment, plan first."),
    "replay": ("replay", "Rebuild every view from the log."),
    "audit": ("audit", "Verify and follow the log."),
    "log": ("log", "Back the log up, and go on from a backup."),
    "promote": ("promote", "Make a node that follows the one that is written to."),
    "query": ("query", "Ask what a name answers, now or back then."),
    "explain": ("explain", "Say why a client gets what it gets for a name."),
    "blocking": ("blocking", "Pause what policies deny, and resume it."),
    "queries": ("queries", "Show who asked what and what became of it."),
    "top": ("top", "Show the names and clients with the most queries."),
    "list": ("list_", "Show subscribed lists, and fetch them."),
    "cache": ("cache", "Show and flush the cache of the resolver."),
    "zone": ("zone", "Import, export and check zones as master files."),
    "token": ("token", "Make, list and revoke tokens of the API."),
    "tsig": ("tsig", "Make, list and revoke TSIG keys."),
    "lameduck": ("lameduck", "Have balancers send their clients elsewhere."),
    "healthcheck": ("healthcheck", "Ask whether the server here is ready, for containers."),
    "peer": ("peer", "Show which zones another node serves."),
    "crds": ("crds", "Install our definitions in a Kubernetes cluster."),
    "config": ("config", "Show and check settings."),
    "doctor": ("doctor", "Look a node over, and say what to do."),
    "completion": ("completion", "Print what a shell needs to complete commands."),
    "version": ("version", "Show the version."),
}


def command_of(name: str) -> Any:
    """The command of a name, with the options that all have."""
    module = importlib.import_module(f"kudurru.entrypoints.cli.{COMMANDS[name][0]}")
    command: Any = module.app
    if not isinstance(command, click.Command):
        from typer.main import get_command

        from kudurru.entrypoints.cli.remote import with_server

        command = with_server(get_command(command), name)
    command.name = name
    return command


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's interface
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's interface
        name: str,
    ) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return command_of(name)  # type: ignore[no-any-return]  # typer's own click types

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's interface
        formatter: click.HelpFormatter,
    ) -> None:
        """Help without importing every command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """kudurru: DNS on an append-only, hash-chained log. Every change is an event: see who changed
    what, ask what a name answered last Tuesday, replay it all."""


def run() -> NoReturn:
    """Entry point: runs the command line and exits with its code."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # until the end
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")  # a locale may have few characters
    sys.exit(main(sys.argv[1:]))


def main(args: list[str]) -> int:
    """0 done, 1 refused or failed, 2 usage; `audit verify` has more."""
    # A command makes much and drops little, and so does a server while it is imported: looking for
    # garbage would take a fifth of it.
    gc.set_threshold(100_000, 50, 100)
    remote = sys.modules.get("kudurru.entrypoints.cli.remote")
    if remote is not None:  # a command ran before in this process
        remote.forget()
    if COMPLETION in os.environ:
        from kudurru.entrypoints.cli.completing import register

        register()
    try:
        code = cli.main(args, prog_name="kudurru", standalone_mode=False)
        sys.stdout.flush()
    except KudurruError as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
        return EXIT_FAILED
    except OSError as error:
        # Files are named where they are opened: what is left is our own output.
        _drop_output()
        return _failed(f"{error.filename or 'the output'}: {error.strerror or error}")
    except Exception as error:
        return _click_error(error)
    return code if isinstance(code, int) else 0


def _drop_output() -> None:
    """Nobody reads what is left of it, and the interpreter must not stumble over it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _click_error(error: Exception) -> int:
    """Typer carries its own copy of click's exceptions in some versions, so they are told by what
    they can do, not by their class."""
    show = getattr(error, "show", None)
    if show is not None:
        error.message = _for_people(getattr(error, "message", ""))  # type: ignore[attr-defined]
        show(file=sys.stderr)
        return int(getattr(error, "exit_code", EXIT_USAGE))
    if type(error).__name__ == "Exit":
        return int(getattr(error, "exit_code", 0))
    if type(error).__name__ == "Abort":
        return 130
    if os.environ.get("KUDURRU_DEBUG"):
        raise error
    name = type(error).__name__
    return _failed(
        f"{name}: {error}\nThis is a fault of kudurru, please report it; "
        "KUDURRU_DEBUG=1 shows where it happened"
    )


_SAID_FOR_PROGRAMS = (
    ("Input should be a valid integer, unable to parse string as an integer",
     "a whole number is wanted"),
    ("Input should be ", "has to be "),
    ("Value error, ", ""),
)  # fmt: skip
"""How values are refused by the library that some versions of typer check them with."""


def _for_people(message: str) -> str:
    for said, meant in _SAID_FOR_PROGRAMS:
        message = message.replace(said, meant)
    return message


def _failed(message: str) -> int:
    from kudurru.entrypoints.cli.output import escape

    lines = [escape(line) for line in message.splitlines()] or [""]
    sys.stderr.write("error: " + "\n".join(lines) + "\n")
    return EXIT_FAILED
