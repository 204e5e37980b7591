"""Figures of the tree: what it costs an append, what proofs and verification take.

`python -m tests.bench.tree [FOLDER] [EVENTS]`: printed, not asserted; read the ratios.
"""

import hashlib
import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from kudurru.domain.chain import origin_of
from kudurru.domain.checkpoint import AdoptionBody
from kudurru.domain.events import SIGNING_KEY
from kudurru.domain.export import event_line, first_line, last_line
from kudurru.domain.tree import Edge, Tree, root_of
from kudurru.domain.verify import verify
from kudurru.entrypoints import verify_export
from tests.bench.log import new_change
from tests.logs import adopt, sign, sqlite_log, trust

EVENTS = 100_000
APPEND = 1_000


def took_s(run: Callable[[], object], rounds: int = 3) -> float:
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return median(times)


def line(what: str, seconds: float, count: int) -> None:
    print(f"{what:44} {count / seconds:>11,.0f}/s {seconds / count * 1e6:>9.2f} µs")


def bench_edge(count: int) -> None:
    leaves = [hashlib.sha256(b"%d" % i).digest() for i in range(count)]
    line("SHA-256 of 65 octets, the floor", took_s(lambda: floor(count)), count)

    def grow(size: int) -> None:
        edge = Edge()
        for at in range(0, count, size):
            edge, _ = edge.extended(leaves[at : at + size])

    for size in (1, 32, APPEND):
        line(f"tree of an append of {size}, an event", took_s(lambda: grow(size)), count)  # noqa: B023
    line("root of all leaves, a leaf", took_s(lambda: root_of(leaves)), count)
    edge, _ = Edge().extended(leaves)
    line("root of the edge, as a checkpoint needs it", took_s(edge.root), 1)


def floor(count: int) -> None:
    octets = bytes(65)
    for _ in range(count):
        hashlib.sha256(octets).digest()


def bench_log(folder: Path, count: int) -> None:
    log = sqlite_log(folder / "log.db")
    for at in range(0, count, APPEND):
        log.append([new_change() for _ in range(APPEND)], 0)
        sign(log, 1, *([adopt(log)] if at == 0 else []))
    size = log.head().seq
    line("verification without the tree", took_s(lambda: verify(log)), size)
    line(
        "verification, tree and signatures too", took_s(lambda: verify(log, trust=trust(log))), size
    )
    octets = sum(len(row.entry) + len(row.body or b"") + len(row.who or b"") for row in log.rows())
    blob = bytes(octets // size)
    plain = took_s(lambda: [hashlib.sha256(blob).digest() for _ in range(size)])
    line("SHA-256 of the same octets, once", plain, size)
    line("opening: tail verified", took_s(lambda: verify(log, tail=10_000, trust=trust(log))), 1)
    bench_proofs(log, size)
    log.close()


def bench_proofs(source: Any, size: int) -> None:
    tree = Tree(size, source.hashes)
    line(
        "proofs in order", took_s(lambda: [tree.inclusion_proof(i) for i in range(10_000)]), 10_000
    )
    far = range(0, size, max(1, size // 200))
    cold = took_s(lambda: [Tree(size, source.hashes).inclusion_proof(i) for i in far])
    line("a proof by itself, as audit prove", cold, len(far))
    path = tree.inclusion_proof(size // 2)
    print(f"{'octets of a proof':44} {32 * len(path):>11,}")
    origin = origin_of(source.log_id, source.epoch)
    newest = source.newest_checkpoint()
    keys = [note_of(event.body) for event in source.read(key=SIGNING_KEY)]

    def exported() -> bytes:
        lines = [first_line(origin, size, {}, keys)]
        lines += [event_line(row) for row in source.rows()]
        return b"".join([*lines, last_line(newest, size)])

    line("export as JSON Lines", took_s(exported, 1), size)
    text = exported().decode()
    line("kudurru-verify", took_s(lambda: verify_export.verify(io.StringIO(text), []), 1), size)


def note_of(body: bytes) -> str:
    return msgspec.json.decode(body, type=AdoptionBody).note


def main() -> None:
    base = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    count = int(sys.argv[2]) if len(sys.argv) > 2 else EVENTS
    bench_edge(count)
    with tempfile.TemporaryDirectory(dir=base) as name:
        bench_log(Path(name), count)


if __name__ == "__main__":
    main()
