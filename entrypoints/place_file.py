"""Small files of a data directory that say what its log is: `DIR/store`, `DIR/follow`."""

from pathlib import Path
from typing import TypeVar

import msgspec

from kudurru.adapters.secret_files import write_private
from kudurru.domain.errors import StorageFailed

T = TypeVar("T", bound=msgspec.Struct)


def read_file(path: Path, type_: type[T], advice: str) -> T | None:
    """None where there is none. Raises: StorageFailed, with what to do, for one that cannot be
    read: to guess then could be a fork."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StorageFailed(f"{path} cannot be read ({error}): {advice}") from error


def write_file(path: Path, place: msgspec.Struct) -> None:
    """Whole or not at all, and durable. Raises: StorageFailed."""
    try:
        write_private(path, msgspec.json.encode(place) + b"\n")
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written: {error.strerror}") from error
