"""Checkpoints to files and folders outside of the data directory, where whoever edits the log does
not reach them: another machine's mount, a folder that is backed up or synced.

A file has the newest checkpoint. A folder gets one file a log and day, with the newest of that day,
so that it keeps a trace of years and stays small. Each start reads back what it published: see
`domain.published`.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

from kudurru.adapters.data_dir import sync_folder
from kudurru.domain.errors import StorageFailed


def publish(target: str, note: str, origin: str, now_us: int) -> Path:
    """Write a checkpoint to a file, or into a folder: one that exists, or a name that ends in /.
    Whoever reads it finds the one before or this one, whole. Raises: StorageFailed."""
    path = Path(target)
    try:
        if target.endswith("/") or path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            day = datetime.fromtimestamp(now_us / 1_000_000, UTC)
            path /= f"{day:%F}.{origin.replace('/', '.')}.checkpoint"
        _replace(path, note.encode())
    except OSError as error:
        raise StorageFailed(
            f"checkpoints cannot be published to {target}: {error.strerror} - check the path and "
            "its rights, or take it out of audit.checkpoint.publish"
        ) from error
    return path


TEXT_MAX = 65_536
"""Octets of a checkpoint that are read: one has some hundred."""


def published_in(target: str, log_id: str) -> list[tuple[Path, str]]:
    """The newest checkpoint that `publish` left at a target, and where it is; none where nothing
    was published. In a folder, which logs may share, that of the log with this id. Raises:
    StorageFailed."""
    path = Path(target)
    try:
        if path.is_dir():
            # The day comes first in a name, and the highest epoch has the last word on a day.
            found = [p for p in path.glob("*.checkpoint") if f".{log_id}." in p.name]
            if not found:
                return []
            path = max(found, key=_day_and_epoch)
        with path.open(encoding="utf-8", errors="replace") as file:
            return [(path, file.read(TEXT_MAX))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageFailed(
            f"{path} cannot be read: {error.strerror} - check its rights, or whether what it lies "
            "on is mounted"
        ) from error


def _day_and_epoch(path: Path) -> tuple[str, int]:
    day, *_, epoch, _ = path.name.split(".")
    return day, int(epoch) if epoch.isascii() and epoch.isdigit() else 0


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.unlink(missing_ok=True)  # of a process that died, or a link that somebody put there
        with new.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(path.parent)
    finally:
        new.unlink(missing_ok=True)
