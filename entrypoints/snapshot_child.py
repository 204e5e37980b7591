"""The process that writes a snapshot while a server serves: `python -m … DIRECTORY`.

It begins with the snapshot before, reads what came since from the log as any reader does, and
writes the next. So the server spends nothing on it and need not stand still for a moment that is
whole. Prints the position of the snapshot.
"""

import gc
import os
import sys
from pathlib import Path

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import open_data_dir
from kudurru.domain.errors import Conflict, KudurruError
from kudurru.entrypoints import logs, snapshots
from kudurru.entrypoints.log_place import open_event_log
from kudurru.entrypoints.wiring import Node

NICENESS = 10


def main(data: Path) -> None:
    """Raises: KudurruError."""
    os.nice(NICENESS)
    gc.disable()  # nothing that is made here becomes garbage
    directory = open_data_dir(data)
    event_log = open_event_log(directory)
    try:
        node = Node(event_log, SystemClock(), SystemEntropy())
        oldest = event_log.oldest()
        snapshots.load_snapshot(directory, node)
        # Time is left to the log: what expired since is for whoever loads this.
        with node.objects.rebuilding():
            node.views.follower.catch_up(event_log)
        if event_log.oldest() != oldest:
            raise Conflict("the log was pruned meanwhile; the next one is soon due")
        snapshots.save_snapshot(directory, node)
    finally:
        event_log.close()
    sys.stdout.write(f"{node.position}\n")


if __name__ == "__main__":
    logs.start("error", "text")  # the server says what is wrong with a snapshot, once
    try:
        main(Path(sys.argv[1]))
    except KudurruError as error:
        sys.exit(str(error))
