"""`kudurru serve` on a real API server, reached as kubectl reaches it."""

import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.blackbox.program import Serving, serving
from tests.kube.server import ApiServer

APPLY = "application/apply-patch+yaml"
OWN = "/apis/kudurru.io/v1alpha1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def kubeconfig(server: ApiServer, folder: Path, user: str = "account") -> Path:
    """A file as `kubectl config` writes it."""
    path = folder / f"kubeconfig-{user}"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [
            {
                "name": "test",
                "cluster": {"server": server.url, "certificate-authority": str(server.ca)},
            }
        ],
        "users": [{"name": user, "user": {"token": server.tokens[user]}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
    }
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    return path


@contextmanager
def serving_cluster(
    server: ApiServer, folder: Path, *options: str, owner: str = "cluster", **env: str
) -> Iterator[Serving]:
    """A node of the cluster, whose data is in a folder."""
    config = kubeconfig(server, folder)
    more = {"KUBECONFIG": str(config), "KUDURRU__NODE__NAME": "node-1", **env}
    with serving(folder / "data", "--kubernetes", owner, *options, env=more) as running:
        yield running


def path_of(document: dict[str, Any]) -> str:
    plural = {"DNSZone": "dnszones", "DNSRecordSet": "namespaces/default/dnsrecordsets"}
    return f"{OWN}/{plural[document['kind']]}/{document['metadata']['name']}"


def apply(server: ApiServer, document: dict[str, Any], manager: str = "kubectl") -> Any:
    """As `kubectl apply --server-side --force-conflicts` does."""
    path = f"{path_of(document)}?fieldManager={manager}&force=true"
    code, body = server.call("PATCH", path, document, form=APPLY)
    assert code in (200, 201), body
    return body


def delete(server: ApiServer, document: dict[str, Any]) -> None:
    assert server.call("DELETE", path_of(document))[0] == 200


def free_lease(server: ApiServer) -> None:
    """An empty Lease: the first leader need not wait until it is sure that there was none."""
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "kudurru-controller"},
        "spec": {},
    }
    server.call("DELETE", f"{LEASES}/kudurru-controller")
    assert server.call("POST", LEASES, lease)[0] == 201


def clear(server: ApiServer) -> None:
    """Without any object of ours."""
    for kind in ("dnszones", "dnsrecordsets"):
        for item in server.call("GET", f"{OWN}/{kind}")[1]["items"]:
            document = {**item, "kind": "DNSZone" if kind == "dnszones" else "DNSRecordSet"}
            delete(server, document)


def ready(node: Serving) -> tuple[int, dict[str, Any]]:
    """What its readiness probe says."""
    url = f"http://{node.addresses['ops']}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"{}")


def metric(node: Serving, name: str) -> float:
    """Sum over its labels."""
    url = f"http://{node.addresses['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.partition("{")[0].partition(" ")[0] == name]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def status_writes(server: ApiServer) -> int:
    """Of zones, that it took since its start."""
    text = server.call("GET", "/metrics", accept="text/plain")[1]
    found = re.findall(r"^apiserver_request_total\{([^}]*)\} (\d+)", text, re.M)
    wanted = ('resource="dnszones"', 'subresource="status"', 'code="200"')
    writes = [int(n) for labels, n in found if all(one in labels for one in wanted)]
    return sum(writes)


def compact(server: ApiServer) -> None:
    """Let etcd forget what was before now: watches from there are answered 410."""
    key = base64.b64encode(b"/").decode()

    def ask(method: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{server.etcd}/v3/kv/{method}", data)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    ask("compaction", {"revision": ask("range", {"key": key})["header"]["revision"]})
