"""The settings file, where kudurru writes it: whole or not at all, its other keys as they were.

Comments are lost: what is written is one line for each key.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from kudurru.adapters.data_dir import sync_folder
from kudurru.domain.errors import Cause, Invalid, StorageFailed

MODE = 0o640
MOUNTS = Path("/proc/self/mountinfo")
"""A mount a line, the fifth word is where; Linux has it."""
HEAD = "# Written by kudurru too, which keeps the keys here and loses comments.\n"


def config_map_of(path: Path) -> Path | None:
    """The folder where Kubernetes puts a ConfigMap, or a Secret, whose content the file is; None
    for a file of another kind.

    The kubelet keeps each version in a folder of its own: the file is a link to `..data/NAME`, and
    `..data` one to the newest version."""
    data = path.parent / "..data"
    try:
        is_there = data.is_symlink() and path.resolve().is_relative_to(data.resolve())
    except (OSError, RuntimeError):
        return None  # links in a circle, say
    return path.parent if is_there else None


class SettingsDraft:
    """A new content that goes to disk beside the file, and then takes its place. Entered it is
    written, and left it is gone unless it was published."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        """`values` by key, as a file gives them. Raises: Invalid for a form that is not written."""
        self._named = path
        self._text = _text(path, values)

    def write(self) -> None:
        """Raises: Invalid for a file that cannot be replaced, StorageFailed."""
        if _is_mount(self._path):
            fault = (
                f"{self._path} is a mount of its own, in whose place no new file can be put: mount "
                "its folder instead, or change it where it comes from"
            )
            raise Invalid("settings", [Cause("settingsFile", fault)])
        try:
            with suppress(FileNotFoundError):
                self._draft.unlink()  # of a process that was killed
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(self._draft, flags, MODE), "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), MODE)
                file.write(self._text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.discard()
            raise self._failed(error) from error

    @cached_property
    def _path(self) -> Path:
        return Path(os.path.realpath(self._named))  # a link stays one

    @property
    def _draft(self) -> Path:
        return self._path.with_name(f".{self._path.name}.kudurru")

    def publish(self) -> None:
        """Raises: StorageFailed."""
        try:
            self._draft.replace(self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            self.discard()
            raise self._failed(error) from error

    def discard(self) -> None:
        with suppress(OSError):
            self._draft.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.write()
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()  # does nothing once it was published

    def _failed(self, error: OSError) -> StorageFailed:
        return StorageFailed(
            f"the settings file {self._path} cannot be written: {error.strerror}; let this user "
            "write in its folder, or change it where it comes from"
        )


def _is_mount(path: Path) -> bool:
    """Whether a file is bound to its place, as containers have them; also one of the same disk,
    which its device does not tell."""
    try:
        lines = MOUNTS.read_bytes().splitlines()
    except OSError:
        return os.path.ismount(path)
    escaped = os.fsencode(path).replace(b"\\", rb"\134").replace(b" ", rb"\040")
    escaped = escaped.replace(b"\t", rb"\011").replace(b"\n", rb"\012")
    return any(line.split(b" ", 5)[4:5] == [escaped] for line in lines)


def _text(path: Path, values: Mapping[str, Any]) -> str:
    """JSON is YAML too, so each value is written as that."""
    if path.suffix == ".toml":
        fault = f"{path} is TOML, which kudurru reads and does not write: change it by hand"
        raise Invalid("settings", [Cause("settingsFile", fault)])
    if path.suffix == ".json":
        return json.dumps(values, indent=2) + "\n"
    lines = [f"{json.dumps(key)}: {json.dumps(value)}\n" for key, value in values.items()]
    return HEAD + "".join(lines)
