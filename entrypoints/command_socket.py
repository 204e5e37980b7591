"""Where the socket of a data directory is.

It is in the directory, `DIR/kudurru.sock`, unless that path is too long for a socket (sun_path
holds 108 octets on Linux, 104 elsewhere): then it is `<hash>.sock` in a folder of our own below
$XDG_RUNTIME_DIR, or below /run, and `DIR/socket` says where.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from kudurru.adapters.data_dir import DataDir
from kudurru.domain.errors import StorageFailed

PATH_MAX = 100
"""Octets of a socket's path, with some to spare."""


@contextmanager
def placed(directory: DataDir) -> Iterator[Path]:
    """The path for a server of the directory to listen on; the caller holds the directory's lock.
    Raises: StorageFailed when the folder for it cannot be made, or others can write to it."""
    try:
        directory.socket_place.unlink(missing_ok=True)
    except OSError as error:
        raise _not_written(directory.socket_place, error) from None
    path = _real(directory.socket)
    if _fits(path):
        yield path
        return
    folder = _runtime_folder()
    path = folder / _name(directory)
    if not _fits(path):
        raise _unusable(folder, "its path is too long as well")
    _make_private(folder)
    try:
        directory.socket_place.write_text(f"{path}\n")
    except OSError as error:
        raise _not_written(directory.socket_place, error) from None
    try:
        yield path
    finally:
        with suppress(OSError):  # whoever finds it finds that nobody listens there
            directory.socket_place.unlink(missing_ok=True)


def find(directory: DataDir) -> Path:
    """The path where a server of the directory would listen."""
    try:
        path = Path(directory.socket_place.read_text().rstrip("\n"))
    except (OSError, ValueError):
        return _real(directory.socket)
    # A copy of a directory still names the socket of the original, which is another node.
    return path if path.name == _name(directory) else _real(directory.socket)


def _real(path: Path) -> Path:
    """The path of a file in the directory, with no detours in it: they count for its length."""
    return Path(os.path.realpath(path.parent)) / path.name


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= PATH_MAX


def _name(directory: DataDir) -> str:
    return sha256(os.fsencode(_real(directory.socket))).hexdigest()[:16] + ".sock"


def _runtime_folder() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/run") / "kudurru"


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise _unusable(folder, error.strerror or str(error)) from None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _unusable(folder, "it must be a folder of this user, with mode 0700")


def _not_written(path: Path, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"{path}: {error.strerror} - free space on that disk, or mend the rights of that folder"
    )


def _unusable(folder: Path, why: str) -> StorageFailed:
    return StorageFailed(
        f"{folder} cannot hold the command socket: {why} - give a data directory with a shorter "
        "path, or set XDG_RUNTIME_DIR to a folder of this user"
    )
