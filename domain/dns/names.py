"""Domain names (RFC 1035 section 3.1) as octets.

A `Name` is absolute, in uncompressed wire form with its final zero octet, letter case as given, at
most 255 octets. Wire form is the form of every comparison, hash and answer here, so text is turned
into it once, at the edge. `key()` is the identity of a name: ASCII letters lowered (RFC 4343).
Lowering the whole wire form is safe because a length octet is at most 63, below "A".
"""

import re
from functools import lru_cache
from typing import NewType

Name = NewType("Name", bytes)

ROOT = Name(b"\x00")
NAME_MAX = 255
LABEL_MAX = 63

TAILS_MAX = 4_096
"""Ends of names that are remembered as wire: a file or a log has many names of a few zones."""

_LENGTH = tuple(bytes((size,)) for size in range(LABEL_MAX + 1))

# What stands for itself in a name: printable ASCII without quote, parentheses, semicolon, backslash
_PLAIN = re.compile(r"[!#-'*-:<-\[\]-~]+")
_PIECE = re.compile(
    r"(?P<plain>[!#-'*\-+,/-:<-\[\]-~]+)|(?P<dot>\.)|(?P<decimal>\\[0-9]{3})"
    r"|(?P<escaped>\\[!-/:-~ ])|(?P<bad>.)",
    re.DOTALL,
)
_ESCAPE = re.compile(rb'["().;\\@$\x00-\x20\x7f-\xff]')
_ESCAPE_BUT_DOT = re.compile(rb'["();\\@$\x00-\x20\x7f-\xff]')


class BadName(ValueError):
    """A text or wire form that is no domain name; the message says why."""


def from_text(text: str, origin: Name | None = None) -> Name:
    """Name from presentation form (RFC 1035 section 5.1, escapes included).

    A relative name is completed with `origin`, and `@` is the origin; without an origin every name
    counts as absolute. Raises BadName.
    """
    first, _, rest = text.partition(".")
    if rest and (origin is None or rest[-1] == "."):
        tail = _plain_tail(rest)
        if tail is not None and _PLAIN.fullmatch(first):
            size = len(first)
            if size <= LABEL_MAX and size + len(tail) < NAME_MAX:
                return Name(_LENGTH[size] + first.encode("ascii") + tail)
    return _from_any_text(text, origin)


@lru_cache(TAILS_MAX)
def _plain_tail(text: str) -> bytes | None:
    """Wire of what follows a first label, an absolute name; None where it needs a closer look."""
    if not _PLAIN.fullmatch(text):
        return None
    labels = text.removesuffix(".").encode("ascii").split(b".")
    if not all(0 < len(label) <= LABEL_MAX for label in labels):
        return None
    return b"".join([_LENGTH[len(label)] + label for label in labels]) + ROOT


def _from_any_text(text: str, origin: Name | None) -> Name:
    if text == "@":
        if origin is None:
            raise BadName("@ stands for an origin, and there is none here; write the name out")
        return origin
    if text == ".":
        return ROOT
    if _PLAIN.fullmatch(text):
        labels = text.encode("ascii").split(b".")
    elif text:
        labels = _labels_with_escapes(text)
    else:
        raise BadName("empty name")
    tail: bytes = origin if origin is not None else ROOT
    if not labels[-1]:  # the text ends in an unescaped dot
        labels.pop()
        tail = ROOT
    try:
        wire = b"".join([_LENGTH[len(label)] + label for label in labels]) + tail
    except IndexError:
        size = max(map(len, labels))
        raise BadName(f"a label of {size} octets in {text!r}; at most {LABEL_MAX}") from None
    if b"" in labels:
        raise BadName(f"{text!r} has an empty label")
    if len(wire) > NAME_MAX:
        raise BadName(f"{text!r} takes {len(wire)} octets; at most {NAME_MAX}")
    return Name(wire)


def _labels_with_escapes(text: str) -> list[bytes]:
    """Labels of a text with escapes; the last one is empty where the text ends in a free dot."""
    labels: list[bytes] = []
    label = bytearray()
    for part in _PIECE.finditer(text):
        if part.lastgroup == "plain":
            label += part[0].encode("ascii")
        elif part.lastgroup == "dot":
            labels.append(bytes(label))
            label.clear()
        elif part.lastgroup == "decimal" and int(part[0][1:]) < 256:
            label.append(int(part[0][1:]))
        elif part.lastgroup == "escaped":
            label.append(ord(part[0][1]))
        else:
            raise BadName(_why_not(text, part))
    labels.append(bytes(label))
    return labels


def _why_not(text: str, part: "re.Match[str]") -> str:
    found = part[0]
    if found[0] == "\\":
        escape = text[part.start() : part.start() + 4]
        return f"bad escape {escape!r} in {text!r}; write \\DDD, at most 255"
    if not found.isascii():
        return f"{text!r} is not ASCII; write internationalized names as xn-- labels"
    return f"{found!r} in {text!r} must be escaped"


