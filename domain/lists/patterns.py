"""Regular expressions of lists, searched together by RE2, in time that is linear in the name.

Linear still means instructions times octets. So instructions are counted: a list of hostile
expressions costs a name some milliseconds at worst, and as little memory as it is given here.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kudurru.domain.lists.rules import PATTERNS_MAX

if TYPE_CHECKING:
    import re2  # loaded when the first expression is met: commands do without

PROGRAM_MAX = 1000
"""Instructions of one expression. `^ad[sv]?[0-9]*[_.-]` has twenty, one of 300 words 100."""
PROGRAMS_MAX = 50_000
"""Instructions of all expressions of a list."""

CHUNK = 100
"""Expressions in one automaton. Where one needs more memory than it may have, its expressions are
searched one by one: fewer in one make that cheaper, and each automaton costs some 0.5 µs a name."""

CHUNK_MEMORY = 4 << 20
"""Octets that RE2 may use for one automaton."""
SINGLE_MEMORY = 128 << 10
"""Octets that it may use for one expression of a list, when it has to be searched alone."""
MEMORY_MAX = 1 << 20
"""The same for an expression that is larger than lists may have: of a policy."""


class BadPattern(Exception):
    """An expression that RE2 refuses, or one of more than PROGRAM_MAX instructions."""


def size_of(text: str) -> int:
    """Instructions of an expression. Raises BadPattern."""
    import re2

    try:
        size: int = re2.compile(text, options_of(MEMORY_MAX)).programsize
    except re2.error as error:
        raise BadPattern from error
    if size > PROGRAM_MAX:
        raise BadPattern
    return size


class Budget:
    """How many expressions a list may still have."""

    def __init__(self) -> None:
        self._left = PATTERNS_MAX
        self._instructions = PROGRAMS_MAX

    def take(self, text: str) -> bool:
        """Whether this one still fits; then it is counted. It was looked at before."""
        size = size_of(text)
        if not self._left or size > self._instructions:
            return False
        self._left -= 1
        self._instructions -= size
        return True


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


def options_of(memory_max: int) -> "re2.Options":
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.case_sensitive = False
    options.max_mem = memory_max
    return options


class _Chunk:
    def __init__(self, texts: Sequence[str]) -> None:
        import re2

        self._texts = texts
        self._single: list[re2._Regexp] | None = None
        self._set: re2.Set | None = re2.Set.SearchSet(options_of(CHUNK_MEMORY))
        for text in texts:
            self._set.Add(text)
        try:
            self._set.Compile()
        except re2.error:  # together they are too large
            self._set = None

    def search(self, name: str) -> list[int]:
        hits = self._set.Match(name) if self._set is not None else None
        if hits is None:  # out of memory
            return self._search_singly(name)
        return sorted(hits) if len(hits) > 1 else hits

    def _search_singly(self, name: str) -> list[int]:
        if self._single is None:
            self._single = [_compiled(text) for text in self._texts]
        return [i for i, one in enumerate(self._single) if one.search(name)]


def _compiled(text: str) -> "re2._Regexp":
    import re2

    try:
        return re2.compile(text, options_of(SINGLE_MEMORY))
    except re2.error:
        return re2.compile(text, options_of(MEMORY_MAX))
