"""Lists in a dictionary: for inline sources and tests. Some 300 octets a rule."""

from collections import Counter
from collections.abc import Sequence

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.lists.body import Facts
from kudurru.domain.lists.matcher import Hit, Place, rank
from kudurru.domain.lists.patterns import Budget, Patterns
from kudurru.domain.lists.rules import BELOW, RULES_OF_NAME_MAX, SELF, Context, Line, Reason
from kudurru.domain.lists.scan import rules_of, scan, text_of
from kudurru.domain.objects import Key


class MemoryMatcher:
    """Rules by name. `put` and `drop` change it: call them where nobody is between `lookup` and
    `place`."""

    def __init__(self) -> None:
        self._by_name: dict[bytes, tuple[Hit, ...]] = {}
        self._names: dict[Key, set[bytes]] = {}
        self._texts: dict[tuple[Key, int], tuple[str, bytes]] = {}
        self._patterns = Patterns([])
        self._pattern_hits: list[Hit] = []

    def put(
        self, key: Key, sources: Sequence[tuple[str, Sequence[str]]], context: Context
    ) -> list[Facts]:
        """Replace a list by the lines of its sources, each (what it is called, lines); what was
        found in each."""
        return self.put_at(key, list(enumerate(sources)), context)

    def put_at(
        self, key: Key, sources: Sequence[tuple[int, tuple[str, Sequence[str]]]], context: Context
    ) -> list[Facts]:
        """`put`, for sources that are not all of their list: each with its index there."""
        self.drop(key)
        budget = Budget()
        found = [self._read(key, index, *source, context, budget) for index, source in sources]
        self._compile()
        return found

    def _read(
        self,
        key: Key,
        index: int,
        title: str,
        lines: Sequence[str],
        context: Context,
        budget: Budget,
    ) -> Facts:
        # A line feed inside a line would make two of it.
        text = "\n".join(line.replace("\n", " ") for line in lines).encode("utf-8", "replace")
        self._texts[key, index] = title, text
        entries = 0
        refused: Counter[Reason] = Counter()
        for offset, found, more in scan(text, 0, len(text), context):
            if isinstance(found, Line):
                refused.update(found.refused)
            for rule in rules_of(found, more, context):
                if rule.pattern and not budget.take(rule.pattern):
                    refused[Reason.REGEX_MAX] += 1
                    continue
                if not self._add(Hit(key, rule, index, offset)):
                    refused[Reason.NAME_MAX] += 1
                    continue
                entries += 1
        return Facts(entries, dict(refused))

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
        if not self._texts:
            return ()
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
        found = self._texts.get((hit.list, hit.source))
        if found is None:
            return None
        title, text = found
        start = text.rfind(b"\n", 0, hit.offset) + 1
        end = text.find(b"\n", hit.offset)
        line = text[start : end if end >= 0 else len(text)]
        return Place(title, 1 + text.count(b"\n", 0, start), text_of(line))

    def _add(self, hit: Hit) -> bool:
        """Whether there is room for it."""
        if hit.rule.pattern:
            self._pattern_hits.append(hit)
            return True
        name = hit.rule.name
        there = self._by_name.get(name, ())
        if sum(other.list == hit.list for other in there) >= RULES_OF_NAME_MAX:
            return False
        self._by_name[name] = (*there, hit)
        self._names.setdefault(hit.list, set()).add(name)
        return True

    def _compile(self) -> None:
        patterns = [hit.rule.pattern for hit in self._pattern_hits]
        if patterns != self._patterns.texts:
            self._patterns = Patterns(patterns)
