"""Rules of policies: names, `*.` wildcards and `/regexes/`, matched in that order.

A plain name means that name only, `*.name` every name below it and not itself, a regex what it is
found in: lower-case text without the final dot. Regexes run on RE2, in time that grows with the
length of the name and nothing else.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv6Address
from typing import TYPE_CHECKING

import msgspec

from kudurru.domain import regexes
from kudurru.domain.dns import names
from kudurru.domain.dns.names import BadName, Name

if TYPE_CHECKING:
    from kudurru.domain.lists.patterns import Patterns


class Match(msgspec.Struct, frozen=True, gc=False):
    """A rule that names the asked name."""

    rule: str  # as it was written
    line: int  # from 1, in its list


class Ancestry:
    """A name to be matched: its key, the names above it, and its text when somebody asks."""

    __slots__ = ("_text", "above", "key")

    def __init__(self, key: Name) -> None:
        self.key = key
        self.above: list[bytes] = []  # nearest first, the root last
        self._text: str | None = None
        at = 0
        while size := key[at]:
            at += size + 1
            self.above.append(key[at:])

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = names.to_text(self.key, final_dot=False)
        return self._text


class RuleSet:
    """Rules of one policy, compiled. `unusable` are those that cannot be matched; they were
    refused when the policy was applied, unless that was with other rules than today's."""

    def __init__(self, rules: Sequence[str]) -> None:
        self._exact: dict[bytes, Match] = {}
        self._below: dict[bytes, Match] = {}
        self.unusable: list[str] = []
        patterns: list[Match] = []
        for line, rule in enumerate(rules, 1):
            match = Match(rule, line)
            if rule.startswith("/"):
                patterns.append(match)
                continue
            try:
                key = _key(rule.removeprefix("*."))
            except BadName:
                self.unusable.append(rule)
                continue
            into = self._below if rule.startswith("*.") else self._exact
            into.setdefault(key, match)
        self._regexes, self._patterns = self._compile(patterns)

    def __bool__(self) -> bool:
        return bool(self._exact or self._below or self._regexes)

    def find(self, name: Ancestry) -> Match | None:
        """The rule that matches: exact before wildcard, the nearest wildcard first, before regex,
        the first one first."""
        found = self._exact.get(name.key)
        if found is not None:
            return found
        if self._below:
            for key in name.above:
                if (found := self._below.get(key)) is not None:
                    return found
        if self._patterns is not None:
            for hit in self._patterns.search(name.text):
                return self._regexes[hit]
        return None

    def _compile(self, patterns: Iterable[Match]) -> "tuple[list[Match], Patterns | None]":
        usable = []
        budget = regexes.Budget()
        for match in patterns:
            if not budget.is_spent and budget.fault(match.rule[1:-1]) is None:
                usable.append(match)
            else:
                self.unusable.append(match.rule)
        if not usable:
            return [], None
        from kudurru.domain.lists.patterns import Patterns  # loads RE2, for those who need it

        return usable, Patterns([match.rule[1:-1] for match in usable])


def _key(text: str) -> Name:
    """Key of a name, or of an address in any of its forms. Raises BadName."""
    if ":" in text:
        with suppress(ValueError):  # a name may hold colons too
            text = str(IPv6Address(text))
    return names.key(names.from_text(text))
