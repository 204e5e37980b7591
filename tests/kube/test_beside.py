"""A server in a cluster takes lists from ConfigMaps, keys and tokens from Secrets, and writes for
the cluster's users what that lets them."""

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.kubernetes.reviews import AUDIENCE
from kudurru.domain.kinds.apitoken import token_text
from kudurru.entrypoints.cluster.secrets import LABEL
from tests.blackbox.program import Serving, kudurru, wait_until
from tests.kube.server import ApiServer
from tests.kube.serving import APPLY, OWN, free_lease, serving_cluster
from tests.objects import document

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CORE = "/api/v1/namespaces/default"
TOKEN = token_text("deployer", b"\x07" * 32)
ROOT = token_text("root", b"\x08" * 32)
SECRET = base64.b64encode(bytes(range(32))).decode()


def write(server: ApiServer, path: str, body: dict[str, Any]) -> None:
    code, answer = server.call("PATCH", f"{path}?fieldManager=kubectl&force=true", body, form=APPLY)
    assert code in (200, 201), answer


def config_map(text: str) -> dict[str, Any]:
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ads"}}
    return head | {"data": {"names": text}}


def secret(name: str, kind: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": {LABEL: kind}},
        "stringData": data,
    }


def status_of_asking(node: Serving, token: str) -> int:
    url = f"http://{node.addresses['http']}/api/v1/info"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def asked(node: Serving, method: str, path: str, token: str, body: Any = None) -> tuple[int, str]:
    url = f"http://{node.addresses['http']}/api/v1{path}"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_user_of_the_cluster_writes_through_the_api_what_the_cluster_lets_him(
    installed: ApiServer, tmp_path: Path
) -> None:
    free_lease(installed)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "editor"}}
    assert installed.call("POST", f"{CORE}/serviceaccounts", account)[0] == 201
    wanted = {"spec": {"audiences": [AUDIENCE]}}
    code, found = installed.call("POST", f"{CORE}/serviceaccounts/editor/token", wanted)
    assert code == 201
    token = found["status"]["token"]
    group = document("ClientGroup", "laptops", {"clients": [{"ip": "192.0.2.1"}]})
    path = "/namespaces/default/clientgroups/laptops"
    try:
        with serving_cluster(installed, tmp_path) as node:
            code, text = asked(node, "PUT", path, token, group)
            assert code == 403
            assert "serviceaccount:default:editor may not patch clientgroups.kudurru.io" in text
            let(installed, "editor", "create", "patch")
            wait_until(lambda: asked(node, "PUT", path, token, group)[0] in (200, 201))
            code, held = installed.call("GET", f"{OWN}{path}")
            assert (code, held["spec"]) == (200, group["spec"])
            code, text = asked(node, "DELETE", path, token)
            assert (code, "may not delete" in text) == (403, True)
            data = ("--data", str(tmp_path / "data"))
            history = kudurru("history", "-o", "json", *data).out
            assert "kubernetes-user:system:serviceaccount:default:editor" in history
            assert token not in history + node.stderr()
    finally:
        installed.call("DELETE", f"{OWN}{path}")


def let(server: ApiServer, account: str, *verbs: str) -> None:
    """Do that with client groups of the namespace default."""
    api = "rbac.authorization.k8s.io"
    head = {"apiVersion": f"{api}/v1", "metadata": {"name": account}}
    rule = {"apiGroups": ["kudurru.io"], "resources": ["clientgroups"], "verbs": list(verbs)}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "default"}
    reference = {"apiGroup": api, "kind": "Role", "name": account}
    within = f"/apis/{api}/v1/namespaces/default"
    role = head | {"kind": "Role", "rules": [rule]}
    binding = head | {"kind": "RoleBinding", "roleRef": reference, "subjects": [subject]}
    assert server.call("POST", f"{within}/roles", role)[0] == 201
    assert server.call("POST", f"{within}/rolebindings", binding)[0] == 201


def test_lists_keys_and_tokens_come_from_the_cluster(installed: ApiServer, tmp_path: Path) -> None:
    free_lease(installed)
    sources = [{"configMapRef": {"name": "ads", "key": "names"}}]
    objects = {
        f"{OWN}/namespaces/default/blocklists/ads": document(
            "BlockList", "ads", {"sources": sources}
        ),
        f"{OWN}/namespaces/default/policies/all": document(
            "Policy", "all", {"priority": 1, "blockListRefs": ["ads"], "blockMode": "nxdomain"}
        ),
    }
    places = [f"{CORE}/configmaps/ads", f"{CORE}/secrets/transfer", f"{CORE}/secrets/deployer"]
    write(installed, places[0], config_map("ads.example\n"))
    for path, body in objects.items():
        write(installed, path, body)
    write(installed, places[1], secret("transfer", "TSIGKey", secret=SECRET))
    token = {"token": TOKEN, "role": "viewer", "expiresAt": "2999-01-01T00:00:00Z"}
    try:
        with serving_cluster(installed, tmp_path) as node:
            wait_until(lambda: node.texts("ads.example") == ["NXDOMAIN"])
            write(installed, places[0], config_map("track.example\n"))
            wait_until(lambda: node.texts("track.example") == ["NXDOMAIN"])
            data = ("--data", str(tmp_path / "data"))
            wait_until(lambda: "transfer" in kudurru("tsig", "list", *data).out)
            assert status_of_asking(node, TOKEN) == 401
            write(installed, places[2], secret("deployer", "APIToken", **token))
            wait_until(lambda: status_of_asking(node, TOKEN) == 200)
            assert installed.call("DELETE", places[2])[0] == 200
            wait_until(lambda: status_of_asking(node, TOKEN) == 401)
            done = kudurru("tsig", "revoke", "transfer", *data)
            assert done.code == 1
            assert "is a Secret of the cluster: delete it there" in done.err
            actors = {
                change["who"]["actor"] if "who" in change else change["actor"]
                for change in json.loads(kudurru("history", "-o", "json", *data).out)
            }
            assert "kubernetes:secrets" in actors
            shown = node.stderr()
            assert SECRET not in shown
            assert TOKEN not in shown
    finally:
        for path in (*objects, *places[:2]):
            assert installed.call("DELETE", path)[0] == 200


def test_a_secret_is_the_first_token_of_a_cluster(installed: ApiServer, tmp_path: Path) -> None:
    free_lease(installed)
    place, first = f"{CORE}/secrets/root", tmp_path / "data" / "admin.token"
    token = {"token": ROOT, "role": "admin", "expiresAt": "2999-01-01T00:00:00Z"}
    try:
        with serving_cluster(installed, tmp_path) as node:
            assert first.exists()
            write(installed, place, secret("root", "APIToken", **token))
            wait_until(lambda: status_of_asking(node, ROOT) == 200)
            code, text = asked(node, "POST", "/tokens", ROOT, {"name": "ci", "role": "viewer"})
            assert code == 201
            assert status_of_asking(node, json.loads(text)["token"]) == 200
            wait_until(lambda: not first.exists())  # an admin can make the others
            code, text = asked(node, "PATCH", "/settings", ROOT, {"cache.maxEntries": 1})
            assert (code, "the ConfigMap behind this node" in text) == (409, True)
            assert ROOT not in node.stderr()
    finally:
        assert installed.call("DELETE", place)[0] == 200
