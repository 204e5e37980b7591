"""external-dns itself, built once from its Go module and kept outside the tree, as Helm is.

    python -m tests.kube.external_dns        build it where it is not there yet

All of it but the providers of clouds and the registries in them: those are most of what it is made
of, and building them would take longer than everything else that the tests build. Of its sources
two files lose the lines that name them. Nothing of external-dns is kept here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kube.assets import NoAssets, place

MODULE = "sigs.k8s.io/external-dns"
VERSION = "v0.21.0"  # the newest whose own modules can all be had from the proxy, and for our Go
KEPT = {"provider": {"webhook", "factory"}, "registry": {"txt", "noop"}}


def build() -> Path:
    """The binary, built where it is not there. Raises: NoAssets; CalledProcessError."""
    target = place().parent.parent / f"external-dns-{VERSION}" / "external-dns"
    if target.exists():
        return target
    if shutil.which("go") is None:
        raise NoAssets("the tests of the webhook need Go, to build external-dns: install it, once")
    target.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"CGO_ENABLED": "0"}
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        done = subprocess.run(
            command, cwd=scratch, env=environment, check=True, capture_output=True, text=True
        )
        tree = Path(scratch) / "tree"
        shutil.copytree(json.loads(done.stdout)["Dir"], tree, copy_function=shutil.copyfile)
        for folder in (tree, *tree.rglob("*/")):
            folder.chmod(0o755)  # the cache's cannot be written to
        for what, kept in KEPT.items():
            path = tree / what / "factory" / f"{what}.go"
            path.write_text(without_others(path.read_text(), what, kept))
        draft = Path(scratch) / "external-dns"
        flags = ["-trimpath", "-buildvcs=false", "-ldflags", "-s -w"]
        subprocess.run(
            ["go", "build", *flags, "-o", draft, "."], cwd=tree, env=environment, check=True
        )
        draft.rename(target)
    return target


def without_others(source: str, what: str, kept: set[str]) -> str:
    """A factory without the lines that import or name implementations that are not kept."""
    lines = []
    for line in source.splitlines():
        found = re.fullmatch(rf'\s*"{MODULE}/{what}/(\w+)"', line)
        found = found or re.fullmatch(r"\s*\w+\.\w+:\s+(\w+)\.New\w*,", line)
        if found is None or found[1] in kept:
            lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        print(build())
    except NoAssets as error:
        sys.exit(str(error))
