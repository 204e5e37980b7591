"""`kudurru get --watch`: objects as they are, then each change as it comes, read from the log."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from kudurru.domain.object_store import to_document
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.selectors import parse_selector
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli.output import Output, echo, escape, print_jsonl, print_yaml
from kudurru.entrypoints.service import ListRequest
from kudurru.entrypoints.wiring import Node

INTERVAL_S = 0.5
"""How often the log is asked for news: another process may write it, so nothing wakes us."""


class Seen(msgspec.Struct, frozen=True):
    """What became of an object. It is Deleted too when the selector no longer fits it."""

    type: str  # Added, Modified, Deleted
    object: dict[str, Any]  # as it is, for Deleted as it was


Table = Callable[[Sequence[dict[str, Any]]], tuple[list[str], list[list[Any]]]]
"""Column titles, and a row for each document."""


def watch(
    data: Path, request: ListRequest, name: str | None, output: Output, table: Table
) -> NoReturn:
    """Print until interrupted. `name`: only that object of the kind."""
    with directory.open_reader(data) as node:
        directory.replay(node, zones=False)
        printer = _Printer(output, table)
        selected = _Selected(node, request, name)
        printer.print(selected.all())
        while True:
            sys.stdout.flush()
            time.sleep(INTERVAL_S)
            printer.print(selected.changes())


class _Selected:
    """The objects of a node that a request selects."""

    def __init__(self, node: Node, request: ListRequest, name: str | None) -> None:
        self._node = node
        self._request = request
        self._name = name
        self._selects = parse_selector(request.selector)

    def all(self) -> list[Seen]:
        found = map(self._find, self._node.objects.keys(self._request.kind))
        return [Seen("Added", document) for document in found if document]

    def changes(self) -> list[Seen]:
        """Take in what is new in the log."""
        found = []
        for event in self._node.log.read(self._node.objects.position):
            before = self._find(event.key)
            self._node.views.objects_only.apply(event)
            after = self._find(event.key)
            if after:
                found.append(Seen("Modified" if before else "Added", after))
            elif before:
                found.append(Seen("Deleted", before))
        return found

    def _find(self, key: Key) -> dict[str, Any] | None:
        ref = ref_of(key)
        if (
            ref.kind != self._request.kind
            or self._request.namespace not in (None, ref.namespace)
            or self._name not in (None, ref.name)
        ):
            return None
        stored = self._node.objects.find(key)
        return to_document(stored) if stored and self._selects(stored.body.labels) else None


class _Printer:
    """Prints changes as they come: lines of a table whose widths the first ones decide, or one
    document per change."""

    def __init__(self, output: Output, table: Table) -> None:
        self._output = output
        self._table = table
        self._widths: list[int] = []

    def print(self, changes: Sequence[Seen]) -> None:
        match self._output:
            case Output.json | Output.jsonl:
                print_jsonl(changes)
            case Output.yaml:
                for change in changes:
                    echo("---")
                    print_yaml(change)
            case _:
                self._print_lines(changes)

    def _print_lines(self, changes: Sequence[Seen]) -> None:
        columns, rows = self._table([change.object for change in changes])
        lines = [
            [escape(str(cell)) for cell in (change.type, *row)]
            for change, row in zip(changes, rows, strict=True)
        ]
        if not self._widths:
            lines.insert(0, ["CHANGE", *columns])
            self._widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
            self._widths[0] = len("Modified")
        self._echo(lines)

    def _echo(self, lines: Iterable[Sequence[str]]) -> None:
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, self._widths, strict=True))
            echo("  ".join(cells).rstrip())
