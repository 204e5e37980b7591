"""Lists in a dictionary: for inline sources and tests. Some 300 octets a rule."""

from collections.abc import Iterator, Sequence

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.lists.matcher import Hit, Place, rank
from kudurru.domain.lists.parser import Parser
from kudurru.domain.lists.patterns import Patterns
from kudurru.domain.lists.rules import BELOW, SELF, Context, Rule
from kudurru.domain.objects import Key


class MemoryMatcher:
    """Rules by name. `put` and `drop` change it: call them where nobody is between `lookup` and
    `place`."""

    def __init__(self) -> None:
        self._by_name: dict[bytes, tuple[Hit, ...]] = {}
        self._names: dict[Key, set[bytes]] = {}
        self._texts: dict[tuple[Key, int], tuple[str, Sequence[str]]] = {}
        self._patterns = Patterns([])
        self._pattern_hits: list[Hit] = []

    def put(self, key: Key, sources: Sequence[tuple[str, Sequence[str]]], context: Context) -> int:
        """Replace a list by the lines of its sources, each (what it is called, lines); how many
        rules that are. `Hit.offset` is the index of the line here."""
        self.drop(key)
        count = 0
        for source, (title, lines) in enumerate(sources):
            self._texts[key, source] = title, lines
            for hit in _hits(key, source, lines, context):
                self._add(hit)
                count += 1
        self._compile()
        return count

    def drop(self, key: Key) -> None:
        """Forget a list. Nothing happens where there is none."""
        for place in [place for place in self._texts if place[0] == key]:
            del self._texts[place]
        for name in self._names.pop(key, ()):
            left = tuple(hit for hit in self._by_name[name] if hit.list != key)
            if left:
                self._by_name[name] = left
            else:
                del self._by_name[name]
        self._pattern_hits = [hit for hit in self._pattern_hits if hit.list != key]
        self._compile()

    def lookup(self, name: Name) -> Sequence[Hit]:
        found: list[Hit] = []
        i, wanted = 0, SELF
        by_name = self._by_name
        while True:
            if hits := by_name.get(name[i:]):
                found += [hit for hit in hits if hit.rule.covers & wanted]
            if not name[i]:
                break
            i += name[i] + 1
            wanted = BELOW
        if self._pattern_hits:
            text = names.to_text(name, final_dot=False)
            found += [self._pattern_hits[i] for i in self._patterns.search(text)]
        found.sort(key=rank)
        return found

    def place(self, hit: Hit) -> Place | None:
        title, lines = self._texts.get((hit.list, hit.source), ("", ()))
        if hit.offset >= len(lines):
            return None
        return Place(title, hit.offset + 1, lines[hit.offset])

    def _add(self, hit: Hit) -> None:
        if hit.rule.pattern:
            self._pattern_hits.append(hit)
            return
        name = hit.rule.name
        self._by_name[name] = (*self._by_name.get(name, ()), hit)
        self._names.setdefault(hit.list, set()).add(name)

    def _compile(self) -> None:
        patterns = [hit.rule.pattern for hit in self._pattern_hits]
        if patterns != self._patterns.texts:
            self._patterns = Patterns(patterns)


def _hits(key: Key, source: int, lines: Sequence[str], context: Context) -> Iterator[Hit]:
    parser = Parser(context)
    for number, text in enumerate(lines):
        for rule in parser.feed(text).rules:
            yield Hit(key, rule, source, number)


def rules_of(lines: Sequence[str], context: Context) -> list[Rule]:
    """Rules of a text, in order."""
    return [hit.rule for hit in _hits(Key(""), 0, lines, context)]
