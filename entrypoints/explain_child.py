"""The process that explains a moment of the past while a server serves: `python -m … DIRECTORY`.

It needs views as they were, which is as much memory and time as a start of the server: neither may
be taken from the node that answers. The question is read from standard input, and the explanation,
or why there is none, printed as JSON.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec

from kudurru.domain.errors import Busy, KudurruError, StorageFailed
from kudurru.domain.events import POSITION_MAX, Position
from kudurru.domain.filtering.explain import Explanation
from kudurru.entrypoints import directory, logs
from kudurru.entrypoints.filtering import ExplainRequest
from kudurru.entrypoints.rpc import decode_error, encode_error

NICENESS = 10
CHILD_S_MAX = 300.0
"""Replays of ten million events take as long. Commands on the directory itself have no limit."""

STDERR_SHOWN = 500


class Question(msgspec.Struct, frozen=True):
    request: ExplainRequest
    upto: Annotated[int, msgspec.Meta(ge=0, le=POSITION_MAX)]


async def explain_beside(data: Path, question: Question) -> Explanation:
    """The explanation, from a process of its own. Raises: Invalid, LogDamaged; Busy when it takes
    too long; StorageFailed when the process ends without a word."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(data.absolute()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(CHILD_S_MAX):
            out, err = await child.communicate(msgspec.json.encode(question))
    except TimeoutError:
        raise Busy(f"not explained within {CHILD_S_MAX:.0f} s; do it with --data") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    try:
        found = msgspec.json.decode(out)
        if "error" in found:
            raise decode_error(found["error"])
        return msgspec.convert(found["explanation"], Explanation)
    except (msgspec.MsgspecError, TypeError, KeyError):
        why = err.decode(errors="replace").strip()[-STDERR_SHOWN:] or "its process was ended"
        raise StorageFailed(f"it could not be explained: {why}") from None


def answer(data: Path, question: Question) -> Explanation:
    """Raises: KudurruError."""
    with directory.open_reader(data) as node:
        return directory.explain_as_of(data, node, Position(question.upto), question.request)


def main() -> None:
    os.nice(NICENESS)
    logs.start("error", "text")
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    found: dict[str, object]
    try:
        found = {"explanation": answer(Path(sys.argv[1]), question)}
    except KudurruError as error:
        found = {"error": encode_error(error)}
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
