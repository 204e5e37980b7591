"""Canonical JSON: the one encoding of what is hashed, stored and shown.

RFC 8785 within a profile (ASCII keys; strings, booleans, null, integers below 2^53; no floats),
which msgspec's sorted JSON writes byte for byte; a test compares it with a reference
implementation.
"""

from typing import Any

import msgspec

INTEGER_MAX = 2**53 - 1

_canonical = msgspec.json.Encoder(order="sorted")


def canonical(value: Any) -> bytes:
    """Canonical JSON of builtins and structs. The caller keeps to the profile: see `in_profile`."""
    return _canonical.encode(value)


def in_profile(value: Any) -> bool:
    """Whether `value` (builtins only) may be encoded by `canonical`."""
    if value is None or isinstance(value, (bool, str)):
        return True
    if isinstance(value, int):
        return abs(value) <= INTEGER_MAX
    if isinstance(value, dict):
        return all(isinstance(k, str) and k.isascii() and in_profile(v) for k, v in value.items())
    return isinstance(value, list) and all(map(in_profile, value))
