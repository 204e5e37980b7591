"""Regular expressions of lists, searched together by RE2, in time that is linear in the name."""

from collections.abc import Sequence

import re2

CHUNK = 100
"""Expressions in one automaton. Where one needs more memory than it may have, its expressions are
searched one by one: fewer in one make that cheaper, and each automaton costs some 0.5 µs a name."""

MEMORY_MAX = 8 << 20
"""Octets that RE2 may use for one automaton."""


class Patterns:
    """`texts` are expressions that RE2 compiles. Raises re2.error for others."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self._chunks = [_Chunk(self.texts[i : i + CHUNK]) for i in range(0, len(texts), CHUNK)]

    def search(self, name: str) -> list[int]:
        """Indexes of the expressions that match somewhere in a lower-case name, ascending."""
        found: list[int] = []
        for i, chunk in enumerate(self._chunks):
            if hits := chunk.search(name):
                found += [i * CHUNK + hit for hit in hits]
        return found


def options_of(memory_max: int) -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.case_sensitive = False
    options.max_mem = memory_max
    return options


class _Chunk:
    def __init__(self, texts: Sequence[str]) -> None:
        self._options = options_of(MEMORY_MAX)
        self._texts = texts
        self._set = re2.Set.SearchSet(self._options)
        for text in texts:
            self._set.Add(text)
        self._set.Compile()
        self._single: list[re2._Regexp] | None = None

    def search(self, name: str) -> list[int]:
        hits = self._set.Match(name)
        if hits is None:  # out of memory
            return self._search_singly(name)
        return sorted(hits) if len(hits) > 1 else hits

    def _search_singly(self, name: str) -> list[int]:
        if self._single is None:
            self._single = [re2.compile(text, self._options) for text in self._texts]
        return [i for i, one in enumerate(self._single) if one.search(name)]
