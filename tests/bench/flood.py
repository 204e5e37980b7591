"""One honest client beside a flood of names at random from forged prefixes, in networks of their
own.

    python -m tests.bench.flood [--seconds 5] [--times 10] [--names 10000]

Prints figures, asserts nothing; `tests/native/test_flood.py` asserts them. Needs root. The server
is in one network namespace, who asks is in another, and a cable lies between them. The flood
comes from 131,072 addresses of RFC 2544's network, which lie behind the client's end.

Who floods shares the processors with all others here. What that costs is the floor: a program that
only sends back what it gets, on another port, asked as often at the same time.
"""

import argparse
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from tests.absent import absent
from tests.bench.asker import Asker, Figures, figures_of
from tests.bench.latency import ZONE, import_zone, write_names
from tests.bench.misses import resident
from tests.blackbox.program import Serving, read_line, serving

SERVER, CLIENT, FORGED = "192.0.2.1", "192.0.2.2", "198.18.0.0/15"
LINK = "02:00:00:00:00:0a"  # address of the server's end
HONEST_PER_S = 100
LIMITS = {
    "KUDURRU__RATELIMIT__IPV4": '{"32": 12000, "24": 12000}',
    "KUDURRU__QUERYLOG__ENABLED": "false",
}
"""The honest client may ask twice as much as it does."""


class Found(msgspec.Struct, frozen=True):
    idle: Figures
    """of the honest client, alone"""
    honest: Figures
    """and during the flood"""
    floor: Figures
    """of who asks a program at that time that only echoes"""
    flood: Figures
    before: int
    """octets resident when the flood began and was over its beginning"""
    after: int


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--times", type=float, default=10, help="the peak")
    parser.add_argument("--names", type=int, default=10_000)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        print(shown(*flooded(Path(scratch), given.seconds, given.times, given.names)))


def shown(peak_per_s: float, found: Found) -> str:
    flood_per_s = found.flood.sent / found.flood.seconds
    lines = [
        f"peak {peak_per_s:,.0f} queries/s",
        f"flood {flood_per_s:,.0f} a second, {flood_per_s / peak_per_s:.1f} times that",
        *(
            f"{title:<10}{one.answered / one.sent:>10.2%} answered, p50 {one.p50_ms:.2f} ms, "
            f"p99 {one.p99_ms:.2f} ms, max {one.max_ms:.2f} ms"
            for title, one in (
                ("alone", found.idle),
                ("in it", found.honest),
                ("floor", found.floor),
            )
        ),
        f"resident {found.before >> 20} MiB, {found.after >> 20} MiB at the end",
    ]
    return "\n".join(lines)


def flooded(folder: Path, seconds: float, times: float, names_count: int) -> tuple[float, Found]:
    """Beside `times` the peak, which comes first: that of a server without limits, asked by the
    honest client's side."""
    with ExitStack() as stack:
        inside, outside = stack.enter_context(cable())
        asker = Asker(folder, prefix=outside)
        import_zone(folder, folder / "data", names_count)
        names = write_names(folder, names_count)
        where = f"{SERVER}:0"
        free = {**LIMITS, "KUDURRU__RATELIMIT__ENABLED": "false"}
        with serving(folder / "data", dns_at=where, env=free, prefix=inside) as server:
            asker.full((SERVER, server.port), 1, names)
            peak_per_s = asker.full((SERVER, server.port), 2, names).per_s
        server = stack.enter_context(
            serving(folder / "data", dns_at=where, env=LIMITS, prefix=inside)
        )
        echo = stack.enter_context(Asker(folder, prefix=inside).echoing(SERVER))
        found = beside_flood(asker, server, echo, names, seconds, peak_per_s * times)
        return peak_per_s, found


def beside_flood(
    asker: Asker,
    server: Serving,
    echo: tuple[str, int],
    names: Path,
    seconds: float,
    rate: float,
) -> Found:
    at = SERVER, server.port
    idle = asker.paced(at, seconds, HONEST_PER_S, names)
    length = 2 * seconds + 2
    with asker.flooding(at, length, rate, ("there", LINK, ZONE)) as process:
        asker.paced(at, seconds / 2, HONEST_PER_S, names)  # what it fills at first is full
        before = resident(server.process.pid)
        with ThreadPoolExecutor(2) as both:
            ways = [
                both.submit(asker.paced, where, seconds, HONEST_PER_S, names)
                for where in (at, echo)
            ]
        honest, floor = (way.result() for way in ways)
        line, _ = process.communicate(timeout=length + 60)
        after = resident(server.process.pid)
    return Found(idle, honest, floor, figures_of(line), before, after)


@contextmanager
def cable() -> Iterator[tuple[list[str], list[str]]]:
    """What puts a command at the server's end, and what does at the other one."""
    if os.geteuid() != 0:
        absent("networks of its own need root")
    with ExitStack() as stack:
        server, client = (stack.enter_context(network()) for _ in range(2))
        # A session for each: the kernel shares processors out between sessions first (autogroup),
        # and who floods is not to use up what the server gets.
        ends = [["setsid", "nsenter", f"--target={pid}", "--net"] for pid in (server, client)]
        link = f"ip link add here address {LINK} type veth peer name there netns {client}"
        _run(ends[0], link, f"ip address add {SERVER}/24 dev here", "ip link set here up")
        _run(ends[1], f"ip address add {CLIENT}/24 dev there", "ip link set there up")
        _run(ends[0], f"ip route add {FORGED} via {CLIENT}")
        yield ends[0], ends[1]


@contextmanager
def network() -> Iterator[int]:
    """A process in a network of its own, until the end of the block."""
    script = "ip link set lo up && echo up && exec sleep infinity"
    command = ["unshare", "--net", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            if read_line(holder) != "up\n":
                absent("a network namespace cannot be made here")
            yield holder.pid
        finally:
            holder.kill()


def _run(inside: Sequence[str], *commands: str) -> None:
    for command in commands:
        subprocess.run([*inside, *command.split()], check=True)


if __name__ == "__main__":
    main()
