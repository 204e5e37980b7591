"""The server binary for the Kubernetes tests: built once from Go modules, kept outside the tree.

    python -m tests.kube.assets        build it where it is not there yet, and print its path

The folder is named after what it was built from, so that another version is built anew. It lies in
KUDURRU_KUBE_ASSETS, or the user's cache folder. Wants Go and some minutes.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "apiserver"
VERSION = "1.37.2"
_NAME = "apiserver"


class NoAssets(Exception):
    """There is no binary, and none can be built here."""


def place() -> Path:
    """Where the binary of this source is, or will be."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("KUDURRU_KUBE_ASSETS") or Path(cache) / "kudurru" / "kube")
    digest = hashlib.sha256()
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return folder / digest.hexdigest()[:16] / _NAME


def build() -> Path:
    """The binary, built where it is not there. Raises: NoAssets; CalledProcessError."""
    target = place()
    if target.exists():
        return target
    if shutil.which("go") is None:
        raise NoAssets("the Kubernetes tests need Go, to build a server: install it, once")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        draft = Path(scratch) / _NAME
        # Without these the server calls itself v0.0.0, and refuses its own defaults.
        major, minor, _ = VERSION.split(".")
        stamps = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
        stamps["gitTreeState"] = "clean"
        flags = [f"-X k8s.io/component-base/version.{name}={at}" for name, at in stamps.items()]
        command = ["go", "build", "-trimpath", "-ldflags", " ".join(["-s", "-w", *flags])]
        environment = os.environ | {"CGO_ENABLED": "0"}
        subprocess.run([*command, "-o", draft, "."], cwd=SOURCE, env=environment, check=True)
        draft.rename(target)
    return target


if __name__ == "__main__":
    try:
        print(build())
    except NoAssets as error:
        sys.exit(str(error))
