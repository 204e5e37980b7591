"""Documents that people write: YAML, JSON and TOML read into builtins, strictly.

What comes out is made of dict (text keys), list, str, int, bool and None, and nothing else, so
validation has one shape to look at whatever the format was. What readers disagree about, or what
can hide or multiply content, is refused with its line and the fix (decisions/0004):

- anchors, aliases, merge keys and tags; keys given twice; nesting over 32; more than 8 MiB,
  more than 10,000 documents;
- numbers with a fraction or an exponent, and numbers that YAML 1.1 and 1.2 read differently
  (`010`, `0x1F`, `1_000`);
- control characters outside of escapes, text that is not UTF-8.

Plain `yes`, `no`, `on`, `off`, `true`, `false` are booleans as in YAML 1.1; times and dates stay
text, and so does `12:30`. `Document.text_of` gives the source text of a scalar that was read as
something else than text, so that a validation that wants text can say `write "no" in quotes`.

The parsers give events, never trees: depth, aliases and tags are seen before anything is built,
and the C parser's recursion is not used.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from datetime import date, time
from typing import Any, Literal

import msgspec
import yaml

from kudurru.domain.codec import INTEGER_MAX
from kudurru.domain.errors import Cause, Invalid

Format = Literal["yaml", "json", "toml"]

SIZE_MAX = 8 * 1024 * 1024
DEPTH_MAX = 32
DOCUMENTS_MAX = 10_000
FAULTS_MAX = 100
"""Faults named in one error: enough to repair a file, few enough to read."""
DIRECTIVES_MAX = 16
"""The YAML scanners compare each %TAG line with all before it: many would take hours."""
TOML_SIZE_MAX = 1024 * 1024
TOML_DOTS_MAX = 1000
"""tomllib takes quadratic time for the parts of a dotted key: these bounds keep it in seconds."""

YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Document(msgspec.Struct, frozen=True):
    """One document of a file.

    Paths are written as in Kubernetes: `spec.endpoints[0].targets[1]`. Keys that hold dots are
    found too (`metadata.annotations.kudurru.io/enabled`).
    """

    value: Any
    source: str  # name of the file, as the caller gave it
    line: int  # of its first value, from 1
    marks: Any = None  # as the value is nested: see `_mark_of`

    def line_of(self, path: str) -> int:
        """Line of the nearest thing on the path that exists."""
        return _line(self._find(path)) or self.line

    def place(self, path: str) -> str:
        """`file:line`."""
        return f"{self.source}:{self.line_of(path)}"

    def text_of(self, path: str) -> str | None:
        """Source text of an unquoted scalar that was read as a boolean, a number or null."""
        mark = self._find(path, exactly=True)
        return mark[1] if isinstance(mark, tuple) else None

    def located(self, causes: Iterable[Cause]) -> list[Cause]:
        """The faults that a validation of `value` found, each with its place."""
        return [msgspec.structs.replace(c, at=self.place(c.field)) for c in causes]

    def _find(self, path: str, *, exactly: bool = False) -> Any:
        mark = self.marks
        while path:
            step, rest = _step(mark, path)
            if step is None:
                return None if exactly else mark
            mark, path = mark[step], rest
        return mark


_INDEX = re.compile(r"\[([0-9]{1,9})\]\.?")


def _step(mark: Any, path: str) -> tuple[Any, str]:
    """Key or index of the marks that the path begins with, and the rest of the path."""
    if isinstance(mark, list):
        found = _INDEX.match(path)
        # The first element of a list's marks is the list's own line.
        if found and int(found[1]) + 1 < len(mark):
            return int(found[1]) + 1, path[found.end() :]
    elif isinstance(mark, dict):
        # Keys may hold dots: the longest one that fits is meant.
        for end in range(len(path), 0, -1):
            if path[end : end + 1] in ("", ".", "[") and path[:end] in mark:
                return path[:end], path[end:].removeprefix(".")
    return None, path


def _line(mark: Any) -> int:
    if isinstance(mark, int):
        return mark
    return int(mark[None] if isinstance(mark, dict) else mark[0]) if mark else 0


def read_documents(
    data: bytes,
    *,
    what: str,
    format: Format | None = None,  # noqa: A002  # the word people know
    is_foreign: bool = False,
) -> list[Document]:
    """All documents of a file; empty ones are left out.

    `what` names the file in faults and decides the format (.json, .toml, else YAML) where none is
    given. JSON may hold several values, one after the other. Of another product's file, one that
    `is_foreign`, numbers that no field here takes are text. Raises Invalid with every fault, the
    first 100 when there are more.
    """
    faults = _Faults(what, is_foreign=is_foreign)
    try:
        text = _decode(data, faults)
        match format or _format_of(what):
            case "json":
                return _build(_json_events(text, faults), faults)
            case "toml":
                return _read_toml(text, faults)
            case "yaml":
                return _build(_yaml_events(text, faults), faults)
    except _Enough:
        raise faults.error() from None


def quoting_hint(text: str) -> str:
    """What to do about an unquoted scalar where text is wanted."""
    return f'without quotes {text} is {_kind_of(text)}: write "{text}"'


def needs_quotes(text: str) -> bool:
    """Whether YAML must quote a text, or we read something else, or refuse it. Other writers do not
    quote all of these: `1e3` and `08` are text to them."""
    return text in _NULLS or text in _BOOLEANS or _number(text) is not None


def _format_of(what: str) -> Format:
    if what.endswith(".json"):
        return "json"
    return "toml" if what.endswith(".toml") else "yaml"


def _cut(text: str) -> str:
    """A fault quotes the input, which may be one key of a megabyte."""
    return text if len(text) <= 300 else f"{text[:120]} … {text[-120:]}"


class _Enough(Exception):
    """Reading cannot go on, or need not."""


class _Faults:
    def __init__(self, what: str, *, is_foreign: bool = False) -> None:
        self.what, self.is_foreign = what, is_foreign
        self.causes: list[Cause] = []

    def add(self, line: int, field: str, message: str) -> None:
        if len(self.causes) == FAULTS_MAX:
            self.causes.append(Cause("", f"more faults follow; the first {FAULTS_MAX} are shown"))
            raise _Enough
        self.causes.append(Cause(_cut(field), _cut(message), f"{self.what}:{line}"))

    def stop(self, line: int, message: str, field: str = "") -> _Enough:
        """A fault after which nothing can be read; for `raise`."""
        self.add(line, field, message)
        return _Enough()

    def error(self) -> Invalid:
        return Invalid(self.what, self.causes)


_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def _decode(data: bytes, faults: _Faults) -> str:
    if len(data) > SIZE_MAX:
        size = f"{len(data)} bytes; at most {SIZE_MAX} (8 MiB)"
        raise faults.stop(1, f"the document has {size}: split it into several files")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        octet = f"octet 0x{data[error.start]:02x} is not UTF-8"
        raise faults.stop(line, f"{octet}: save the file as UTF-8") from None
    if found := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise faults.stop(
            line, f"control character U+{ord(found[0]):04X}: remove it, or write it as an escape"
        )
    return text


# Scalars: what an unquoted text means.

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {
    form: word in ("true", "yes", "on")
    for word in ("true", "yes", "on", "false", "no", "off")
    for form in (word, word.capitalize(), word.upper())
}
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FRACTION = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_AMBIGUOUS = re.compile(r"[-+]?(?:[0-9][0-9_]*|0[oO]?[0-7_]+|0[xX][0-9a-fA-F_]+|0[bB][01_]+)")
_NUMBER_STARTS = frozenset("+-.0123456789")


def _kind_of(text: str) -> str:
    if text in _BOOLEANS:
        return "a boolean"
    return "null" if text in _NULLS else "a number"


def _number(text: str) -> int | str | None:
    """The number that an unquoted text is, what is wrong with it, or None where it is no number."""
    if _DECIMAL.fullmatch(text):
        # Digits are counted first: converting many takes quadratic time.
        if len(text) > 20 or abs(int(text)) > INTEGER_MAX:
            return "a number beyond 2^53-1; write it in quotes if text is meant"
        return int(text)
    if _AMBIGUOUS.fullmatch(text):
        return (
            f"readers disagree about the number {text}; "
            "write it as a plain decimal, or in quotes if text is meant"
        )
    if _FRACTION.fullmatch(text):
        return (
            f"{text} is a number with a fraction or an exponent, which no field takes; "
            "write it in quotes if text is meant"
        )
    return None


# Events of any format, and what is built from them.

_MAP, _LIST, _END, _SCALAR = range(4)

_Event = tuple[int, int, str, bool, str]
"""Kind, line, text of a scalar, whether it is unquoted, and why the thing is refused or ""."""


class _Frame:
    """A map or list that is being filled."""

    __slots__ = ("key", "key_line", "marks", "value")

    def __init__(self, value: Any, marks: Any) -> None:
        self.value = value
        self.marks = marks
        self.key: str | None = None  # of the map, when its value is to come
        self.key_line = 0


def _build(events: Iterator[_Event], faults: _Faults) -> list[Document]:
    """Documents of the events. Marks are nested as the values: for text its line, for another
    scalar (line, source text), for a list [line, marks…], for a map {None: line, key: marks…}."""
    documents: list[Document] = []
    count = 0
    stack: list[_Frame] = []
    for kind, line, text, plain, refused in events:
        if kind == _END:
            stack.pop()
            if stack:
                stack[-1].key = None
            continue
        if refused:
            faults.add(line, _path(stack), refused)
        if kind != _SCALAR and len(stack) == DEPTH_MAX:
            raise faults.stop(line, f"nested deeper than {DEPTH_MAX}", _path(stack))
        if stack and stack[-1].key is None and type(stack[-1].value) is dict:
            if kind != _SCALAR:
                raise faults.stop(line, "a map or list as a key; keys are text", _path(stack))
            _take_key(stack, line, text, plain, faults)
            continue
        if stack and stack[-1].key_line:
            line = stack[-1].key_line
        value, mark = _marked(kind, stack, line, text, plain, faults)
        if stack:
            _attach(stack[-1], value, mark)
        else:
            count += 1
            if count > DOCUMENTS_MAX:
                many = f"more than {DOCUMENTS_MAX} documents: split the file into several"
                raise faults.stop(line, many)
            if kind != _SCALAR or text or not plain:
                documents.append(Document(value, faults.what, line, mark))
        if kind != _SCALAR:
            stack.append(_Frame(value, mark))
        elif stack:
            stack[-1].key = None
    if faults.causes:
        raise _Enough
    return documents


def _marked(
    kind: int, stack: list[_Frame], line: int, text: str, plain: bool, faults: _Faults
) -> tuple[Any, Any]:
    """A scalar, or an empty list or map, and its mark."""
    if kind == _MAP:
        return {}, {None: line}
    if kind == _LIST:
        return [], [line]
    value, is_text = _scalar(stack, line, text, plain, faults)
    return value, line if is_text else (line, text)


def _attach(frame: _Frame, value: Any, mark: Any) -> None:
    if frame.key is None:
        frame.value.append(value)
        frame.marks.append(mark)
    else:
        frame.value[frame.key] = value
        frame.marks[frame.key] = mark


def _take_key(stack: list[_Frame], line: int, text: str, plain: bool, faults: _Faults) -> None:
    frame = stack[-1]
    if plain:
        number = _number(text) if text[:1] in _NUMBER_STARTS else None
        if text in _NULLS or text in _BOOLEANS:
            faults.add(line, _path(stack), f"the key {text or 'is missing'}: keys are text")
        elif text == "<<":
            faults.add(line, _path(stack), "merge keys (<<) are not read: write the values out")
        elif isinstance(number, str):
            faults.add(line, _path(stack), f"the key {number}")
        elif number is not None:
            text = str(number)  # {24: 6000} is meant as {"24": 6000}
    if text in frame.value:
        before = _line(frame.marks[text])
        faults.add(line, _path(stack), f"the key {text} is given twice, in line {before} before")
    frame.key = text
    frame.key_line = line


def _scalar(
    stack: list[_Frame], line: int, text: str, plain: bool, faults: _Faults
) -> tuple[Any, bool]:
    """Value of a scalar, and whether it is text."""
    if plain:
        if text[:1] in _NUMBER_STARTS:
            number = _number(text)
            if isinstance(number, str):
                if not faults.is_foreign:
                    faults.add(line, _path(stack), number)
            elif number is not None:
                return number, False
        elif text in _BOOLEANS:
            return _BOOLEANS[text], False
        elif text in _NULLS:
            return None, False
    if not text.isascii() and _SURROGATE.search(text):
        faults.add(line, _path(stack), "half of a surrogate pair: write the character itself")
    return text, True


_SURROGATE = re.compile("[\ud800-\udfff]")


def _path(stack: list[_Frame]) -> str:
    """Path of the value that comes next."""
    path = ""
    for frame in stack:
        if type(frame.value) is list:
            path += f"[{len(frame.value) - (frame is not stack[-1])}]"
        elif frame.key is not None:
            path += f".{frame.key}" if path else frame.key
    return path


# YAML

_TAG_DIRECTIVE = re.compile("(?:^|[\n\r\x85\u2028\u2029])%TAG")
_SHARED = "anchors and aliases are not read: write the value out where it is used"
_TAGGED = "tags are not read: remove {}, and put text in quotes"


def _yaml_events(text: str, faults: _Faults) -> Iterator[_Event]:
    if len(_TAG_DIRECTIVE.findall(text)) > DIRECTIVES_MAX:
        raise faults.stop(1, "%TAG directives: tags are not read, remove them")
    try:
        event: Any
        for event in yaml.parse(text, Loader=YAML_LOADER):
            kind = type(event)
            if kind is yaml.ScalarEvent:
                refused = _refusal(event) if event.anchor or event.tag else ""
                plain = event.implicit[0] and not event.style
                yield _SCALAR, event.start_mark.line + 1, event.value, plain, refused
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                refused = _refusal(event) if event.anchor or event.tag else ""
                start = _MAP if kind is yaml.MappingStartEvent else _LIST
                yield start, event.start_mark.line + 1, "", False, refused
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                yield _END, 0, "", False, ""
            elif kind is yaml.AliasEvent:
                yield _SCALAR, event.start_mark.line + 1, "", False, _SHARED
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise faults.stop(line, f"not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The pure parser raises the latter two for escapes beyond Unicode.
        raise faults.stop(1, f"not YAML: {error}") from None


def _refusal(event: Any) -> str:
    return _SHARED if event.anchor else _TAGGED.format(event.tag)


# JSON

_JSON_TOKEN = re.compile(
    r"""[ \t\n\r]*+(?:
        (?P<mark>[{}\[\],:])
      | (?P<text>"(?:[^"\\\x00-\x1f]++|\\.)*+")
      | (?P<plain>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?+(?![\w.])
        |(?:true|false|null)(?!\w))
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)


