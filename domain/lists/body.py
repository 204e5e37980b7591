"""Whether a text that was fetched is a list at all. A server that has moved answers with a page, a
full disk with nothing, and a list that worked must not be lost to either."""

import re
from collections import Counter
from collections.abc import Callable

import msgspec

from kudurru.domain.lists.patterns import Budget
from kudurru.domain.lists.rules import Context, Reason
from kudurru.domain.lists.scan import LINES_EACH, Octets, scan

RULES_MAX = 5_000_000
"""Rules of one source."""
_LOOKED_AT = 4096  # octets: enough to tell a page or an archive from a list

_MARKUP = re.compile(rb"\s*<(!doctype|html|head|body|\?xml|!--|script|rss|svg)", re.I)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class Facts(msgspec.Struct, frozen=True):
    """What is in a text."""

    entries: int = 0
    refused: dict[Reason, int] = {}

    @property
    def invalid(self) -> int:
        return sum(self.refused.values())


class NoList(Exception):
    """A text that is no list. The message says why, and quotes nothing of it."""


def inspect(
    text: Octets,
    context: Context,
    *,
    had_entries: bool,
    on_progress: Callable[[int], object] = lambda _: None,
) -> Facts:
    """Count what is in a text. `had_entries`: the copy in use has some. `on_progress` is told how
    far it was read, once in LINES_EACH lines. Raises NoList."""
    check_beginning(text[:_LOOKED_AT])
    entries = 0
    refused: Counter[Reason] = Counter()
    budget = Budget()
    # The scan is nowhere but in the loop: it holds on to a map, which must close on NoList.
    for line, (offset, found, _more) in enumerate(scan(text, 0, len(text), context), 1):
        if not line % LINES_EACH:
            on_progress(offset)
        if isinstance(found, bytes):
            entries += 1
        else:
            refused.update(found.refused)
            for rule in found.rules:
                if rule.pattern and not budget.take(rule.pattern):
                    refused[Reason.REGEX_MAX] += 1
                else:
                    entries += 1
        if entries > RULES_MAX:
            raise NoList(f"it has more than {RULES_MAX} rules")
    if not entries and (had_entries or refused):
        raise NoList("it has no rules" + ("" if had_entries else f", and {_shown(refused)}"))
    return Facts(entries, dict(refused))


def check_beginning(text: bytes) -> None:
    """Raises NoList for what cannot be a list, whatever follows."""
    if not text.strip():
        raise NoList("it is empty")
    text = text.removeprefix(b"\xef\xbb\xbf")
    if text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise NoList("it is in UTF-16; lists are read as UTF-8")
    if _MARKUP.match(text):
        raise NoList("it is a page of HTML or XML: the list has probably moved")
    if text[:2] == b"\x1f\x8b" or text[:2] == b"PK":
        raise NoList("it is an archive; give the address of the text in it")
    if _CONTROL.search(text):
        raise NoList("it is binary, no text")


def _shown(refused: dict[Reason, int]) -> str:
    most = sorted(refused.items(), key=lambda one: -one[1])[:3]
    return ", ".join(f"{count} lines: {reason}" for reason, count in most)