def to_text(name: bytes, *, final_dot: bool = True) -> str:
    """Presentation form, absolute; special characters escaped (RFC 4343 section 2.1)."""
    if name == ROOT:
        return "."
    dotted = bytearray(name)  # with a dot in the place of each length
    at = count = 0
    while size := name[at]:
        dotted[at] = 0x2E
        at += size + 1
        count += 1
    joined = bytes(dotted[1:at])
    # One look at the whole, as nearly no name has anything to escape.
    if _ESCAPE_BUT_DOT.search(joined) or joined.count(b".") >= count:
        joined = b".".join([_ESCAPE.sub(_escape, label) for label in labels(name)])
    text = joined.decode("ascii")
    return text + "." if final_dot else text


def _escape(match: "re.Match[bytes]") -> bytes:
    octet = match[0][0]
    return b"\\" + match[0] if 0x21 <= octet < 0x7F else b"\\%03d" % octet


def key(name: bytes) -> Name:
    """Identity of a name: its wire form with ASCII letters lowered."""
    return Name(name.lower())


def labels(name: bytes) -> list[bytes]:
    """Labels from the left, without the empty root label."""
    found = []
    i = 0
    while size := name[i]:
        found.append(name[i + 1 : i + 1 + size])
        i += size + 1
    return found


def from_labels(parts: list[bytes]) -> Name:
    """Name of raw labels. Raises BadName where it would be too long."""
    if any(not 0 < len(part) <= LABEL_MAX for part in parts):
        raise BadName("a label is empty or longer than 63 octets")
    wire = b"".join(bytes((len(part),)) + part for part in parts) + b"\x00"
    if len(wire) > NAME_MAX:
        raise BadName(f"the name takes {len(wire)} octets; at most {NAME_MAX}")
    return Name(wire)


def parent(name: bytes) -> Name:
    """The name without its first label. The root has none: do not ask."""
    return Name(name[name[0] + 1 :])


def is_within(name_key: bytes, ancestor_key: bytes) -> bool:
    """Whether a name is `ancestor` or below it. Both are keys."""
    if not name_key.endswith(ancestor_key):
        return False
    if name_key[name_key[0] + 1 :] == ancestor_key:  # right below it, as most are
        return True
    # The suffix must begin at a label boundary: an octet inside a label may look like a length.
    rest = len(name_key) - len(ancestor_key)
    i = 0
    while i < rest:
        i += name_key[i] + 1
    return i == rest


def is_wildcard(name: bytes) -> bool:
    """Whether the first label is a lone asterisk (RFC 4592 section 2.1.1)."""
    return name[:2] == b"\x01*"


def canonical_order(name: bytes) -> tuple[bytes, ...]:
    """Sort key of RFC 4034 section 6.1."""
    return tuple(reversed(labels(name.lower())))


def end_of(message: bytes, offset: int) -> int:
    """Offset behind an uncompressed name in a message; 0 where there is none that is whole. A zero
    octet may also be part of a label, so looking for one is not enough."""
    at = offset
    try:
        while size := message[at]:
            if size > LABEL_MAX:
                return 0
            at += size + 1
    except IndexError:
        return 0
    return at + 1 if at + 1 - offset <= NAME_MAX else 0


def from_wire(message: bytes, offset: int) -> tuple[Name, int]:
    """Name at an offset of a message, compression followed (RFC 1035 section 4.1.4), and the
    offset after it. What a pointer leads to must be a prior occurrence: it ends before the name
    begins that points there, so a name says the same whatever comes after it. Raises BadName.
    """
    parts: list[bytes] = []
    total = 1
    after = 0
    begin, end = offset, len(message)  # of the occurrence that is read
    i = offset
    try:
        while size := message[i]:
            if size >= 0xC0:
                target = (size & 0x3F) << 8 | message[i + 1]
                i += 2
                after = after or i
                if target >= begin:
                    raise BadName("a compression pointer does not go backwards")
                if i > end:
                    raise BadName(_NOT_PRIOR)
                begin, end = target, begin
                i = target
                continue
            if size > LABEL_MAX:
                raise BadName("a label type that is not defined")
            total += size + 1
            if total > NAME_MAX:
                raise BadName("the name is longer than 255 octets")
            part = message[i : i + size + 1]
            if len(part) <= size:
                raise BadName("the name is cut short")
            parts.append(part)
            i += size + 1
    except IndexError:
        raise BadName("the name is cut short") from None
    if i >= end:
        raise BadName(_NOT_PRIOR)
    parts.append(b"\x00")
    return Name(b"".join(parts)), after or i + 1


_NOT_PRIOR = "a compression pointer leads to a name that does not end before it"
