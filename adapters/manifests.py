"""Manifests from files, folders and standard input."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from kudurru.domain.errors import Cause, Invalid

SUFFIXES = (".yaml", ".yml", ".json", ".toml")
FILES_MAX = 10_000
FILE_BYTES_MAX = 64 << 20
"""Of one file; a document in it has a limit of its own."""


def read_manifest_files(files: Sequence[Path], stdin: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """(name, octets) of each file; `-` is standard input, a folder is its manifests in order of
    name, folders below it included, hidden ones not: a mounted ConfigMap has each file there again.
    Raises Invalid for what cannot be read."""
    for path in files:
        if str(path) == "-":
            yield "stdin", _bounded("stdin", stdin.read(FILE_BYTES_MAX + 1))
        elif path.is_dir():
            found = sorted(_manifests_in(path))
            if not found:
                _refuse(path, f"no manifests in this folder ({', '.join(SUFFIXES)})")
            if len(found) > FILES_MAX:
                _refuse(path, f"{len(found)} files; at most {FILES_MAX}")
            for file in found:
                yield str(file), _read(file)
        else:
            yield str(path), _read(path)


def _manifests_in(folder: Path) -> Iterator[Path]:
    """Raises Invalid for a folder that cannot be looked into: what is in it would be left out."""

    def refuse(fault: OSError) -> NoReturn:
        _refuse(Path(fault.filename), f"cannot be read: {fault.strerror}")

    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(parent) / name
            if path.suffix in SUFFIXES and not name.startswith(".") and path.is_file():
                yield path


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(str(path), file.read(FILE_BYTES_MAX + 1))
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror}")


def _bounded(name: str, data: bytes) -> bytes:
    if len(data) > FILE_BYTES_MAX:
        raise Invalid(name, [Cause("", f"more than {FILE_BYTES_MAX >> 20} MiB")])
    return data


def _refuse(path: Path, message: str) -> NoReturn:
    raise Invalid(str(path), [Cause("", message)])
