"""How results are printed: tables for people, JSON and YAML for programs.

What came from outside (names, TXT, reasons) is escaped here, where it is shown: control characters
as \\xNN, and rich's markup is off.
"""

import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from kudurru.entrypoints.escaping import escape as escape  # the commands' name for it
from kudurru.entrypoints.escaping import plain_json


class Output(StrEnum):
    """`-o`."""

    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"
    jsonl = "jsonl"


def echo(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Diagnostics go to stderr."""
    sys.stderr.write(text + "\n")


def print_json(value: Any) -> None:
    """One document with stable keys."""
    echo(plain_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def print_jsonl(values: Iterable[Any]) -> None:
    for value in values:
        echo(json_line(value))


def json_line(value: Any) -> str:
    return plain_json(msgspec.json.encode(value).decode())


def print_yaml(*documents: Any) -> None:
    """YAML that `apply` reads back as it was."""
    sys.stdout.write(yaml_text(*documents))


def yaml_text(*documents: Any) -> str:
    import yaml

    from kudurru.domain.documents import needs_quotes

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "'" if needs_quotes(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)

    Dumper.add_representer(str, text)
    texts = [
        yaml.dump(
            msgspec.to_builtins(document),
            Dumper=Dumper,
            sort_keys=False,
            allow_unicode=False,
            width=4096,
        )
        for document in documents
    ]
    return "---\n".join(texts)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A plain table: no frame, one header line, so that `awk` and `cut` still work."""
    cells = [[escape("" if cell is None else str(cell)) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        widths = [
            max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))
        ]
        for line in [list(columns), *cells]:
            text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            echo(text.rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ignore")
    for line in cells:
        table.add_row(*map(Text, line))
    # As wide as it is: a terminal wraps a long line better than a table folds a time or a name.
    console = Console(highlight=False, markup=False)
    natural = console.measure(table, options=console.options.update(max_width=1 << 16)).maximum
    console.width = max(console.width, natural)
    console.print(table, crop=False)


def print_documents(output: Output, documents: Sequence[Any], *, single: bool = False) -> bool:
    """Print in a format for programs; False when a table is wanted."""
    match output:
        case Output.json:
            print_json(documents[0] if single else documents)
        case Output.jsonl:
            print_jsonl(documents)
        case Output.yaml:
            print_yaml(*documents)
        case _:
            return False
    return True


def counted(count: int, noun: str, nouns: str = "") -> str:
    """ "1 event", "2 events": a number and what it is of."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def age(timestamp_s: float, now_s: float) -> str:
    """How long ago, as kubectl writes it: 5s, 12m, 3h, 9d."""
    seconds = max(0, int(now_s - timestamp_s))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size or (unit == "d" and seconds >= size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
