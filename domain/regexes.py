"""Regexes that people write, on RE2: the time they take grows with the text and nothing else.

RE2 is loaded when the first regex is met.
"""

from collections.abc import Iterable
from typing import Any

MEMORY_MAX = 1 << 20
"""Octets that RE2 may take for one regex: what needs more is refused."""
SET_MEMORY_MAX = 64 << 20
"""Octets for the regexes of one set, all together."""


def fault(pattern: str) -> str | None:
    """What RE2 has against a pattern; None: nothing."""
    import re2  # type: ignore[import-untyped]  # it has no stubs

    try:
        re2.compile(pattern, _options(MEMORY_MAX))
    except re2.error as error:
        why = error.args[0] if error.args else str(error)
        return why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
    return None


def compiled_set(patterns: Iterable[str]) -> Any:
    """Patterns without fault as one `re2.Set`: `Match(text)` gives the indexes of those that are
    found in a text, in no order."""
    import re2

    found = re2.Set.SearchSet(_options(SET_MEMORY_MAX))
    for pattern in patterns:
        found.Add(pattern)
    found.Compile()
    return found


def _options(memory_max: int) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = memory_max
    return options
