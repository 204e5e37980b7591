"""`kudurru` whose time passes when it is told so: the server of the soak test.

    python -m tests.soak.told_time serve --data D …

Each octet on its standard input lets STEP_S seconds pass at once, for its clocks and its event
loop; it answers with a line when what was due then has had its turn. In between time runs as usual.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable

STEP_S = 5
"""What a server does most often, to ask its own listeners, it does every five seconds."""

TURN_S = 0.0005
"""For tasks that timers woke to begin what they do."""

_passed_s = 0


def _shifted(name: str, unit: int) -> None:
    """Replace a clock of the module `time`, which all of the program and the event loop read."""
    real: Callable[[], float] = getattr(time, name)
    setattr(time, name, lambda: real() + _passed_s * unit)


def _pass_time() -> None:
    global _passed_s
    steps = len(os.read(sys.stdin.fileno(), 4096))
    _passed_s += steps * STEP_S
    # Timers have their turn in the order of their times: this one comes after all that are due.
    asyncio.get_running_loop().call_later(TURN_S, _tell_when_looked)


def _tell_when_looked() -> None:
    """Whoever asks their own listeners has patience for three seconds: no more pass meanwhile."""
    if any(task.get_name().startswith("selfcheck:") for task in asyncio.all_tasks()):
        asyncio.get_running_loop().call_later(TURN_S, _tell_when_looked)
    else:
        print("passed", flush=True)


def main() -> int:
    for name, unit in (("time", 1), ("monotonic", 1), ("time_ns", 10**9), ("monotonic_ns", 10**9)):
        _shifted(name, unit)
    from kudurru.entrypoints.cli.main import main as command
    from kudurru.entrypoints.server import Server

    run = Server.run

    async def run_in_told_time(self: Server, announce: Callable[[str], None]) -> None:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _pass_time)
        await run(self, announce)

    Server.run = run_in_told_time  # type: ignore[method-assign]  # the program has no such seam
    return command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
