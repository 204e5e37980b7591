"""A server in a cluster takes lists from ConfigMaps, and keys and tokens from Secrets."""

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from kudurru.domain.kinds.apitoken import token_text
from kudurru.entrypoints.cluster_secrets import LABEL
from tests.blackbox.program import Serving, kudurru, wait_until
from tests.kube.server import ApiServer
from tests.kube.serving import APPLY, OWN, free_lease, serving_cluster
from tests.objects import document

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CORE = "/api/v1/namespaces/default"
TOKEN = token_text("deployer", b"\x07" * 32)
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
