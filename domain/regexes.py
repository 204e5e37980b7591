"""Regular expressions that people write, checked when they are applied. They run on RE2, in time
that grows with the text and nothing else (`domain.lists.patterns`).

Compiling one takes time too, with the interpreter held: RE2 writes counted repeats out before it
looks at their size, so that a line of text may take a third of a second, valid or not. So what an
expression will be is estimated from its text, and only what an object may have is compiled.
"""

import re

MEMORY_MAX = 1 << 20
"""Octets that RE2 may take for one: what needs more is refused."""
PARTS_MAX = 5_000
"""Parts of one expression, repeats written out: more than the longest text without any has."""
OBJECT_MAX = 50_000
"""Parts of all expressions of an object, compiled in some 50 ms at worst."""

_PART = re.compile(
    r"""\\Q.*?(?:\\E|\Z)                                    # as it is written
    | \\[pP](?:\{[^}]*\}|.)                                 # a class of Unicode
    | \\x\{[^}]*\} | \\.
    | \[\^?\]?(?:\[:\^?\w+:\] | \\[pP]\{[^}]*\} | \\. | [^\]\\])*+\]
    | \{(?P<least>\d{1,9})(?P<most>,\d{0,9})?\}
    | .""",
    re.DOTALL | re.VERBOSE | re.ASCII,
)
_OPTIONAL = 4
"""Of a part that may be left out: from each of a row of such every later one is reached."""
_UNICODE = 500
"""Of a class such as `\\pL`."""
_WIDE = 12
"""Of what is any of many characters, each some octets long."""


def parts_of(pattern: str) -> int:
    """About as many as it will have instructions, with repeats written out; at least 1."""
    groups, last = [0], 0
    for found in _PART.finditer(pattern):
        part = found[0]
        if part == "(":
            groups.append(0)
        elif part == ")":
            if len(groups) > 1:
                last = groups.pop() + 1
                groups[-1] += last
        elif found["least"]:
            times = _times(found["least"], found["most"])
            groups[-1] += last * (times - 1)
            last = min(last * times, 1 << 32)
        else:
            size = _size_of(part)
            groups[-1] += size
            last = last if part in "*+?" else size
    return max(1, sum(groups))


def _times(least: str, most: str | None) -> int:
    """Of {least}, {least,} and {least,most}, what is written out."""
    if most is None:
        return max(1, int(least))
    return max(1, int(most[1:]) if most[1:] else int(least) + 1)


def _size_of(part: str) -> int:
    unicode = part.count("\\p") + part.count("\\P")
    if unicode:
        return unicode * _UNICODE + len(part)
    if part in "*?":
        return _OPTIONAL
    if part == "." or part in ("\\D", "\\W", "\\S") or part.startswith("[^"):
        return _WIDE + len(part)
    if part.startswith("["):
        is_plain = part.isascii() and not re.search(r"\\[xDWS0-7]|\[:\^", part)
        return len(part) if is_plain else _WIDE * len(part)
    return sum(1 if char.isascii() else _WIDE for char in part)


_SPENT = f"the regexes of this object have more than {OBJECT_MAX} parts, repeats written out"


class Budget:
    """What the expressions of one object may still have."""

    def __init__(self) -> None:
        self._left = OBJECT_MAX

    @property
    def is_spent(self) -> bool:
        """Nothing more is looked at."""
        return self._left < 0

    def fault(self, pattern: str) -> str | None:
        """What there is against a pattern; None: nothing. RE2 is loaded when the first one is
        met."""
        size = parts_of(pattern)
        if size > PARTS_MAX:
            return f"it has more than {PARTS_MAX} parts, repeats written out"
        self._left -= size
        if self.is_spent:
            return _SPENT
        fault, actual = _compiled(pattern)
        self._left -= max(0, actual - size)
        return fault or (_SPENT if self._left < 0 else None)


def _compiled(pattern: str) -> tuple[str | None, int]:
    """Its fault, or its size in instructions."""
    import re2

    from kudurru.domain.lists.patterns import options_of

    try:
        return None, re2.compile(pattern, options_of(MEMORY_MAX)).programsize
    except re2.error as error:
        why = error.args[0] if error.args else str(error)
        return why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why), 0
