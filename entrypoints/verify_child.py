"""The process that verifies a log while another one rebuilds its views: `python -m … DIRECTORY`.

Both read the same rows and neither needs the other, so on two cores it takes as long as the slower
one. Prints the first damage as JSON, null for a log that is whole.
"""

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kudurru.adapters.data_dir import open_data_dir
from kudurru.domain.errors import KudurruError, LogDamaged, StorageFailed
from kudurru.domain.verify import verify
from kudurru.entrypoints import logs
from kudurru.entrypoints.directory import UNREADABLE, trust_of
from kudurru.entrypoints.log_place import open_event_log

CHILD_MIN = 20_000
"""Rows that take longer than it takes to start a process."""

CHILD_S_MAX = 3_600.0
"""A hundred million rows: more than a log of ours has."""

_Found = tuple[str, int, str] | None


class VerifyChild:
    """A verification on its way. A context: leaving it ends the process."""

    def __init__(self, data: Path) -> None:
        line = [sys.executable, "-m", "kudurru.entrypoints.verify_child", str(data.absolute())]
        self._process = subprocess.Popen(  # noqa: S603  # this very module
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> "VerifyChild":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def first_damage(self) -> LogDamaged | None:
        """Wait for what it found. Raises: StorageFailed when it found nothing out."""
        try:
            out, err = self._process.communicate(timeout=CHILD_S_MAX)
        except subprocess.TimeoutExpired:
            raise StorageFailed(f"the verification took more than {CHILD_S_MAX:.0f} s") from None
        if self._process.returncode:
            why = err.decode(errors="replace").strip() or "its process was ended"
            raise StorageFailed(f"the log could not be verified: {why}")
        found = msgspec.json.decode(out, type=_Found)
        return LogDamaged(*found) if found is not None else None


@contextmanager
def verified_beside(data: Path) -> Iterator[None]:
    """Verify the log of a directory while the block reads it. Raises, when the block is done or
    came to nothing: LogDamaged at the first damage, whatever else the block found."""
    with VerifyChild(data) as child:
        try:
            yield
        except (KudurruError, *UNREADABLE) as error:
            if (damage := child.first_damage()) is not None:
                raise damage from error
            raise
        if (damage := child.first_damage()) is not None:
            raise damage


def main(data: Path) -> None:
    """Raises: KudurruError."""
    gc.disable()  # nothing that is made here becomes garbage
    event_log = open_event_log(open_data_dir(data))
    try:
        damages = verify(event_log, trust=trust_of()).damages
    finally:
        event_log.close()
    first = damages[0] if damages else None
    found: _Found = (first.kind, first.position, first.message) if first is not None else None
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    logs.start("error", "text")
    try:
        main(Path(sys.argv[1]))
    except KudurruError as error:
        sys.exit(str(error))
