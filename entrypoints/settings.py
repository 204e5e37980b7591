"""Settings of this process: the files, variables and flags that are there, read and laid over each
other (domain/settings_layers.py says how). Nothing else reads settings."""

import hashlib
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kudurru.adapters.settings_file import config_map_of
from kudurru.domain.documents import SIZE_MAX, Document, read_documents
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.settings import KEYS
from kudurru.domain.settings_changes import Layer
from kudurru.domain.settings_layers import (
    Resolved,
    given_by_document,
    given_by_environment,
    given_by_flags,
    given_by_values,
    resolve,
)
from kudurru.domain.settings_values import Given, Origin

SUFFIXES = frozenset({".yaml", ".yml", ".json", ".toml"})

Flags = Mapping[str, tuple[str, Any]]
"""Explicit command-line flags: key → flag, value."""

Stamp = tuple[tuple[str, int, int, int, int], ...]
"""Name, inode, size and times of each file that settings come from."""


class Sources(msgspec.Struct, frozen=True):
    """Where the settings of a process come from, but for the log."""

    config: Path | None  # the node file, or a folder of them
    environ: Mapping[str, str]
    flags: Flags = {}


class Content(msgspec.Struct, frozen=True):
    """A file as it was found."""

    path: Path
    data: bytes = b""
    error: OSError | None = None

    @property
    def is_missing(self) -> bool:
        return isinstance(self.error, FileNotFoundError | NotADirectoryError)


class Read(msgspec.Struct):
    """What the sources say, read once."""

    files: list[Given]
    outside: list[Given]  # environment and flags
    faults: list[Cause]
    settings_file: Path | None
    config_map: Path | None  # where the ConfigMap is mounted that the settings file is of
    had_file: bool  # the settings file was read, now or before
    digest: bytes  # of the content of all files

    def resolve(
        self,
        layer: Layer | None = None,
        memory: Mapping[str, Any] | None = None,
        *,
        is_asked: bool = False,
    ) -> Resolved:
        """The settings, with those of the log and of memory. Raises Invalid with every fault of the
        files and what is outside; what is wrong with the log is a warning, unless it `is_asked`
        whether all of it fits."""
        layer, kept = layer or Layer(), memory or {}
        ignored: list[str] = []
        logged = given_by_values(layer.values, layer.origin, ignored)
        remembered = given_by_values(kept, Origin("memory", "until the next start"), ignored)
        while True:
            try:
                found = resolve([*self.files, *logged, *remembered, *self.outside], self.faults)
            except Invalid as error:
                if is_asked or not logged or self.faults:
                    raise
                logged = _fitting(logged, error)
                ignored.append(f"set in the log, and left out beside what the files say: {error}")
            else:
                return msgspec.structs.replace(found, warnings=tuple(ignored))


def _fitting(logged: list[Given], error: Invalid) -> list[Given]:
    """What the log says of other sections than those with faults; nothing where that is all."""
    sections = {cause.field.rpartition(".")[0] for cause in error.causes}
    others = [one for one in logged if one.key.path.rpartition(".")[0] not in sections]
    return others if len(others) < len(logged) else []


def load_settings(
    config: Path | None,
    environ: Mapping[str, str],
    flags: Flags | None = None,
    *,
    layer: Layer | None = None,
) -> Resolved:
    """Settings of the defaults, the node file or folder, the settings file, the log, the
    environment and explicit flags; later wins.

    A folder's .yaml, .yml, .json and .toml files are read in order of their names, hidden ones
    left out (a mounted ConfigMap has some). A settings file that does not exist is an empty layer.
    Raises Invalid with every fault of every layer but the log.
    """
    return read_sources(Sources(config, environ, flags or {})).resolve(layer)


