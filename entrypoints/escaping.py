"""Texts from outside, where they are shown."""


def escape(text: str) -> str:
    """Text that cannot move the cursor, ring or colour: control characters, and those that change
    the direction of writing, as \\xNN or \\uNNNN."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(c: str) -> str:
    return f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\u{ord(c):04x}"