def _json_events(text: str, faults: _Faults) -> Iterator[_Event]:
    """Events of JSON values, one after the other. What may come next is one of the words `due`."""
    value, first_item, colon = "a value", "a value or ]", "a colon"
    key, first_key, more = "a key", "a key or }", "a comma or the end"
    nesting: list[str] = []  # the closing marks that are due
    due = value
    position, line = 0, 1
    while token := _JSON_TOKEN.match(text, position):
        kind = str(token.lastgroup)
        piece = token[kind]
        line += text.count("\n", position, token.start(kind))
        position = token.end()
        if kind == "text" and due in (key, first_key):
            yield _SCALAR, line, _unescaped(piece, line, faults), False, ""
            due = colon
        elif kind == "text" and due in (value, first_item):
            yield _SCALAR, line, _unescaped(piece, line, faults), False, ""
            due = more if nesting else value
        elif kind == "plain" and due in (value, first_item):
            yield _SCALAR, line, piece, True, ""
            due = more if nesting else value
        elif piece in ("{", "[") and due in (value, first_item):
            yield _MAP if piece == "{" else _LIST, line, "", False, ""
            nesting.append("}" if piece == "{" else "]")
            due = first_key if piece == "{" else first_item
        elif nesting and piece == nesting[-1] and due in (more, first_key, first_item):
            yield _END, line, "", False, ""
            nesting.pop()
            due = more if nesting else value
        elif piece == "," and due == more:
            due = key if nesting[-1] == "}" else value
        elif piece == ":" and due == colon:
            due = value
        elif kind == "end" and not nesting:
            return
        else:
            raise faults.stop(line, f"not JSON: {due} is wanted here")
    rest = text[position:].lstrip(" \t\r\n")
    line += text.count("\n", position, len(text) - len(rest))
    raise faults.stop(line, f"not JSON: {due} is wanted here")


