"""Ed25519, and the key of a log on disk.

keys/log.key       the key that signs checkpoints, mode 0600
keys/log.key.next  a new one that is about to take over, see `KeyFolder.promote`

A key file is one line as C2SP tools write it: PRIVATE+KEY+<name>+<id>+<base64 of 0x01 and seed>.
"""

import errno
import os
from base64 import b64encode
from pathlib import Path

from kudurru.adapters.data_dir import sync_folder
from kudurru.adapters.secret_files import write_private
from kudurru.domain.errors import StorageFailed
from kudurru.domain.ports import Entropy
from kudurru.domain.signed_note import ED25519, SigningKey, VerifierKey, from_base64

SEED_SIZE = 32
_PREFIX = "PRIVATE+KEY+"


def check_signature(public: bytes, signature: bytes, message: bytes) -> bool:
    """`domain.signed_note.CheckSignature`. The library is loaded when first used: most commands
    check nothing."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def signing_key(origin: str, seed: bytes) -> SigningKey:
    """The key of a seed under the name of a log: a key name is the origin of what it signs."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(seed)
    public = private.public_key().public_bytes_raw()
    return SigningKey(VerifierKey(origin, public), private.sign)


class KeyFolder:
    """`keys/` of a data directory, for the log called `origin`."""

    def __init__(self, folder: Path, origin: str, entropy: Entropy) -> None:
        self.path = folder / "log.key"
        self._next = folder / "log.key.next"
        self._origin = origin
        self._entropy = entropy

    def read(self) -> SigningKey | None:
        """The key, None when there is none. Raises: StorageFailed."""
        return self._read(self.path)

    def read_next(self) -> SigningKey | None:
        return self._read(self._next)

    def create(self) -> SigningKey:
        """A new key. Durable when it returns. Raises: StorageFailed, also when there is one."""
        if self.path.exists():
            raise _failed(self.path, FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)))
        return self._write(self.path)

    def create_next(self) -> SigningKey:
        """A key that takes over once the log says so. One that never did is thrown away."""
        return self._write(self._next)

    def promote(self) -> None:
        """Put the next key in the place of the other: after the log has adopted it, so that of
        two keys the log always says which one signs."""
        try:
            self._next.replace(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise _failed(self._next, error) from error

    def _read(self, path: Path) -> SigningKey | None:
        try:
            text = path.read_text().strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise _failed(path, error) from error
        parts = text.removeprefix(_PREFIX).split("+", 2)
        octets = from_base64(parts[2]) if len(parts) == 3 else None
        is_ours = text.startswith(_PREFIX) and octets is not None and octets[:1] == ED25519
        if octets is None or not is_ours or len(octets) != 1 + SEED_SIZE:
            raise StorageFailed(f"{path} is no signing key: put the right file back")
        return signing_key(self._origin, octets[1:])

    def _write(self, path: Path) -> SigningKey:
        seed = self._entropy.token(SEED_SIZE)
        key = signing_key(self._origin, seed)
        verifier = key.verifier
        private = b64encode(ED25519 + seed).decode()
        line = f"{_PREFIX}{verifier.name}+{verifier.id.hex()}+{private}\n"
        try:
            write_private(path, line.encode())
        except OSError as error:
            raise _failed(path, error) from error
        return key


def _failed(path: Path, error: Exception) -> StorageFailed:
    why = getattr(error, "strerror", None) or str(error)
    return StorageFailed(f"{path}: {why} - check the folder, its rights and the disk")
