"""`kudurru serve` on a real API server, reached as kubectl reaches it."""

import json
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