def _unescaped(piece: str, line: int, faults: _Faults) -> str:
    if "\\" not in piece:
        return piece[1:-1]
    try:
        return str(json.loads(piece))
    except ValueError:
        raise faults.stop(line, f"not JSON: an escape in {piece[:60]} is not known") from None


# TOML

_TOML_AT = re.compile(r" \(at line (\d+), column \d+\)$")


def _read_toml(text: str, faults: _Faults) -> list[Document]:
    if len(text) > TOML_SIZE_MAX:
        raise faults.stop(1, "more than 1 MiB of TOML: settings are smaller, objects come as YAML")
    for number, row in enumerate(text.split("\n"), 1):
        if row.count(".") > TOML_DOTS_MAX:
            raise faults.stop(number, f"more than {TOML_DOTS_MAX} dots in a line: break it")
    try:
        value = tomllib.loads(text, parse_float=_Fraction)
    except (ValueError, RecursionError) as error:
        # A ValueError beside TOML's own comes from numbers with thousands of digits.
        found = _TOML_AT.search(str(error))
        problem = _TOML_AT.sub("", str(error))
        raise faults.stop(int(found[1]) if found else 1, f"not TOML: {problem}") from None
    lines = _toml_lines(text)
    value, marks = _plain_toml(value, "", lines, 1, faults)
    if faults.causes:
        raise _Enough
    return [Document(value, faults.what, 1, marks)] if value else []


