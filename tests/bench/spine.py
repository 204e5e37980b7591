"""The spine from outside: import, cold start, memory, start-up of the command line.

    python -m tests.bench.spine [--records 100000]

Each figure is a child process of its own, so that nothing is warm that would not be. Prints
figures, asserts nothing. CPU seconds are user and system of the child: they hold on a busy machine.
"""

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.master_file import ORIGIN, PEERS, zone_text

ROOT = Path(__file__).parents[2]


def run(*args: str) -> tuple[float, float]:
    """Wall and CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(args, check=True, env=_environment(), stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "KUDURRU__HEALTH__LAMEDUCK": "0s"}


def kudurru(*args: str) -> tuple[float, float]:
    return run(sys.executable, "-m", "kudurru", *args)


def serve(data: Path) -> tuple[float, float, int]:
    """Wall and CPU seconds until a server is ready, and its resident bytes then."""
    ports = ["--dns", "127.0.0.1:0"]
    for name in ("http", "ops", "metrics"):
        ports += [f"--{name}", "127.0.0.1:0"]
    command = [sys.executable, "-m", "kudurru", "serve", "--data", str(data), *ports]
    started = time.perf_counter()
    with subprocess.Popen(
        command, env=_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        wall_s = time.perf_counter() - started
        proc = Path(f"/proc/{process.pid}")
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        resident = int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        process.send_signal(signal.SIGTERM)
    return wall_s, cpu_s, resident


def flat_zone(names: int) -> str:
    """As many objects as records: the most events that a zone of this size can be."""
    head = "$ORIGIN home.example.\n$TTL 300\n@ IN SOA ns1 admin 1 3600 600 86400 300\n@ IN NS ns1\n"
    lines = (f"h{i} IN A 10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}\n" for i in range(names))
    return head + "ns1 IN A 192.0.2.1\n" + "".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    records = parser.parse_args(arguments).records
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        file = folder / "bench.zone"
        file.write_text(zone_text(records))
        best = min(kudurru("version") for _ in range(5))
        print(
            f"start-up (kudurru version)   {best[0]:6.2f} s wall  {best[1]:6.2f} s CPU  (goal 0.3)"
        )
        _, _, idle = serve(folder / "idle")
        print(f"idle serve                   {idle / 2**20:6.1f} MiB resident  (goal 100)")
        wall_s, cpu_s = kudurru("zone", "import", str(file), "--data", str(folder / "data"))
        print(f"import of {records} records  {wall_s:6.2f} s wall  {cpu_s:6.2f} s CPU  (goal 6)")
        flat = folder / "flat.zone"
        flat.write_text(flat_zone(records))
        wall_s, cpu_s = kudurru("zone", "import", str(flat), "--data", str(folder / "flat"))
        print(f"  one name each              {wall_s:6.2f} s wall  {cpu_s:6.2f} s CPU")
        for peer in PEERS:
            if shutil.which(peer[0]):
                wall_s, cpu_s = run(*peer, ORIGIN, str(file))
                print(f"  beside {peer[0]:<20}{wall_s:6.2f} s wall  {cpu_s:6.2f} s CPU")
        for name in ("data", "flat"):
            wall_s, cpu_s, resident = serve(folder / name)
            print(f"cold start, {name:<17}{wall_s:6.2f} s wall  {cpu_s:6.2f} s CPU  (goal 6)")
            each = (resident - idle) / records
            print(f"  resident {resident / 2**20:6.1f} MiB, {each:.0f} bytes a record  (goal 800)")


if __name__ == "__main__":
    main()
