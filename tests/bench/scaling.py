"""Two workers on two processors beside one on one: queries answered for each second of processor
time that the server has.

    python -m tests.bench.scaling [--seconds 3] [--rounds 3] [--names 10000]

Prints figures, asserts nothing. On two processors the generator shares them with both workers, so
rates alone say how the three divide them. What two workers can do is told by what an answer costs
them, as long as each of them always has something to do: then it is either running or waiting for
a processor, and the kernel counts both (`schedstat`). Where that share of the time is near 1 for
each of them, the generator is not what limits them: it asks for more than is answered, takes
nothing back, and the server's own counters say what was answered. Two servers of one worker each
share nothing, so their figure is what this machine allows.
"""

import argparse
import os
import re
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

from tests.bench.asker import Asker, Figures
from tests.bench.latency import ZONE, import_zone
from tests.bench.misses import QUIET
from tests.blackbox.program import Serving, serving

SOCKETS = 32


class Times(NamedTuple):
    """Of a thread, in seconds."""

    ran: float
    waited: float
    """for a processor"""


class Run(NamedTuple):
    per_s: float
    us_per_query: float
    """of processor time of the servers"""
    busiest: float
    second: float
    """worker: the part of the time in which it ran or could have"""
    asked_per_s: float
    asker_us: float
    """for each that it asked"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--names", type=int, default=10_000)
    given = parser.parse_args(arguments)
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        asker = Asker(folder)
        import_zone(folder, folder / "a", given.names)
        for other in ("b", "c"):
            copytree(folder / "a", folder / other)
        # All of one length: the kernel takes many at once then, at a part of the price.
        names = folder / "names"
        names.write_text("".join(f"h{i}.{ZONE}\n" for i in range(given.names // 10, given.names)))

        def server(data: str, *cpus: int) -> Serving:
            on = ["taskset", "-c", ",".join(map(str, cpus))]
            return stack.enter_context(serving(folder / data, env=QUIET, prefix=on))

        ways: dict[str, list[Serving]] = {
            "one worker": [server("a", first)],
            "two workers": [server("b", first, second)],
        }
        ways["two servers"] = [*ways["one worker"], server("c", second)]
        found: dict[str, list[Run]] = {title: [] for title in ways}
        for servers in ways.values():
            measure(asker, servers, 1, names)  # they are warm
        for _ in range(given.rounds):
            for title, servers in ways.items():
                found[title].append(measure(asker, servers, given.seconds, names))
        show(found)


def measure(asker: Asker, servers: Sequence[Serving], seconds: float, names: Path) -> Run:
    """All of them are asked at once, of as many sockets altogether."""
    before = [times_of(server.process.pid) for server in servers]
    answered = -sum(map(answers_of, servers))
    started = time.monotonic()
    with ThreadPoolExecutor() as pool:
        runs: list[Figures] = list(
            pool.map(
                lambda server: asker.pour(
                    (server.host, server.port), seconds, names, sockets=SOCKETS // len(servers)
                ),
                servers,
            )
        )  # fmt: skip
    wall_s = time.monotonic() - started
    answered += sum(map(answers_of, servers))
    spent = []
    for server, old in zip(servers, before, strict=True):
        now = times_of(server.process.pid)
        spent += [
            Times(one.ran - was.ran, one.waited - was.waited)
            for task, one in now.items()
            for was in [old.get(task, Times(0, 0))]
        ]
    busy = sorted((min(1, sum(one) / wall_s) for one in spent), reverse=True)
    return Run(
        per_s=answered / wall_s,
        us_per_query=sum(one.ran for one in spent) / answered * 1e6,
        busiest=busy[0],
        second=busy[1],
        asked_per_s=sum(run.sent for run in runs) / wall_s,
        asker_us=sum(run.cpu_s for run in runs) / sum(run.sent for run in runs) * 1e6,
    )


ANSWERS = re.compile(r"^kudurru_dns_responses_total\{.*\} (\S+)$", re.MULTILINE)


def answers_of(server: Serving) -> int:
    """All that it has sent. Tests show that the counters are exact."""
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as page:
        return sum(int(float(one)) for one in ANSWERS.findall(page.read().decode()))


def times_of(pid: int) -> dict[str, Times]:
    """Of each thread of a process."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        ran, waited, _ = (task / "schedstat").read_text().split()
        found[task.name] = Times(int(ran) / 1e9, int(waited) / 1e9)
    return found


def show(found: dict[str, list[Run]]) -> None:
    print(
        f"{'':<14}{'answers/s':>12}{'us/query':>10}{'busiest':>9}{'next':>6}"
        f"{'asked/s':>12}{'us each':>9}"
    )
    for title, runs in found.items():
        one = Run(*map(statistics.median, zip(*runs, strict=True)))
        print(
            f"{title:<14}{one.per_s:>12,.0f}{one.us_per_query:>10.2f}"
            f"{one.busiest:>9.2f}{one.second:>6.2f}{one.asked_per_s:>12,.0f}{one.asker_us:>9.2f}"
        )
    alone, two = (statistics.median(x.per_s for x in found[one]) for one in list(found)[:2])
    print(f"rates as they are, the generator beside both: {two / alone:.2f}")
    for title in ("two workers", "two servers"):
        scales = statistics.median(
            2 * alone.us_per_query / both.us_per_query
            for alone, both in zip(found["one worker"], found[title], strict=True)
        )
        print(f"{title} / one worker, for the same processor time each: {scales:.2f} (goal 1.7)")


if __name__ == "__main__":
    main()
