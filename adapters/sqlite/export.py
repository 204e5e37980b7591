"""The log as a SQLite file for whoever wants to query it: one table, indexed, through
sqlite-utils."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from kudurru.adapters.sqlite.connection import storage_errors

BATCH = 1_000
_INDEXED = ("time", "zone", "actor", "name")


def write_events(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Make a file with the table `events`; how many there are. Raises: StorageFailed."""
    with storage_errors(path):
        database = Database(path)
        try:
            events: Any = database["events"]
            events.insert_all(rows, pk="seq", batch_size=BATCH)
            if not events.exists():
                return 0
            for column in _INDEXED:
                events.create_index([column])
            return int(events.count)
        finally:
            database.close()
