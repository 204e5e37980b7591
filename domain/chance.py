"""Unpredictable numbers, drawn from an `Entropy` by the block: one call to the system for many."""

from kudurru.domain.ports import Entropy

BLOCK = 4096


class Chance:
    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._block = b""
        self._at = 0

    def octets(self, size: int) -> bytes:
        """At most a block of them, each given once."""
        if self._at + size > len(self._block):
            self._block = self._entropy.token(BLOCK)
            self._at = 0
        self._at += size
        return self._block[self._at - size : self._at]

    def bits(self, octets: int) -> int:
        return int.from_bytes(self.octets(octets), "big")

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1; even enough for the choice among a few."""
        return self.bits(4) % limit
