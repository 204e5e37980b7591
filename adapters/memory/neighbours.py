"""Neighbours that somebody names."""

from collections.abc import Mapping


class FixedNeighbours:
    """Implements `domain.ports.Neighbours`."""

    def __init__(self, known: Mapping[bytes, bytes] | None = None) -> None:
        self.known = dict(known or {})

    def mac_of(self, address: bytes) -> bytes:
        return self.known.get(address, b"")
