"""$GENERATE of master files: a record written once for a range of numbers, as BIND 9 has it.

    $GENERATE 1-127/2 host-$ A 192.0.2.$
    $GENERATE 0-255 ${0,3,d} PTR dhcp-${100}.example.

`$` stands for the number, `${offset,width,base}` for the number plus an offset, padded with zeros;
the base is d, o, x, X, or n and N for nibbles in reverse order. `$$` and `\\$` are a dollar sign.
A right side in quotes that is the only word is the text of the data.
"""

import re
from typing import NamedTuple

from kudurru.domain.dns.record_types import BadRecord
from kudurru.domain.dns.records import split

NUMBER_MAX = 2**31 - 1
WIDTH_MAX = 255  # no name is longer, and no padding needs to be

_SPAN = re.compile(r"(\d{1,10})-(\d{1,10})(?:/(\d{1,10}))?", re.ASCII)
_DOLLAR = re.compile(r"\\.|\$\$|\$(?:\{([^}]*)\})?", re.DOTALL)
_MODIFIER = re.compile(r"(-?\d{1,10})(?:,(\d{1,10})(?:,([doxXnN]))?)?", re.ASCII)


class Substitution(NamedTuple):
    offset: int
    width: int
    base: str


Template = list[str | Substitution]


class Generate(NamedTuple):
    span: range
    templates: list[Template]

    def words(self, value: int) -> list[str]:
        """Words of the record for one number. Raises BadRecord."""
        return [_fill(template, value) for template in self.templates]


def parse(span: str, owner: str, rest: list[str]) -> Generate:
    """From the words behind $GENERATE. Raises BadRecord."""
    match = _SPAN.fullmatch(span)
    if match is None:
        raise BadRecord(f"{span!r} is not a range; write start-stop or start-stop/step")
    start, stop, step = (int(number) for number in match.groups("1"))
    if not (start <= stop <= NUMBER_MAX and 0 < step <= NUMBER_MAX):
        raise BadRecord(f"{span!r} goes backwards, has no step, or exceeds {NUMBER_MAX}")
    if len(rest) < 2:
        raise BadRecord("$GENERATE wants a range, an owner, a type and data")
    *head, last = rest
    # BIND takes one word as data and reads what stands in its quotes.
    data = split(last[1:-1].replace('\\"', '"')) if last[0] == '"' else [last]
    return Generate(range(start, stop + 1, step), [*map(_template, [owner, *head, *data])])


def _template(word: str) -> Template:
    parts: Template = []
    at = 0
    for match in _DOLLAR.finditer(word):
        parts.append(word[at : match.start()])
        at = match.end()
        if match[0] == "$$":
            parts.append("\\$")
        elif match[0][0] == "\\":
            parts.append(match[0])
        else:
            parts.append(_substitution(match[1]))
    parts.append(word[at:])
    return parts


def _substitution(modifier: str | None) -> Substitution:
    if modifier is None:
        return Substitution(0, 0, "d")
    match = _MODIFIER.fullmatch(modifier)
    if match is None:
        raise BadRecord(f"'${{{modifier}}}' is not ${{offset,width,base}}")
    offset, width, base = match.groups()
    if int(width or 0) > WIDTH_MAX:
        raise BadRecord(f"a width of {width}; at most {WIDTH_MAX}")
    return Substitution(int(offset), int(width or 0), base or "d")


def _fill(template: Template, value: int) -> str:
    return "".join([p if isinstance(p, str) else _number(p, value) for p in template])


def _number(how: Substitution, value: int) -> str:
    shown = value + how.offset
    if not 0 <= shown <= NUMBER_MAX:
        raise BadRecord(f"{value} with offset {how.offset} is outside 0 to {NUMBER_MAX}")
    if how.base not in "nN":
        return f"{shown:0{how.width}{how.base}}" if how.width else f"{shown:{how.base}}"
    nibbles = f"{shown:{'x' if how.base == 'n' else 'X'}}"[::-1]
    # The width counts the dots too: 3 is two labels, 4 is two labels each with its dot.
    nibbles = nibbles.ljust((how.width + 1) // 2, "0")
    return ".".join(nibbles) + ("." if how.width == 2 * len(nibbles) else "")