def read_sources(sources: Sources, before: Read | None = None) -> Read:
    """Never raises: faults are told by `Read.resolve`. May block as long as the file system does.

    With `before`, the settings file is where it was: which one it is is read at the start; one that
    was there is not to vanish; and `before` itself is what files that are the same come to."""
    contents = _contents(sources.config)
    settings_file = before.settings_file if before else None
    found = _content(settings_file) if settings_file else None
    if before is not None and _digest(contents, found) == before.digest:
        return before
    faults: list[Cause] = []
    files = [Given(KEYS["node.name"], socket.gethostname(), Origin("default", "host name"))]
    for content in contents:
        for document in _documents(content, faults):
            files += given_by_document(document, "node file", faults)
    outside = given_by_environment(sources.environ, faults)
    outside += given_by_flags(sources.flags, faults)
    _check_stores(files + outside, faults)
    if before is None:
        settings_file = _settings_file(files + outside)
        found = _content(settings_file) if settings_file else None
    had_file = before is not None and before.had_file
    if found is not None:
        files += _of_settings_file(found, had_file, faults)
        had_file |= found.error is None
    config_map = config_map_of(settings_file) if settings_file else None
    digest = _digest(contents, found)
    return Read(files, outside, faults, settings_file, config_map, had_file, digest)


def _check_stores(given: list[Given], faults: list[Cause]) -> None:
    """Refuses a URL with a password here already, before its value is logged or shown."""
    for one in given:
        if one.key.path == "store" and one.raw and isinstance(one.raw, str):
            from kudurru.entrypoints.log_place import driver_of  # drivers, which few starts want

            try:
                driver_of(one.raw)
            except Invalid as error:
                faults += [one.fault("store", cause.message) for cause in error.causes]


def _of_settings_file(found: Content, had_file: bool, faults: list[Cause]) -> list[Given]:
    """What it says: nothing where there was none at the start. One that vanished is a fault."""
    if found.is_missing:
        if had_file:
            message = "is gone: put it back, or an empty file to take its settings away"
            faults.append(Cause("", message, str(found.path)))
        return []
    given: list[Given] = []
    for document in _documents(found, faults):
        given += given_by_document(document, "settings file", faults, only_cluster=True)
    return given


def stamp_of(sources: Sources, settings_file: Path | None) -> Stamp:
    """What tells, without reading them, that files may have changed; never raises. Links are
    followed: a mounted ConfigMap swaps one, and editors put a new file in the place of the old."""
    try:
        paths = _node_files(sources.config)
    except OSError:
        paths = []
    return tuple(_stamps(paths + ([settings_file] if settings_file else [])))


def _stamps(paths: list[Path]) -> Iterator[tuple[str, int, int, int, int]]:
    for path in paths:
        try:
            found = os.stat(path)  # noqa: PTH116  # one call, and a tuple of what it says
        except OSError:
            yield str(path), 0, 0, 0, 0
        else:
            times = found.st_mtime_ns, found.st_ctime_ns
            yield str(path), found.st_ino, found.st_size, *times


def _node_files(config: Path | None) -> list[Path]:
    """Raises: OSError."""
    if config is None:
        return []
    if not config.is_dir():
        return [config]
    return sorted(
        path
        for path in config.iterdir()
        if path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def _contents(config: Path | None) -> list[Content]:
    try:
        return [_content(path) for path in _node_files(config)]
    except OSError as error:  # no right to look, a network that is away
        return [Content(config or Path(), error=error)]


def _content(path: Path) -> Content:
    try:
        with path.open("rb") as file:
            return Content(path, file.read(SIZE_MAX + 1))
    except OSError as error:
        return Content(path, error=error)


def _digest(contents: list[Content], settings_file: Content | None) -> bytes:
    digest = hashlib.sha256()
    for one in [*contents, *([settings_file] if settings_file else [])]:
        state = one.error.errno if one.error else "read"
        digest.update(b"%d %a %s\n" % (len(one.data), state, os.fsencode(one.path)) + one.data)
    return digest.digest()


def _settings_file(given: list[Given]) -> Path | None:
    """Where the settings file is, as the last layer that says so has it."""
    named = [one.raw for one in given if one.key.path == "settingsFile"]
    return Path(named[-1]) if named and named[-1] and isinstance(named[-1], str) else None


def _documents(content: Content, faults: list[Cause]) -> list[Document]:
    """The one document of a file, or none."""
    path = content.path
    if content.error is not None:
        faults.append(_unreadable(path, content.error))
        return []
    try:
        documents = read_documents(content.data, what=str(path))
    except Invalid as error:
        faults.extend(error.causes)
        return []
    if len(documents) <= 1:
        return documents
    place = f"{path}:{documents[1].line}"
    faults.append(Cause("", "settings are one document: remove what follows the ---", place))
    return []


def _unreadable(path: Path, error: OSError) -> Cause:
    return Cause("", f"cannot be read: {error.strerror}; check the path and its rights", str(path))
