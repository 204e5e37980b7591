"""Programs in a network of their own, with addresses and limits that are not for the machine's."""

import subprocess
import sys
from collections.abc import Sequence

from tests.absent import absent


def ran_apart(
    prepare: Sequence[str], program: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """A Python program that has run there, after lines of shell that prepare it."""
    lines = ["ip link set lo up", *prepare, 'exec "$@"']
    python = [sys.executable, "-c", program, *arguments]
    command = ["unshare", "--net", "sh", "-c", " && ".join(lines), "sh", *python]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode and "Traceback" not in done.stderr:
        absent(f"such a network namespace cannot be made here: {done.stderr[:200]}")
    return done
