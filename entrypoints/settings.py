"""Settings of this process: the files, variables and flags that are there, read and laid over each
other (domain/settings_layers.py says how). Nothing else reads settings."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kudurru.domain.documents import SIZE_MAX, Document, read_documents
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.settings import KEYS
from kudurru.domain.settings_layers import (
    Resolved,
    given_by_document,
    given_by_environment,
    given_by_flags,
    resolve,
)
from kudurru.domain.settings_values import Given, Origin

SUFFIXES = frozenset({".yaml", ".yml", ".json", ".toml"})


def load_settings(
    config: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, tuple[str, Any]] | None = None,
) -> Resolved:
    """Settings of the defaults, the node file or folder, the settings file, the environment and
    explicit flags (key → flag, value); later wins.

    A folder's .yaml, .yml, .json and .toml files are read in order of their names, hidden ones
    left out (a mounted ConfigMap has some). A settings file that does not exist is an empty layer.
    Raises Invalid with every fault of every layer.
    """
    faults: list[Cause] = []
    given = [Given(KEYS["node.name"], socket.gethostname(), Origin("default", "host name"))]
    for path in _node_files(config, faults):
        for document in _read(path, faults):
            given += given_by_document(document, "node file", faults)
    outside = given_by_environment(environ, faults) + given_by_flags(flags or {}, faults)
    settings_file = _settings_file(given + outside)
    if settings_file and settings_file.exists():
        for document in _read(settings_file, faults):
            given += given_by_document(document, "settings file", faults, only_cluster=True)
    return resolve(given + outside, faults)


def _node_files(config: Path | None, faults: list[Cause]) -> list[Path]:
    if config is None:
        return []
    if not config.is_dir():
        return [config]
    try:
        return sorted(
            path
            for path in config.iterdir()
            if path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file()
        )
    except OSError as error:
        faults.append(_unreadable(config, error))
        return []


def _settings_file(given: list[Given]) -> Path | None:
    """Where the settings file is, as the last layer that says so has it."""
    named = [one.raw for one in given if one.key.path == "settingsFile"]
    return Path(named[-1]) if named and named[-1] and isinstance(named[-1], str) else None


def _read(path: Path, faults: list[Cause]) -> list[Document]:
    """The one document of a file, or none."""
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_MAX + 1)
        documents = read_documents(data, what=str(path))
    except OSError as error:
        faults.append(_unreadable(path, error))
    except Invalid as error:
        faults.extend(error.causes)
    else:
        if len(documents) <= 1:
            return documents
        place = f"{path}:{documents[1].line}"
        faults.append(Cause("", "settings are one document: remove what follows the ---", place))
    return []


def _unreadable(path: Path, error: OSError) -> Cause:
    return Cause("", f"cannot be read: {error.strerror}; check the path and its rights", str(path))
