"""Zone files on disk: read whole, and only where they may be read from.

A file is read at once, never while it is parsed: parsing between small reads would starve a serving
thread. An $INCLUDE is resolved against the folder of the zone file, as BIND and NSD do with their
directory, and must lie within that folder once links are followed.
"""

import os
import stat
from pathlib import Path

from kudurru.domain.dns.master_file import CannotRead, Include
from kudurru.domain.errors import Cause, Invalid

_LOOKED_AT = 8192  # octets: enough to tell a picture or an archive from text


def open_zone_file(path: Path) -> bytes:
    """Content of the zone file. Raises Invalid where it cannot be read or is no text."""
    try:
        return _content(path)
    except CannotRead as error:
        raise Invalid(str(path), [Cause("", str(error))]) from None


def include_from(path: Path) -> Include:
    """What $INCLUDE may read when the zone file is at `path`. A file's name is `path`'s folder and
    where it really lies below, so that one file has one name."""
    folder = Path(os.path.realpath(path)).parent

    def include(name: str, _from_file: str) -> tuple[str, bytes]:
        try:
            real = Path(os.path.realpath(folder / name, strict=True))
        except (OSError, ValueError) as error:
            raise CannotRead(f"$INCLUDE of {name!r}: {_why(error)} in {folder}") from None
        if not real.is_relative_to(folder):
            raise CannotRead(f"$INCLUDE of {name!r} leaves the folder of the zone file, {folder}")
        try:
            return str(path.parent / real.relative_to(folder)), _content(real)
        except CannotRead as error:
            raise CannotRead(f"$INCLUDE of {name!r}: {error}") from None

    return include


def _content(path: Path) -> bytes:
    try:
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind):  # a pipe without a writer would hold us for ever
            what = "a folder" if stat.S_ISDIR(kind) else "no regular file"
            raise CannotRead(f"it is {what}; give a master file")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise CannotRead(_why(error)) from None
    if b"\x00" in data[:_LOOKED_AT] and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        raise CannotRead("it is binary; give a master file, which is text")
    return data


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "it may not be read by this user"
    return getattr(error, "strerror", None) or str(error)
