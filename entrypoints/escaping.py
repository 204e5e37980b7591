"""Texts from outside, where they are shown."""

import re


def escape(text: str) -> str:
    """Text that cannot move the cursor, ring or colour: control characters, and those that change
    the direction of writing, as \\xNN or \\uNNNN."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(c: str) -> str:
    return f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\u{ord(c):04x}"


def plain_json(json: str) -> str:
    """JSON in plain ASCII: some of the rest can move a cursor, and a locale may lack it."""
    return json if json.isascii() and "\x7f" not in json else _NOT_PLAIN.sub(_json_escape, json)


_NOT_PLAIN = re.compile(r"[^\n -~]")


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
