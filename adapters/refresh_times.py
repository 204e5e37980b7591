"""When each secondary zone was last known to be right, beside the log.

It changes at every refresh, and a log must not grow with the time of day. Losing the file loses
little: the log says it too, less exactly.
"""

import json
import logging
from pathlib import Path

from kudurru.adapters.secret_files import write_private

log = logging.getLogger("kudurru")


class RefreshTimes:
    """A file of zone names and unix times. `path` None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self) -> dict[str, int]:
        """Nothing where there is no file, or one that cannot be read."""
        if self._path is None:
            return {}
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read (%s): the log says it too", self._path, error)
            return {}
        if not isinstance(found, dict):
            return {}
        return {name: time for name, time in found.items() if isinstance(time, int)}

    def save(self, times: dict[str, int]) -> None:
        """In any thread. What cannot be written is said, and written the next time."""
        if self._path is None:
            return
        try:
            write_private(self._path, json.dumps(times, sort_keys=True).encode())
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror or error)
