"""How many processors this process may keep busy."""

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """Those of its affinity mask, or fewer where its control group has a quota (cgroup v2)."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = _quota(Path("/proc/self/cgroup"), _CGROUPS)
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def _quota(own: Path, groups: Path) -> float | None:
    """Processors that the group of a process may use; None: there is no limit, or nobody says."""
    try:
        paths = own.read_text().splitlines()
        unified = next(line[3:] for line in paths if line.startswith("0::"))
        limit, period = (groups / unified.lstrip("/") / "cpu.max").read_text().split()
    except (OSError, StopIteration, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)
