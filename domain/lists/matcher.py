"""What is asked of lists, whatever holds them."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from kudurru.domain.dns.names import Name
from kudurru.domain.lists.rules import SELF, Rule
from kudurru.domain.objects import Key


class Hit(msgspec.Struct, frozen=True, gc=False):
    """A rule that covers a name, and where it stands."""

    list: Key  # of the BlockList
    rule: Rule
    source: int  # index in spec.sources
    offset: int  # octets from the beginning of the source to some place on the rule's line


class Place(msgspec.Struct, frozen=True):
    """Where people find a rule."""

    source: str  # as in status.sources[].source: a URL, a file, "inline", a ConfigMap
    line: int  # from 1
    text: str  # of the line, at most 4096 characters; escape it where it is shown


class Matcher(Protocol):
    """Lists, ready to be asked."""

    def lookup(self, name: Name) -> Sequence[Hit]:
        """Every rule of every list whose name or pattern covers `name`, a lower-case key
        (`names.key`). Exact names come first, then wildcards with the closest first, then
        patterns. Types, clients and exceptions are not looked at: `verdicts` does. Nor is it
        whether a name of a policy zone is the one that was asked for (`Rule.is_node`)."""
        ...

    def place(self, hit: Hit) -> Place | None:
        """Where the rule of a hit stands; None for a hit of another matcher. May read a file: for
        people, not for the hot path."""
        ...


class Union:
    """Several matchers as one, asked in order."""

    def __init__(self, *matchers: Matcher) -> None:
        self._matchers = matchers

    def lookup(self, name: Name) -> Sequence[Hit]:
        found: Sequence[Hit] = ()
        for matcher in self._matchers:
            if more := matcher.lookup(name):
                found = sorted((*found, *more), key=rank) if found else more
        return found

    def place(self, hit: Hit) -> Place | None:
        places = (matcher.place(hit) for matcher in self._matchers)
        return next((place for place in places if place is not None), None)


def rank(hit: Hit) -> tuple[int, int, str, int, int]:
    """Order of the hits on a name: exact, wildcards with the closest first, patterns; then by list
    and place, so that every node decides alike."""
    rule = hit.rule
    is_wild = rule.covers != SELF and not rule.is_node
    kind, size = (2, 0) if rule.pattern else (int(is_wild), -len(rule.name))
    return kind, size, hit.list, hit.source, hit.offset
