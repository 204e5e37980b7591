"""Regular expressions that people write, checked when they are applied. They run on RE2, in time
that grows with the text and nothing else (`domain.lists.patterns`)."""

MEMORY_MAX = 1 << 20
"""Octets that RE2 may take for one: what needs more is refused."""


def fault(pattern: str) -> str | None:
    """What RE2 has against a pattern; None: nothing. RE2 is loaded when the first one is met."""
    import re2

    from kudurru.domain.lists.patterns import options_of

    try:
        re2.compile(pattern, options_of(MEMORY_MAX))
    except re2.error as error:
        why = error.args[0] if error.args else str(error)
        return why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
    return None
