"""dnsperf beside a test, with a count of queries that is exact."""

import contextlib
import itertools
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.blackbox.program import PATIENCE_S
from tests.real_servers import need


class Load:
    """dnsperf, from its start until it is told to end; every query counts that was sent.

    To interrupt it would leave open what became of the queries under way. So it reads from a pipe,
    and ends by itself when that does. Behind each query is a comment that fills the pipe: else it
    would hold the queries of the next minute.
    """

    def __init__(
        self, *options: str, names: Sequence[str], per_second: int, prefix: Sequence[str] = ()
    ) -> None:
        """`options` say whom to ask; `prefix` is a command that runs dnsperf where it should."""
        reader, writer = os.pipe()
        self._process = subprocess.Popen(
            [*prefix, need("dnsperf"), *options, "-Q", str(per_second), "-t", "10"],
            stdin=reader, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
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
        """Queries that were sent, and those of them that had no answer, or one that is no
        success."""
        self._is_enough.set()
        said, _ = self._process.communicate(timeout=PATIENCE_S)
        self._feeder.join()
        sent = int(re.findall(r"Queries sent: +(\d+)", said)[0])
        answered = sum(int(n) for n in re.findall(r"NOERROR (\d+)", said))
        return sent, sent - answered

    def close(self) -> None:
        """Where nobody waits for its result."""
        self._is_enough.set()
        self._process.kill()
        self._process.communicate()
        self._feeder.join()


@contextmanager
def under_load(
    *options: str, names: Sequence[str], per_second: int, prefix: Sequence[str] = ()
) -> Iterator[Load]:
    load = Load(*options, names=names, per_second=per_second, prefix=prefix)
    try:
        yield load
    finally:
        load.close()
