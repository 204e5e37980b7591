"""Three nodes of a real API server, each with the token of a ServiceAccount of its own, behind
dnsdist: nobody notices that they are restarted one by one, and that the one that leads is gone only
until dnsdist has."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.kubernetes.rbac import FEATURES, bound
from tests.blackbox.program import records, wait_until, zone
from tests.kube.balancing import Balancer, Nodes, under_load
from tests.kube.installing import collection
from tests.kube.server import ApiServer
from tests.kube.serving import apply, clear, path_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAMESPACE = "ha"
NAMES = ("kudurru-0", "kudurru-1", "kudurru-2")
ZONE = "lab.example"
HOSTS = [f"h{i}.{ZONE}" for i in range(20)]
PER_SECOND = 100
LEASE = {"DURATION": "8s", "RENEW": "5s", "RETRY": "1s"}


def account(server: ApiServer, name: str, folder: Path) -> Path:
    """A ServiceAccount of the namespace; a kubeconfig with the file of its token, as the kubelet
    would mount it."""
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    assert server.call("POST", accounts, body)[0] == 201
    wanted = {"spec": {"expirationSeconds": 3600}}
    code, found = server.call("POST", f"{accounts}/{name}/token", wanted)
    assert code == 201, found
    token = folder / f"{name}.token"
    token.write_text(found["status"]["token"])
    token.chmod(0o600)
    cluster = {"server": server.url, "certificate-authority": str(server.ca)}
    context = {"cluster": "test", "user": name, "namespace": NAMESPACE}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": name, "user": {"tokenFile": str(token)}}],
        "contexts": [{"name": "test", "context": context}],
    }
    path = folder / f"{name}.kubeconfig"
    path.write_text(json.dumps(content))
    return path


def give_rights(server: ApiServer) -> None:
    """To the accounts of the namespace, as the manifests say."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    assert server.call("POST", "/api/v1/namespaces", body)[0] == 201
    group = f"system:serviceaccounts:{NAMESPACE}"
    subject = {"kind": "Group", "name": group, "apiGroup": "rbac.authorization.k8s.io"}
    for feature in FEATURES:
        for manifest in bound(feature, subject, NAMESPACE):
            manifest["metadata"]["name"] = f"ha-{feature.name}"
            if "roleRef" in manifest:
                manifest["roleRef"] = manifest["roleRef"] | {"name": f"ha-{feature.name}"}
            assert server.call("POST", collection(manifest), manifest)[0] == 201


@pytest.fixture
def nodes(installed: ApiServer, tmp_path: Path) -> Iterator[Nodes]:
    clear(installed)
    give_rights(installed)
    lease = {f"KUDURRU__KUBERNETES__LEASE__{key}": value for key, value in LEASE.items()}
    env = {
        name: {
            "KUBECONFIG": str(account(installed, name, tmp_path)),
            "POD_NAME": name,
            "POD_NAMESPACE": NAMESPACE,
            "KUDURRU__NODE__NAME": name,
            **lease,
        }
        for name in NAMES
    }
    apply(installed, zone(ZONE))
    apply(installed, a_set("hosts", *HOSTS))
    found = Nodes(tmp_path, env)
    try:
        yield found
    finally:
        found.close()
        clear(installed)


def a_set(name: str, *owners: str) -> dict[str, Any]:
    document = records(name, ZONE, *((owner, "A", "192.0.2.1") for owner in owners))
    document["metadata"]["namespace"] = "default"
    return document


def start(nodes: Nodes, name: str) -> None:
    nodes.start(name, "--kubernetes", "cluster")


def add(server: ApiServer, name: str) -> str:
    """One more host, in the cluster. Its owner name."""
    apply(server, a_set(name, f"{name}.{ZONE}"))
    return f"{name}.{ZONE}"


def is_same(server: ApiServer, nodes: Nodes, owner: str) -> bool:
    """Whether all nodes have a host, and the serial that the cluster says."""
    status = server.call("GET", path_of(zone(ZONE)))[1].get("status", {})
    return nodes.have(owner, "192.0.2.1") and nodes.serials(ZONE) == {status.get("serial")}


def test_nodes_are_restarted_and_the_leader_is_killed_behind_dnsdist(
    installed: ApiServer, nodes: Nodes, tmp_path: Path
) -> None:
    for name in NAMES:
        start(nodes, name)
    wait_until(nodes.leader)
    wait_until(lambda: is_same(installed, nodes, HOSTS[0]))
    with ExitStack() as stack:
        balancer = Balancer(tmp_path, nodes, stack)
        for name in NAMES:
            balancer.wait_for("up", name)

        with under_load(balancer, HOSTS, PER_SECOND) as load:
            for name in NAMES:
                nodes.drain(name)
                balancer.wait_for("down", name)
                nodes.end(name)
                owner = add(installed, f"without-{name}")
                start(nodes, name)
                balancer.wait_for("up", name)
                wait_until(lambda owner=owner: is_same(installed, nodes, owner))
            sent, lost = load.result()
        print(f"restarted one by one: {lost} of {sent} queries without an answer")
        assert (sent > 0, lost) == (True, 0)

        leader = wait_until(nodes.leader)
        with under_load(balancer, HOSTS, PER_SECOND) as load:
            nodes.end(leader, is_killed=True)
            balancer.wait_for("down", leader)
            sent, lost = load.result()
        print(f"the leader killed: {lost} of {sent}, until dnsdist took it out")
        with under_load(balancer, HOSTS, PER_SECOND) as load:
            owner = add(installed, "without-leader")
            wait_until(lambda: is_same(installed, nodes, owner))
            wait_until(nodes.leader)
            start(nodes, leader)
            balancer.wait_for("up", leader)
            wait_until(lambda: is_same(installed, nodes, owner))
            sent, lost = load.result()
        print(f"another leads, and it is back: {lost} of {sent}")
        assert (sent > 0, lost) == (True, 0)