class _Fraction(str):
    """Source text of a TOML number with a fraction."""


def _toml_lines(text: str) -> dict[str, int]:
    """Lines of tables and keys as far as they are written plainly. tomllib tells none."""
    lines: dict[str, int] = {}
    prefix = ""
    for number, row in enumerate(text.split("\n"), 1):
        row = row.strip()
        if row.startswith("["):
            prefix = _bare(row.lstrip("[").partition("]")[0])
            lines.setdefault(prefix, number)
        elif "=" in row:
            key = _bare(row.partition("=")[0])
            lines.setdefault(f"{prefix}.{key}" if prefix else key, number)
    return lines


def _bare(key: str) -> str:
    return key.replace('"', "").replace("'", "").replace(" ", "")


def _plain_toml(
    value: Any, path: str, lines: dict[str, int], line: int, faults: _Faults, depth: int = 0
) -> tuple[Any, Any]:
    """The value of builtins that the other formats would give, and its marks."""
    line = lines.get(path, line)
    if depth > DEPTH_MAX:
        raise faults.stop(line, f"nested deeper than {DEPTH_MAX}", path)
    if isinstance(value, dict):
        items = {
            key: _plain_toml(v, f"{path}.{key}" if path else key, lines, line, faults, depth + 1)
            for key, v in value.items()
        }
        marks = {None: line} | {key: mark for key, (_, mark) in items.items()}
        return {key: item for key, (item, _) in items.items()}, marks
    if isinstance(value, list):
        rows = [
            _plain_toml(v, f"{path}[{i}]", lines, line, faults, depth + 1)
            for i, v in enumerate(value)
        ]
        return [row for row, _ in rows], [line, *(mark for _, mark in rows)]
    if isinstance(value, _Fraction):
        if not faults.is_foreign:
            what = f"{value} is a number with a fraction: write it in quotes if text is meant"
            faults.add(line, path, what)
        value = str(value)
    elif isinstance(value, bool):
        return value, (line, str(value).lower())
    elif isinstance(value, int):
        if abs(value) > INTEGER_MAX:
            faults.add(line, path, "a number beyond 2^53-1: write it in quotes if text is meant")
        return value, (line, str(value) if abs(value) <= INTEGER_MAX else "")
    elif isinstance(value, (date, time)):
        return value.isoformat(), line
    return value, line
