"""Canonical JSON: the one encoding of what is hashed, stored and shown.

RFC 8785 within a profile (ASCII keys; strings, booleans, null, integers below 2^53; no floats),
which msgspec's sorted JSON writes byte for byte; a test compares it with a reference
implementation.
"""

from typing import Any

import msgspec

INTEGER_MAX = 2**53 - 1
DEPTH_MAX = 64
"""Levels of arrays and objects: what reads it later may stand deeper in its stack."""

_canonical = msgspec.json.Encoder(order="sorted")


def canonical(value: Any) -> bytes:
    """Canonical JSON of builtins and structs. The caller keeps to the profile: see `in_profile`."""
    return _canonical.encode(value)


def in_profile(value: Any, depth: int = DEPTH_MAX) -> bool:
    """Whether `value` (builtins only) may be encoded by `canonical`: also whether it is not nested
    deeper than `depth`."""
    if depth < 0:
        return False
    if value is None or isinstance(value, (bool, str)):
        return True
    if isinstance(value, int):
        return abs(value) <= INTEGER_MAX
    if isinstance(value, dict):
        keys_fit = all(isinstance(key, str) and key.isascii() for key in value)
        return keys_fit and all(in_profile(one, depth - 1) for one in value.values())
    return isinstance(value, list) and all(in_profile(one, depth - 1) for one in value)
