"""Secret parts of objects.

A secret never enters the log: it is sealed with the node's key and kept beside it, written in the
same transaction as the object's event. The event holds a salted digest, so that the log says which
secret an object had without telling it, and a secret that belongs to another version of the object
(a key that was revoked and came back by a restore, a table from an old backup) is not used.
"""

import hmac
from hashlib import sha256

FROM_CLUSTER = "kubernetes:secrets"
"""Manager of objects that Secrets of a cluster became."""

SALT_SIZE = 16
_PREFIX = "sha256"
_HEX_SIZES = (2 * SALT_SIZE, 64)


def digest_of(secret: bytes, salt: bytes) -> str:
    """What an event says of a secret. `salt` has SALT_SIZE unpredictable octets."""
    return f"{_PREFIX}:{salt.hex()}:{sha256(salt + secret).hexdigest()}"


def is_digest(text: str) -> bool:
    parts = text.split(":")
    return (
        len(parts) == 3
        and parts[0] == _PREFIX
        and tuple(map(len, parts[1:])) == _HEX_SIZES
        and all(set(part) <= set("0123456789abcdef") for part in parts[1:])
    )


def matches(secret: bytes, digest: str) -> bool:
    """Whether a secret is the one that an event speaks of."""
    if not is_digest(digest):
        return False
    salt = bytes.fromhex(digest.split(":")[1])
    return hmac.compare_digest(digest_of(secret, salt), digest)
