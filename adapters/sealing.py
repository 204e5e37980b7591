"""Sealing of secrets with the key of a node: AES-256-GCM.

A sealed secret is an octet for the version (1), 4 octets that name the node key, a nonce of 12, and
the ciphertext with its tag. What the secret belongs to is authenticated with it, so that one does
not pass for another.
"""

from hashlib import sha256
from pathlib import Path

from kudurru.adapters.secret_files import secret_in
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.objects import Key
from kudurru.domain.ports import Entropy

NODE_KEY_SIZE = 32
_VERSION = b"\x01"
_ID_SIZE, _NONCE_SIZE, _TAG_SIZE = 4, 12, 16
_NONCE_AT = len(_VERSION) + _ID_SIZE
_HEAD_SIZE = _NONCE_AT + _NONCE_SIZE


class NodeKey:
    """Implements `domain.ports.SecretBox`. The file is read when first needed, and made where
    there is none when something is sealed."""

    def __init__(self, path: Path, entropy: Entropy, *, may_create: bool = True) -> None:
        self.path = path
        self._entropy = entropy
        self._may_create = may_create
        self._key = b""

    @property
    def id(self) -> str:
        """Eight digits that name the key, "" while there is none."""
        return _id_of(self._key).hex() if self._read() else ""

    def seal(self, owner: Key, secret: bytes) -> bytes:
        """Raises: StorageFailed when the key can be neither read nor made; Invalid when a key
        that somebody else provides is missing."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not self._read() and not self._may_create:
            raise Invalid("node.secretsKey", [Cause("", f"{self.path} does not exist")])
        key = self._key = secret_in(self.path, NODE_KEY_SIZE, self._entropy, advice=_ADVICE)
        nonce = self._entropy.token(_NONCE_SIZE)
        head = _VERSION + _id_of(key)
        sealed: bytes = AESGCM(key).encrypt(nonce, secret, head + owner.encode())
        return head + nonce + sealed

    def open(self, owner: Key, sealed: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not self._read() or self.id_of(sealed) != self.id:
            return None
        head, nonce = sealed[:_NONCE_AT], sealed[_NONCE_AT:_HEAD_SIZE]
        try:
            secret: bytes = AESGCM(self._key).decrypt(
                nonce, sealed[_HEAD_SIZE:], head + owner.encode()
            )
        except InvalidTag:
            return None
        return secret

    def id_of(self, sealed: bytes) -> str:
        if sealed[:1] != _VERSION or len(sealed) < _HEAD_SIZE + _TAG_SIZE:
            return ""
        return sealed[1 : 1 + _ID_SIZE].hex()

    def _read(self) -> bool:
        if not self._key and self.path.exists():
            self._key = secret_in(self.path, NODE_KEY_SIZE, self._entropy, advice=_ADVICE)
        return bool(self._key)


_ADVICE = "put the right file back; without it the secrets that it sealed have to be given again"


def _id_of(key: bytes) -> bytes:
    return sha256(b"kudurru node key\x00" + key).digest()[:_ID_SIZE]
