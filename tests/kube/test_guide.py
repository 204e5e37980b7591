"""The commands of docs/kubernetes.md, run on a real API server: those of kudurru and Helm always,
kubectl's where it is installed."""

import os
import re
import shlex
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.absent import absent
from tests.blackbox.program import PATIENCE_S, ROOT, kudurru, records, serving, wait_until, zone
from tests.kube import helm
from tests.kube.assets import NoAssets, build
from tests.kube.server import ApiServer, api_server
from tests.kube.serving import apply, free_lease, kubeconfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GUIDE = (ROOT / "docs/kubernetes.md").read_text()

SERVE = "kudurru serve --kubernetes cluster"
CRDS_DIFF, CRDS_INSTALL = "kudurru crds diff", "kudurru crds install"
HELM = (
    "helm install dns deploy/chart/kudurru --namespace dns --create-namespace "
    "--set image.repository=registry.example/kudurru"
)
UPGRADE = (
    "helm upgrade copy deploy/chart/kudurru --namespace dns --reuse-values "
    "--set follow.promoted=true --set replicas=1"
)
PROMOTE = (
    "kubectl -n dns exec copy-kudurru-0 -- kudurru promote "
    "--reason 'the first site burnt down' --force"
)
COMPARE = "kudurru audit compare --kubernetes cluster --data /var/lib/kudurru"
KUBECTL = [
    "kubectl apply -f deploy/manifests/kudurru.yaml",
    "kubectl apply -f schemas/rbac/objects.yaml",
    (
        "kubectl create secret generic transfer.example --from-literal=algorithm=hmac-sha256 "
        '--from-literal=secret="$(openssl rand -base64 32)"'
    ),
    "kubectl label secret transfer.example kudurru.io/kind=TSIGKey",
    (
        "kubectl create secret generic root --from-literal=role=admin "
        '--from-literal=token="kudurru_root_$(openssl rand -hex 32)" '
        "--from-literal=expiresAt=2027-01-01T00:00:00Z"
    ),
    "kubectl label secret root kudurru.io/kind=APIToken",
    "kubectl create token deployer --audience kudurru",
    "kubectl get namespace kube-system -o jsonpath='{.metadata.uid}'",
]
"""Of the guide, in its order: a command that is new there wants its place here."""


def commands() -> list[str]:
    """Indented lines, each whole and without its comment."""
    text = re.sub(r"\\\n\s*", "", GUIDE)
    found = re.findall(r"^    ((?:kudurru|kubectl|helm) .*)$", text, re.MULTILINE)
    return [re.sub(r"\s+# .*", "", line) for line in found]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    try:
        binary = build()
        helm.build()
    except NoAssets as error:
        absent(str(error))
    with api_server(binary, tmp_path_factory.mktemp("guide"), ("nobody",)) as found:
        yield found


def test_every_command_of_the_guide_is_known_here() -> None:
    assert sorted(commands()) == sorted(
        [SERVE, CRDS_DIFF, CRDS_INSTALL, HELM, UPGRADE, PROMOTE, COMPARE, *KUBECTL]
    )
    for words in map(shlex.split, KUBECTL):
        assert all((ROOT / name).exists() for name in words if name.endswith(".yaml"))


def test_the_commands_of_the_guide_do_what_it_says(cluster: ApiServer, tmp_path: Path) -> None:
    env = {"KUBECONFIG": str(kubeconfig(cluster, tmp_path, "admin"))}

    def run(line: str, data: Path) -> Any:
        words = [str(data) if word == "/var/lib/kudurru" else word for word in shlex.split(line)]
        return kudurru(*words[1:], env=env)

    data = tmp_path / "data"
    assert run(CRDS_DIFF, data).code == 1
    assert run(CRDS_INSTALL, data).code == 0
    assert run(CRDS_DIFF, data).code == 0
    a_set = records("www", "lab.example", ("www.lab.example", "A", "192.0.2.1"))
    for document in (zone("lab.example"), a_set):
        apply(cluster, document)
    free_lease(cluster)
    with serving(data, *shlex.split(SERVE)[2:], env=env) as node:
        wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.1"])
        same = run(COMPARE, data)
        assert same.code == 0, same.out + same.err


def test_helm_installs_as_the_guide_says(cluster: ApiServer, tmp_path: Path) -> None:
    assert kudurru("crds", "install", env=_access(cluster, tmp_path)).code == 0
    words = shlex.split(HELM)
    _done([str(helm.build()), *words[1:]], _access(cluster, tmp_path))
    code, found = cluster.call("GET", "/apis/apps/v1/namespaces/dns/statefulsets")
    assert (code, len(found["items"])) == (200, 1)


def test_a_release_of_followers_is_upgraded_as_the_guide_says(
    cluster: ApiServer, tmp_path: Path
) -> None:
    access, program = _access(cluster, tmp_path), str(helm.build())
    [text] = re.findall(r"^    follow:\n(?:      .*\n)+", GUIDE, re.MULTILINE)
    values = tmp_path / "values.yaml"
    values.write_text(textwrap.dedent(text))
    given = ["--namespace", "dns", "--create-namespace", "--values", str(values)]
    _done([program, "install", "copy", "deploy/chart/kudurru", *given], access)
    _done([program, *shlex.split(UPGRADE)[1:]], access)
    path = "/api/v1/namespaces/dns/configmaps/copy-kudurru"
    settings = yaml.safe_load(cluster.call("GET", path)[1]["data"]["kudurru.yaml"])
    assert "url" not in settings["follow"]
    # Of the pod it says what is run in it, as it is no cluster that runs pods.
    words = shlex.split(PROMOTE)
    pod, inside = words[4], words[words.index("--") + 1 :]
    path = "/apis/apps/v1/namespaces/dns/statefulsets/copy-kudurru"
    assert pod == f"{cluster.call('GET', path)[1]['metadata']['name']}-0"
    assert kudurru(*inside[1:], "--help").code == 0


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_takes_the_commands_of_the_guide(cluster: ApiServer, tmp_path: Path) -> None:
    assert kudurru("crds", "install", env=_access(cluster, tmp_path)).code == 0
    for document in ("deployer", "default"):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": document}}
        cluster.call("POST", "/api/v1/namespaces/default/serviceaccounts", account)
    for line in KUBECTL:
        _done(["sh", "-c", line], _access(cluster, tmp_path))


def _access(cluster: ApiServer, folder: Path) -> dict[str, str]:
    return {"KUBECONFIG": str(kubeconfig(cluster, folder, "admin"))}


def _done(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
