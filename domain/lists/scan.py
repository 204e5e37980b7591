"""Reading a whole list: a million lines in about a second.

Most lines say one of three things about one plain name. Those are found by one regular expression
over the whole text; every other line goes through `parser.Parser`. Both say the same of a line
(tests/domain/lists/test_scan.py holds them against each other).
"""

import re
from collections.abc import Iterator
from typing import Protocol

from kudurru.domain.dns.names import Name
from kudurru.domain.lists.parser import LINE_MAX, Parser
from kudurru.domain.lists.rules import SUBTREE, Context, Line, Rule


class Octets(Protocol):
    """Bytes, or a file that is mapped."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: slice, /) -> bytes: ...

    def find(self, sub: bytes, start: int = ..., end: int = ..., /) -> int: ...

    def rfind(self, sub: bytes, start: int = ..., end: int = ..., /) -> int: ...


# Labels that begin with a letter or digit, at least two of them, and a last one that makes no
# number of it; nor a name that hosts files begin with. Labels are counted because the engine keeps
# some 200 octets for each: a line of megabytes would take the memory of the machine.
_NAME = (
    rb"(?!(?i:localhost\.))"
    rb"([A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9][A-Za-z0-9_-]*){0,30}\.[A-Za-z][A-Za-z0-9_-]*)"
)
_HOST = rb"(?:0\.0\.0\.0|127\.0\.0\.1|::1?)[ \t]+" + _NAME
_SUBTREE = rb"\|\|" + _NAME + rb"\^"
_NEVER = rb"(?!)()"


def _lines(host: bytes, subtree: bytes, bare: bytes) -> "re.Pattern[bytes]":
    """Lines, with the name in group 1, 2 or 3, or all of the line in group 4."""
    plain = b"|".join((host, subtree, bare))
    return re.compile(rb"(?:[ \t]*(?:" + plain + rb")[ \t]*\r?|([^\n]*))(?:\n|\Z)")


_FAST = {
    "auto": _lines(_HOST, _SUBTREE, _NAME),
    "hosts": _lines(_HOST, _NEVER, _NAME),
    "domains": _lines(_NEVER, _NEVER, _NAME),
    "adblock": _lines(_NEVER, _SUBTREE, _NAME),
}
_OTHER = 4

_LENGTH = tuple(bytes((size,)) for size in range(64))
LINES_EACH = 256
"""Lines between two calls of whoever wants to know how far a text was read: some 0.5 ms."""
PLAIN_MAX = 63
"""Octets of a name that certainly has no label that is too long."""

Plain = tuple[int, bytes, int]
"""Offset of a name, the name in wire form and lower case, and what it covers: a rule of its kind
without anything else."""
Other = tuple[int, Line, Context]
"""Offset of any other line, what it came to, and the context that it was read in."""


def scan(text: Octets, start: int, end: int, context: Context) -> Iterator[Plain | Other]:
    """Every line from `start` up to `end` that says something, in order. Lines without rules or
    faults are left out."""
    at = start + 3 if text[start : start + 3] == b"\xef\xbb\xbf" else start
    parser = Parser(context)
    fast = _FAST.get(context.format)
    if fast is not None:
        covers = (0, context.covers, SUBTREE, context.covers)
        for found in fast.finditer(text, at, end):  # type: ignore[call-overload]  # takes buffers
            kind: int = found.lastindex
            name: bytes = found[kind]
            if kind != _OTHER and len(name) <= PLAIN_MAX:
                labels = name.lower().split(b".")
                wire = b"".join([_LENGTH[len(label)] + label for label in labels]) + b"\x00"
                yield found.start(kind), wire, covers[kind]
                continue
            if not found[0]:
                continue
            before = parser.context
            line = parser.feed(text_of(found[0]))
            if line.rules or line.refused:
                yield found.start(), line, before
            if parser.context.format != context.format:
                at = found.end()
                break
        else:
            return
    yield from _slowly(text, at, end, parser)


def _slowly(text: Octets, at: int, end: int, parser: Parser) -> Iterator[Other]:
    while at < end:
        stop = text.find(b"\n", at, end)
        stop = end if stop < 0 else stop
        before = parser.context
        line = parser.feed(text_of(text[at : min(stop, at + _OCTETS_MAX + 1)]))
        if line.rules or line.refused:
            yield at, line, before
        at = stop + 1


_OCTETS_MAX = LINE_MAX + 1
"""More than a line may have, so that it is seen to be too long, however long it is."""


def text_of(line: bytes) -> str:
    """Octets that are no UTF-8 become characters that no name has. What is too long has a character
    an octet, and is then too long in any case."""
    line = line.rstrip(b"\r\n")
    if len(line) > LINE_MAX:
        return line[:_OCTETS_MAX].decode("latin-1")
    return line.decode("utf-8", "replace")


def rules_of(found: bytes | Line, more: object, context: Context) -> tuple[Rule, ...]:
    """Rules of a line that `scan` found."""
    if isinstance(found, Line):
        return found.rules
    assert isinstance(more, int)
    return (Rule(name=Name(found), covers=more, is_allow=context.is_allow),)
