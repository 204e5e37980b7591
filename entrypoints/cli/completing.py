"""What may stand at the end of a command line: commands, options, and values of both.

The metavar of a parameter says what its values are. Click's own way ends at commands that typer
makes, as these are of other classes in some versions.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

NAMES_MAX = 1000
"""Objects looked at: who has more of a kind writes a name out."""

FILES = frozenset({"F", "FILE", "FILE|DIR", "F|Z", "file:F"})
ZONES = frozenset({"Z", "ZONE", "F|Z"})
KEYS = frozenset({"KEY", "KEY..."})


def register() -> None:
    """Have the shells' own parts ask `completions`."""
    for base in (BashComplete, ZshComplete, FishComplete):
        add_completion_class(type(base.__name__, (_Completing, base), {}), base.name)


class _Completing(ShellComplete):
    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        return list(completions(self.cli, args, incomplete))


def completions(root: Any, words: Sequence[str], incomplete: str) -> Iterator[CompletionItem[str]]:
    """What may come after these words, and begins as `incomplete` does."""
    command, rest = _command(root, words)
    waiting, taken = _taken(command, rest)
    if waiting is None and incomplete.startswith("-"):
        found: Iterable[str] = sorted(_options(command))
    elif waiting is None and (below := _commands(command)):
        found = below
    else:
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        if waiting is None and arguments:
            waiting = _next_argument(arguments, len(taken))
        if waiting is None:
            return
        metavar = waiting.metavar or ""
        if metavar in FILES or metavar == "DIR":
            yield CompletionItem(incomplete, type="dir" if metavar == "DIR" else "file")
        found = _values(waiting, metavar, incomplete, taken, _data(rest))
    yield from (CompletionItem(one) for one in found if one.startswith(incomplete))


def _command(root: Any, words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that the words lead to, and the words after its name."""
    command, rest = root, list(words)
    while rest and (name := rest[0]) in _commands(command):
        command, rest = _below(command, name), rest[1:]
    return command, rest


def _commands(command: Any) -> list[str]:
    if isinstance(command, click.Group):
        return command.list_commands(click.Context(command))
    return list(getattr(command, "commands", {}))


def _below(command: Any, name: str) -> Any:
    if isinstance(command, click.Group):
        return command.get_command(click.Context(command), name)
    return command.commands[name]


def _options(command: Any) -> dict[str, Any]:
    return {
        flag: one
        for one in command.params
        if one.param_type_name == "option" and not getattr(one, "hidden", False)
        for flag in (*one.opts, *one.secondary_opts)
    }


def _taken(command: Any, rest: Sequence[str]) -> tuple[Any, list[str]]:
    """The option that waits for its value, and the arguments that are there."""
    options, waiting, taken = _options(command), None, list[str]()
    for word in rest:
        if waiting is not None:
            waiting = None
        elif word in options:
            waiting = None if options[word].is_flag else options[word]
        elif not word.startswith("-"):
            taken.append(word)
    return waiting, taken


def _next_argument(arguments: Sequence[Any], count: int) -> Any:
    if count < len(arguments):
        return arguments[count]
    return arguments[-1] if arguments[-1].nargs == -1 else None


def _data(rest: Sequence[str]) -> Path:
    """The data directory that the words name, as far as they do."""
    data = os.environ.get("KUDURRU_DATA") or "kudurru-data"
    if "--data" in rest[:-1]:
        data = rest[rest.index("--data") + 1]
    return Path(data)


def _values(
    parameter: Any, metavar: str, incomplete: str, taken: Sequence[str], data: Path
) -> Iterable[str]:
    from kudurru.domain.kinds.registry import CLIENT_GROUP, DNS_ZONE, KINDS

    choices = _choices(parameter)
    if choices:
        return choices
    kinds = [kind.short for kind in KINDS.values() if not kind.is_internal]
    if metavar == "KIND":
        return kinds
    if metavar in ("NAME", "NAME...") and parameter.name in ("name", "objects") and taken:
        return _names(taken[0], data)
    if "KIND/NAME" in metavar:
        kind, slash, _ = incomplete.partition("/")
        if not slash:
            return [f"{kind}/" for kind in kinds]
        return [f"{kind}/{name}" for name in _names(kind, data)]
    if metavar in ZONES:
        return _names(DNS_ZONE.name, data)
    if parameter.name == "group":
        return _names(CLIENT_GROUP.name, data)
    if metavar in KEYS and parameter.param_type_name == "argument":
        from kudurru.domain.settings import KEYS as SETTINGS

        return list(SETTINGS)
    return []


def _choices(parameter: Any) -> list[str]:
    described = getattr(parameter, "type_descriptor", None) or getattr(parameter, "type", None)
    return [str(getattr(one, "value", one)) for one in getattr(described, "choices", None) or ()]


def _names(word: str, data: Path) -> list[str]:
    """Objects of a kind in a data directory. Whatever is wrong there is told when the command
    runs, not while somebody types."""
    from kudurru.domain.kinds.registry import kind_by_word
    from kudurru.entrypoints.cli import common
    from kudurru.entrypoints.service import ListRequest

    if os.environ.get("KUDURRU_SERVER"):
        return []
    try:
        kind = kind_by_word(word)
        with common.service(data) as service:
            found = service.list_objects(ListRequest(kind=kind.name, limit=NAMES_MAX)).items
        return [document["metadata"]["name"] for document in found]
    except Exception:
        return []
