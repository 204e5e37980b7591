"""Lists of a million domains, generated from a seed: how long they take to load, what they hold of
memory, what a look-up costs, and what queries feel of a rebuild.

    python -m tests.bench.lists [--rules 1000000] [--seed 1] [--seconds 6] [--rounds 3]

Prints figures beside the goals, asserts nothing.
"""

import argparse
import random
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from kudurru.adapters.lists.child import NICE
from kudurru.adapters.lists.jobs import Build, Built, Fetch, Fetched, Request, Result, Text
from kudurru.adapters.lists.tables import open_table
from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.lists.rules import Context
from kudurru.domain.lists.table import PAGE, Table
from kudurru.domain.objects import Key
from tests.blackbox.program import Serving, command, serving, write_json
from tests.packets import query

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
TOPS = ("com", "net", "org", "io", "de", "co.uk", "info", "xyz")
LOOKUPS = 50_000


def domains(rng: random.Random, count: int) -> Iterator[str]:
    def label(least: int, most: int) -> str:
        return "x" + "".join(rng.choices(LETTERS, k=rng.randint(least, most)))

    for i in range(count):
        name = f"{label(4, 11)}.{rng.choice(TOPS)}"
        yield f"{label(2, 9)}.{name}" if i % 2 else name


def write_list(path: Path, rng: random.Random, count: int) -> list[str]:
    """A file in three formats at once; some of its names."""
    forms = ("0.0.0.0 {}\n", "||{}^\n", "{}\n")
    sample = []
    with path.open("w") as file:
        for i, domain in enumerate(domains(rng, count)):
            file.write(forms[i % 3].format(domain))
            if i % max(count // LOOKUPS, 1) == 0:
                sample.append(domain)
    return sample


class Cost(msgspec.Struct):
    wall_s: float
    cpu_s: float
    peak_mib: float


def in_child(job: Fetch | Build) -> tuple[Result, Cost]:
    """Do a job as the server has it done, and what that cost."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    peak = 0
    program = [sys.executable, "-m", "kudurru.adapters.lists.child"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(msgspec.msgpack.encode(job))
        process.stdin.close()
        while process.poll() is None:
            peak = max(peak, high_water_kib(process.pid))
            time.sleep(0.01)
        result = msgspec.msgpack.decode(process.stdout.read(), type=Result)
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result, Cost(wall_s, cpu_s, peak / 1024)


def high_water_kib(pid: int) -> int:
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) if found else 0
    return 0


def rollup_kib(pid: int | str = "self") -> dict[str, int]:
    """Of a process: `Rss` and `Private_Dirty`, which is what is its alone; nothing of one that is
    over."""
    lines = []
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


def lookup_us(table: Table, asked: Sequence[Name]) -> tuple[float, int]:
    """CPU of one, the cheapest of three rounds, and how many hit."""
    best, hits = float("inf"), 0
    for _ in range(3):
        started = time.process_time()
        hits = sum(1 for name in asked if table.lookup(name))
        best = min(best, time.process_time() - started)
    return best / len(asked) * 1e6, hits


def table_figures(folder: Path, rules: int, seed: int) -> None:
    rng = random.Random(seed)
    source = folder / "list.txt"
    sample = write_list(source, rng, rules)
    size = source.stat().st_size
    print(f"{rules:,} rules of seed {seed}, {size / rules:.1f} octets of text each")
    empty = in_child(Build((), 1, str(folder / "empty")))[1]
    job = Fetch(Request(f"file:{source}", size), str(folder / "body"), Context(), False, 600)
    fetched, fetch = in_child(job)
    assert isinstance(fetched, Fetched)
    text = Text(Key("l"), 0, "t", Context(), str(folder / "body"), fetched.digest)
    built, build = in_child(Build((text,), 1, str(folder / "table")))
    assert isinstance(built, Built)
    print(
        f"read and count {fetch.wall_s:.2f} s ({fetch.cpu_s:.2f} CPU), build {build.wall_s:.2f} s "
        f"({build.cpu_s:.2f} CPU), in a niced process of {build.peak_mib:.0f} MiB at its peak "
        f"({empty.peak_mib:.0f} for no rules)"
    )
    before = rollup_kib()
    started = time.perf_counter()
    table = open_table(folder / "table")
    open_s = time.perf_counter() - started
    assert table is not None
    print(
        f"load: build and open {build.wall_s + open_s:.2f} s (goal: 4), open {open_s * 1e3:.0f} ms"
    )
    touched = sum(memoryview(table._octets)[PAGE : table._texts_at : PAGE])  # type: ignore[arg-type]
    after = rollup_kib()
    held = (after["Rss"] - before["Rss"]) * 1024 / rules
    ours = (after["Private_Dirty"] - before["Private_Dirty"]) * 1024 / rules
    print(
        f"memory when all of the table was touched ({touched & 1}): {held:.1f} octets a rule "
        f"(goal: 24), {ours:.1f} of them not shared with the page cache; table in the file "
        f"{table.resident_max / rules:.1f}"
    )
    grown = (build.peak_mib - empty.peak_mib) * 1024 * 1024 / rules
    print(
        f"rebuild: the server keeps {held:.1f} octets a rule; the other process takes {grown:.1f} "
        f"meanwhile, with the pages of files that it maps (goal: peak 1.5 times)"
    )
    hits = [names.key(names.from_text(name)) for name in sample]
    below = [names.key(names.from_text(f"www.{name}")) for name in sample]
    misses = [names.key(names.from_text(f"www.q-{name}")) for name in sample]
    for title, asked in (("rules", hits), ("below them", below), ("others", misses)):
        cost, found = lookup_us(table, asked)
        print(f"look-up of {title:<11} {cost:.2f} µs (goal: 3), {found:,} of {len(asked):,} hit")
    few = hits[:1000] * 10
    print(f"look-up of 1,000 blocked names again and again {lookup_us(table, few)[0]:.2f} µs")


def latencies_ms(server: Serving, name: str, until: threading.Event) -> list[float]:
    """Of questions one after the other, half a millisecond apart."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((server.host, server.port))
        sock.settimeout(10)
        while not until.wait(0.0005):
            started = time.perf_counter()
            sock.send(query(name))
            sock.recv(4096)
            found.append((time.perf_counter() - started) * 1e3)
    return found


def show(title: str, rounds: list[list[float]]) -> None:
    ordered = sorted(ms for found in rounds for ms in found)
    each = ", ".join(f"{sorted(found)[len(found) * 99 // 100]:.3f}" for found in rounds)
    print(
        f"queries {title:<16} median {statistics.median(ordered):.3f} ms, 99 % "
        f"{ordered[len(ordered) * 99 // 100]:.3f} ms ({each} by round), longest "
        f"{ordered[-1]:.2f} ms of {len(ordered):,}"
    )


def pause_figures(folder: Path, seconds: float, rounds: int) -> None:
    """What queries feel while a list of that size is fetched and built beside them, and what all of
    it takes of memory; each beside the same without, in turns."""
    data, source = folder / "data", folder / "list.txt"
    sources = [{"url": f"file:{source}"}]
    document = {
        "apiVersion": "kudurru.io/v1alpha1", "kind": "BlockList",
        "metadata": {"name": "million"}, "spec": {"sources": sources},
    }  # fmt: skip
    found: dict[str, list[list[float]]] = {
        "before": [],
        "during a rebuild": [],
        "beside a loop": [],
    }
    with serving(data, "--demo") as server:
        with built_anew(data):
            command("apply", "--data", data, "-f", write_json(folder / "list.json", document))
        memory_figures(server, data, source)
        for _ in range(rounds):
            found["before"].append(latencies_ms(server, "www.demo.example", after(seconds)))
            over = threading.Event()
            thread = threading.Thread(target=rebuild, args=(data, source, over))
            thread.start()
            found["during a rebuild"].append(latencies_ms(server, "www.demo.example", over))
            thread.join()
            with niced_loop():
                said = latencies_ms(server, "www.demo.example", after(seconds))
            found["beside a loop"].append(said)
    for title, times in found.items():
        show(title, times)
    print(
        "the loop is a niced process that only computes: what queries feel of it is what this "
        "machine's processors cost, and what a rebuild adds to that is ours"
    )


def after(seconds: float) -> threading.Event:
    over = threading.Event()
    threading.Timer(seconds, over.set).start()
    return over


@contextmanager
def built_anew(data: Path) -> Iterator[None]:
    """Something that makes the server build its table; until the new one is in place and read."""
    path = data / "lists" / "table"
    before = path.stat().st_ino if path.exists() else 0
    yield
    while not path.exists() or path.stat().st_ino == before:
        time.sleep(0.05)
    time.sleep(0.5)


def rebuild(data: Path, source: Path, over: threading.Event) -> None:
    """A list that has changed is fetched and built."""
    with source.open("a") as file:
        file.write(f"x{time.time_ns()}.example\n")
    with built_anew(data):
        command("list", "refresh", "--data", data, "million")
    over.set()


def memory_figures(server: Serving, data: Path, source: Path) -> None:
    """The whole server with its table in memory, and at its peak with what the other process has
    for itself alone: pages of files are nobody's."""
    pid = server.process.pid
    before = rollup_kib(pid)["Rss"]
    over = threading.Event()
    thread = threading.Thread(target=rebuild, args=(data, source, over))
    thread.start()
    peak = builder_peak = 0
    while not over.wait(0.02):
        alone = sum(
            rollup_kib(child).get("Private_Dirty", 0)
            for child in children_of(pid)
            if b"lists.child" in Path(f"/proc/{child}/cmdline").read_bytes()
        )
        builder_peak = max(builder_peak, alone)
        peak = max(peak, rollup_kib(pid)["Rss"] + alone)
    thread.join()
    print(
        f"rebuild: the server has {before / 1024:.0f} MiB resident before, at most "
        f"{peak / 1024:.0f} with what the other process has for itself (at most "
        f"{builder_peak / 1024:.0f}): {peak / before:.2f} times (goal: 1.5)"
    )


def children_of(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@contextmanager
def niced_loop() -> Iterator[None]:
    """A process beside the server that does nothing but compute, niced as a rebuild is."""
    program = f"import os\nos.nice({NICE})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            yield
        finally:
            process.terminate()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rules", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        table_figures(Path(scratch), given.rules, given.seed)
        pause_figures(Path(scratch), given.seconds, given.rounds)


if __name__ == "__main__":
    main()
