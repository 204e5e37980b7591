"""Files of `keys/`, and secrets of this node that are one random value each."""

import os
from pathlib import Path

from kudurru.adapters.data_dir import sync_folder
from kudurru.domain.errors import StorageFailed
from kudurru.domain.ports import Entropy


def secret_in(
    path: Path,
    size: int,
    entropy: Entropy,
    *,
    advice: str = "remove it, and the next start makes a new secret",
) -> bytes:
    """The secret of `size` octets in a file, as hexadecimal digits; made, with mode 0600, where
    there is none. Durable when it returns. `advice` is what to do about a damaged file.

    Raises: StorageFailed when the file cannot be read or written, or holds something else.
    """
    try:
        try:
            text = path.read_text("ascii")
        except FileNotFoundError:
            return _make(path, entropy.token(size))
        secret = bytes.fromhex(text)
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}; mend its rights or its disk") from error
    except ValueError:
        secret = b""
    if len(secret) != size:
        raise StorageFailed(f"{path} is damaged: {advice}")
    return secret


def _make(path: Path, secret: bytes) -> bytes:
    write_private(path, f"{secret.hex()}\n".encode())
    return secret


def write_private(path: Path, content: bytes) -> None:
    """Make a file of mode 0600, or put it in the place of another. It is there whole or not at
    all, whenever the process or the machine dies; durable when it returns. Raises: OSError."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)  # of a start that was cut short
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    unfinished.rename(path)
    sync_folder(path.parent)


def write_all(descriptor: int, content: bytes | bytearray) -> None:
    """A disk that fills up takes a part and says so only when asked again. Raises: OSError."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
