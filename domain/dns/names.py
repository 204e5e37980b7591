"""Domain names (RFC 1035 section 3.1) as octets.

A `Name` is absolute, in uncompressed wire form with its final zero octet, letter case as given, at
most 255 octets. Wire form is the form of every comparison, hash and answer here, so text is turned
into it once, at the edge. `key()` is the identity of a name: ASCII letters lowered (RFC 4343).
Lowering the whole wire form is safe because a length octet is at most 63, below "A".
"""

import re
from typing import NewType

Name = NewType("Name", bytes)

ROOT = Name(b"\x00")
NAME_MAX = 255
LABEL_MAX = 63

_ESCAPE = re.compile(rb'["().;\\@$\x00-\x20\x7f-\xff]')


class BadName(ValueError):
    """A text or wire form that is no domain name; the message says why."""


def from_text(text: str, origin: Name | None = None) -> Name:
    """Name from presentation form (RFC 1035 section 5.1, escapes included).

    A relative name is completed with `origin`; without an origin every name counts as absolute.
    `@` is the origin. Raises BadName.
    """
    if not text:
        raise BadName("empty name")
    if text == "@" and origin is not None:
        return origin
    if text == ".":
        return ROOT
    absolute = text[-1] == "." and (len(text) < 2 or text[-2] != "\\" or _is_escaped_end(text))
    if "\\" in text or not text.isascii():
        labels = _labels_with_escapes(text[:-1] if absolute else text)
    else:
        labels = (text[:-1] if absolute else text).encode("ascii").split(b".")
        if not _is_plain(text):
            raise BadName(f"{text!r} holds a character that must be escaped")
    parts = []
    for label in labels:
        size = len(label)
        if size == 0:
            raise BadName(f"{text!r} has an empty label")
        if size > LABEL_MAX:
            raise BadName(f"a label of {size} octets in {text!r}; at most {LABEL_MAX}")
        parts.append(size.to_bytes(1, "big") + label)
    wire = b"".join(parts) + (origin if origin is not None and not absolute else b"\x00")
    if len(wire) > NAME_MAX:
        raise BadName(f"{text!r} takes {len(wire)} octets; at most {NAME_MAX}")
    return Name(wire)


_BAD_PLAIN = re.compile(r'[\s"();\x00-\x1f\x7f]')


def _is_plain(text: str) -> bool:
    return _BAD_PLAIN.search(text) is None


def _is_escaped_end(text: str) -> bool:
    """Whether the final dot stands free although a backslash is before it (`\\\\.`)."""
    slashes = len(text) - 1 - len(text[:-1].rstrip("\\"))
    return slashes % 2 == 0


def _labels_with_escapes(text: str) -> list[bytes]:
    labels: list[bytes] = []
    label = bytearray()
    i = 0
    while i < len(text):
        c = text[i]
        if c == "\\":
            digits = text[i + 1 : i + 4]
            if digits[:1].isascii() and digits[:1].isdigit():
                if (
                    len(digits) < 3
                    or not (digits.isascii() and digits.isdigit())
                    or int(digits) > 255
                ):
                    raise BadName(f"bad escape \\{digits} in {text!r}; write \\DDD, at most 255")
                label.append(int(digits))
                i += 4
                continue
            if not digits:
                raise BadName(f"{text!r} ends in a backslash")
            c = digits[0]
            if ord(c) > 126 or ord(c) < 32:
                raise BadName(f"{text!r} escapes a character that is not ASCII; write \\DDD")
            label.append(ord(c))
            i += 2
            continue
        if c == ".":
            labels.append(bytes(label))
            label.clear()
        elif ord(c) > 126:
            raise BadName(f"{text!r} is not ASCII; write internationalized names as xn-- labels")
        elif _BAD_PLAIN.match(c):
            raise BadName(f"{text!r} holds a character that must be escaped")
        else:
            label.append(ord(c))
        i += 1
    labels.append(bytes(label))
    return labels


def to_text(name: bytes, *, final_dot: bool = True) -> str:
    """Presentation form, absolute; special characters escaped (RFC 4343 section 2.1)."""
    if name == ROOT:
        return "."
    parts = []
    i = 0
    while size := name[i]:
        i += 1
        label = name[i : i + size]
        if _ESCAPE.search(label):
            label = _ESCAPE.sub(_escape, label)
        parts.append(label.decode("ascii"))
        i += size
    text = ".".join(parts)
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


def from_wire(message: bytes, offset: int) -> tuple[Name, int]:
    """Name at an offset of a message, compression followed (RFC 1035 section 4.1.4), and the
    offset after it. Pointers must go backwards. Raises BadName."""
    parts: list[bytes] = []
    total = 1
    after = 0
    lowest = offset
    i = offset
    try:
        while size := message[i]:
            if size >= 0xC0:
                target = (size & 0x3F) << 8 | message[i + 1]
                after = after or i + 2
                if target >= lowest:
                    raise BadName("a compression pointer does not go backwards")
                lowest = i = target
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
    parts.append(b"\x00")
    return Name(b"".join(parts)), after or i + 1
