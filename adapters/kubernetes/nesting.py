"""JSON that is nested deeper than can be read, without what is too deep.

An API server takes ten thousand levels (in managedFields, say, which no schema holds); Python's
stack ends at a tenth of that, also for parts that nobody wants. So what could not be read is read
once more with every array and object below DEPTH_MAX emptied. Nothing of ours is that deep: in a
spec it is below an unknown field, for which the object is refused.
"""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import msgspec

DEPTH_MAX = 64
TOKENS = 20_000
"""Looked at in some milliseconds, before others have their turn."""

# Possessive: no text makes it try twice.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)


def read(octets: bytes | msgspec.Raw, type_: Any = Any) -> Any:
    """For one object. Raises: msgspec.DecodeError, UnicodeDecodeError."""
    try:
        return msgspec.json.decode(octets, type=type_)
    except RecursionError:
        return msgspec.json.decode(b"".join(_shallow(bytes(octets))), type=type_)


async def read_slowly(octets: bytes, type_: Any = Any) -> Any:
    """For an answer of any size. Raises as `read` does."""
    try:
        return msgspec.json.decode(octets, type=type_)
    except RecursionError:
        pass
    parts = []
    for part in _shallow(octets):
        parts.append(part)
        await asyncio.sleep(0)
    return msgspec.json.decode(b"".join(parts), type=type_)


def _shallow(octets: bytes) -> Iterator[bytes]:
    """In parts, each of which takes some milliseconds at most."""
    depth = begin = 0
    for number, found in enumerate(_TOKEN.finditer(octets), 1):
        match found[0]:
            case b"[" | b"{":
                depth += 1
                if depth == DEPTH_MAX + 1:
                    yield octets[begin : found.end()]
                    begin = len(octets)  # until it is closed
            case b"]" | b"}":
                if depth == DEPTH_MAX + 1:
                    begin = found.start()
                depth -= 1
        if number % TOKENS == 0:
            yield b""
    yield octets[begin:]
