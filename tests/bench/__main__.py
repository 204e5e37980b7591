"""Every bench, one after the other: `just bench`. `--short` is what CI has time for."""

import argparse
import importlib
import sys

BENCHES = (
    *("spine", "log", "tree", "replay", "postgres", "restore"),
    *(
        "master_file",
        "answers",
        "engine",
        "scaling",
        "latency",
        "misses",
        "forward",
        "cache_dump",
        "visible",
    ),
    *("transports", "lists", "transfers", "statuses", "follow"),
)
SHORT = ("spine", "log", "engine", "visible", "lists", "follow")
GROUPS = {"record": ("log", "replay", "restore", "postgres")}
"""What belongs together: `just bench record`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = ", ".join((*GROUPS, *BENCHES))
    parser.add_argument("names", nargs="*", help=f"some of {known}")
    parser.add_argument("--short", action="store_true")
    chosen = parser.parse_args()
    wanted = [one for name in chosen.names for one in GROUPS.get(name, (name,))]
    for name in wanted or (SHORT if chosen.short else BENCHES):
        print(f"== {name}", flush=True)
        sys.argv = [f"tests.bench.{name}"]
        if chosen.short and name == "engine":
            sys.argv += ["--seconds", "2", "--rounds", "1"]
        if chosen.short and name == "visible":
            sys.argv += ["--changes", "100", "--records", "50000"]
        if chosen.short and name == "follow":
            sys.argv += ["--events", "50000"]
        importlib.import_module(f"tests.bench.{name}").main()


if __name__ == "__main__":
    main()
