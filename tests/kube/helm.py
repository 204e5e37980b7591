"""Helm, built once from its Go module and kept outside the tree, as the API server is."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.kube.assets import NoAssets, place

VERSION = "v3.19.0"


def build() -> Path:
    """The binary, built where it is not there. Raises: NoAssets; CalledProcessError."""
    target = place().parent.parent / f"helm-{VERSION}" / "helm"
    if target.exists():
        return target
    if shutil.which("go") is None:
        raise NoAssets("the tests of the chart need Go, to build Helm: install it, once")
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = {"CGO_ENABLED": "0", "GOBIN": str(target.parent), "GOFLAGS": "-mod=mod"}
    package = f"helm.sh/helm/v3/cmd/helm@{VERSION}"
    command = ["go", "install", "-trimpath", "-ldflags", "-s -w", package]
    subprocess.run(command, env=os.environ | flags, check=True)
    return target
