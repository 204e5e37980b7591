"""The data directory: where everything of a node lies, and whether it may lie there.

log.db        the log, the only thing that cannot be rebuilt
store         where the log is when it is not here
follow        whose log this one is a copy of, and whose key signs it
views.db      a snapshot of the views
querylog.db   queries, which are no part of the log
secondaries.json  when secondary zones were last known to be right
checkpoint    the newest checkpoint again, which shows a log that was set back
tokens.json   when tokens of the API were last used
cache.dump    answers of upstreams, for the next start
lists/        block lists as fetched, and the table made of them (`adapters.lists.files`)
keys/         signing keys and other secrets of the node, mode 0700
lock          see `adapters.sqlite.lock`
kudurru.sock  commands of this machine
socket        where kudurru.sock is when its path here would be too long
admin.token   the first token
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from kudurru.domain.errors import NotFound, StorageFailed


class DataDir(msgspec.Struct, frozen=True):
    path: Path
    warnings: tuple[str, ...] = ()
    """Rights that others have and should not; sentences for a person."""

    @property
    def log(self) -> Path:
        return self.path / "log.db"

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def follow(self) -> Path:
        return self.path / "follow"

    @property
    def views(self) -> Path:
        return self.path / "views.db"

    @property
    def querylog(self) -> Path:
        return self.path / "querylog.db"

    @property
    def refresh_times(self) -> Path:
        return self.path / "secondaries.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def cache_dump(self) -> Path:
        return self.path / "cache.dump"

    @property
    def lists(self) -> Path:
        return self.path / "lists"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def cookie_secret(self) -> Path:
        return self.keys / "cookies"

    @property
    def snapshot_key(self) -> Path:
        return self.keys / "snapshots"

    @property
    def node_key(self) -> Path:
        return self.keys / "node.key"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def socket(self) -> Path:
        return self.path / "kudurru.sock"

    @property
    def socket_place(self) -> Path:
        return self.path / "socket"

    @property
    def token_times(self) -> Path:
        return self.path / "tokens.json"

    @property
    def admin_token(self) -> Path:
        return self.path / "admin.token"


def open_data_dir(path: Path, *, create: bool = False) -> DataDir:
    """The directory at `path`, with `keys/` in it; made, with mode 0700, where `create` says so.

    Raises: NotFound when there is none; StorageFailed when it is no directory or cannot be
    written.
    """
    try:
        if create and not path.exists():
            _make_private(path)
        is_directory = stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not create:
            raise NotFound(
                f"there is no data directory at {path}: give --data or KUDURRU_DATA, "
                "or make it with `kudurru serve` or `kudurru apply`"
            ) from error
        raise _unusable(path, error.strerror or str(error)) from error
    if not is_directory:
        raise _unusable(path, "it is not a directory")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        raise _unusable(path, _why_not_writable(path))
    data_dir = DataDir(path, tuple(_warnings(path)))
    try:
        if not data_dir.keys.exists():
            _make_private(data_dir.keys)
    except OSError as error:
        raise _unusable(data_dir.keys, error.strerror or str(error)) from error
    return data_dir


def sync_folder(path: Path) -> None:
    """Make names in a folder durable: fsync of a file does not cover its name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_private(path: Path) -> None:
    """A new directory of mode 0700, whatever the umask, with the folders above it that are
    missing. Each new name is durable: a power cut could take the log with any of them."""
    for folder in reversed([parent for parent in path.parents if not parent.exists()]):
        folder.mkdir(exist_ok=True)  # another process may have been faster
        sync_folder(folder.parent)
    with suppress(FileExistsError):  # another process was faster; what is there is looked at
        path.mkdir(mode=0o700)
        path.chmod(0o700)
    sync_folder(path.parent)


def _why_not_writable(path: Path) -> str:
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return "its file system is mounted read-only"
    return f"user {os.geteuid()} may not read and write in it"


def _warnings(path: Path) -> list[str]:
    found = path.stat()
    warnings = []
    if found.st_uid != os.geteuid():
        warnings.append(
            f"{path} belongs to user {found.st_uid} and kudurru runs as {os.geteuid()}: "
            "whoever owns it can replace the log"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        warnings.append(f"{path} can be written by others: run `chmod go-w {path}`")
    elif found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        warnings.append(f"{path} can be read by others: run `chmod 700 {path}`")
    return warnings


def _unusable(path: Path, why: str) -> StorageFailed:
    return StorageFailed(
        f"{path} cannot be the data directory: {why} - give another with --data, or mend its rights"
    )
