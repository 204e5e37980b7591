"""dnsperf as a load that a test ends when it has seen enough."""

import contextlib
import itertools
import os
import re
import subprocess
import threading
from collections.abc import Callable, Sequence

from tests.blackbox.program import PATIENCE_S
from tests.real_servers import need

Start = Callable[[list[str], int], "subprocess.Popen[str]"]
"""Starts a command that reads from a file descriptor, and whose stdout is a pipe."""


class Load:
    """From its start until it is told to end; every query counts that was sent.

    To interrupt it would leave open what became of the queries under way. So it reads from a pipe,
    and ends by itself when that does. Behind each query is a long comment: the pipe and dnsperf's
    buffer then hold some dozens, and not the next ten seconds.
    """

    def __init__(self, start: Start, at: Sequence[str], names: Sequence[str], rate: int) -> None:
        """`at` are options that name the server; `rate` is in queries a second."""
        reader, writer = os.pipe()
        self._process = start([need("dnsperf"), *at, "-Q", str(rate), "-t", "10"], reader)
        os.close(reader)
        self._is_enough = threading.Event()
        self._feeder = threading.Thread(target=self._feed, args=(writer, names))
        self._feeder.start()

    def _feed(self, writer: int, names: Sequence[str]) -> None:
        padding = f";{'-' * 1000}\n" * 4
        with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w", buffering=1) as pipe:
            for name in itertools.cycle(names):
                if self._is_enough.is_set():
                    return
                pipe.write(f"{name} A\n{padding}")

    def result(self) -> tuple[int, int]:
        """Queries that were sent, and those of them that had no answer, or one of no success."""
        self._is_enough.set()
        said, _ = self._process.communicate(timeout=PATIENCE_S)
        self._feeder.join()
        sent = int(re.findall(r"Queries sent: +(\d+)", said)[0])
        return sent, sent - sum(int(count) for count in re.findall(r"NOERROR (\d+)", said))

    def close(self) -> None:
        """Where nobody waits for its result."""
        self._is_enough.set()
        self._process.kill()
        self._process.communicate()
        self._feeder.join()
