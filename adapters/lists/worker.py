"""Running jobs of `adapters.lists.child`, from the event loop."""

import asyncio
import os
import sys
from pathlib import Path

import msgspec

import kudurru
from kudurru.adapters.lists.jobs import Failed, Job, Result

_RESULT_MAX = 64 << 20


async def run(job: Job, seconds: float) -> Result:
    """Do a job in a process of its own, for at most so many seconds. What became of it when the
    process died is Failed too. A cancellation kills the process first."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "kudurru.adapters.lists.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=None,  # a fault of ours goes to our log
            limit=_RESULT_MAX,
            env=_environment(),
        )  # fmt: skip
    except OSError as error:
        return Failed(f"no process can be started: {error.strerror}")
    try:
        async with asyncio.timeout(seconds):
            answer, _ = await process.communicate(msgspec.msgpack.encode(job))
    except TimeoutError:
        return Failed("it took too long")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        return Failed(f"the process that did it ended with {process.returncode}")
    try:
        return msgspec.msgpack.decode(answer, type=Result)
    except msgspec.MsgspecError:  # the program was replaced while this one runs
        return Failed("the process that did it is of another version; restart the server")


def _environment() -> dict[str, str]:
    """Where the child finds this very program."""
    root = str(Path(kudurru.__file__).parents[1])
    paths = filter(None, (root, os.environ.get("PYTHONPATH")))
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
