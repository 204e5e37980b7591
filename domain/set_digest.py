"""A digest of a set that costs what changed, not what exists.

The content hash of a zone and the digest of a projection are asked for after every change, so they
must not read everything again. The digest is a sum modulo 2^2048 of SHAKE-256 of each element:
order does not matter, an element is added and taken away in constant time. This is AdHash
(Bellare and Micciancio, 1997); with 2048 bits the generalized birthday attack (Wagner, 2002),
which finds other elements with the same sum, costs about 2^90. A short sum, or an exclusive or,
would be forged in seconds.
"""

from hashlib import sha256, shake_256

_SUM_OCTETS = 256
_MODULUS_MASK = (1 << 8 * _SUM_OCTETS) - 1


class SetDigest:
    """Digest of byte strings. The caller adds each element once and removes only what it added:
    the digest itself holds no elements and cannot tell."""

    __slots__ = ("_sum",)

    def __init__(self) -> None:
        self._sum = 0

    def add(self, *elements: bytes) -> None:
        self.shift(sum(map(number_of, elements)))

    def remove(self, element: bytes) -> None:
        self.shift(-number_of(element))

    def shift(self, number: int) -> None:
        """Add the number of an element, or take it away: for an element of several sets, as its
        number is what costs."""
        self._sum = (self._sum + number) & _MODULUS_MASK

    def __bool__(self) -> bool:
        """False for the empty set."""
        return self._sum != 0

    def hexdigest(self) -> str:
        """SHA-256 over the sum as 256 octets, most significant first."""
        return sha256(self.to_bytes()).hexdigest()

    def copy(self) -> "SetDigest":
        twin = SetDigest()
        twin._sum = self._sum
        return twin

    def to_bytes(self) -> bytes:
        """The sum, to go on from later."""
        return self._sum.to_bytes(_SUM_OCTETS, "big")

    @classmethod
    def from_bytes(cls, octets: bytes) -> "SetDigest":
        """What `to_bytes` gave."""
        found = cls()
        found._sum = int.from_bytes(octets, "big") & _MODULUS_MASK
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SetDigest) and self._sum == other._sum

    __hash__ = None  # type: ignore[assignment]  # it changes, so it is no key

    def __repr__(self) -> str:
        return f"SetDigest({self.hexdigest()})"


def number_of(element: bytes) -> int:
    return int.from_bytes(shake_256(element).digest(_SUM_OCTETS), "big")
