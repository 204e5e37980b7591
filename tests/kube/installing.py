"""Our definitions and roles, installed on an API server."""

import time
from typing import Any

from kudurru.adapters.kubernetes.crds import crds
from kudurru.adapters.kubernetes.rbac import FEATURES, Feature, bound
from tests.kube.server import ApiServer

Object = dict[str, Any]

_LEASES = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
_MORE = Feature(
    "tests",
    "Leases that only tests compete for.",
    [_LEASES | {"verbs": ["get", "update"], "resourceNames": ["kudurru-other", "kudurru-timed"]}],
    is_of_namespace=True,
)


def install(server: ApiServer, user: str = "account") -> None:
    """Bind a user to what the manifests say. Served when it returns."""
    for definition in crds():
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        assert server.call("POST", path, definition)[0] == 201
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    for feature in (*FEATURES, _MORE):
        for manifest in bound(feature, subject, "default"):
            assert server.call("POST", collection(manifest), manifest)[0] == 201
    for definition in crds():
        _wait_until_served(server, definition["spec"]["names"]["plural"], user)


def collection(manifest: Object) -> str:
    """Path of the roles or bindings that one is of."""
    namespace = manifest["metadata"].get("namespace")
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{manifest['apiVersion']}{within}/{manifest['kind'].lower()}s"


def _wait_until_served(server: ApiServer, plural: str, user: str) -> None:
    """Definitions and roles take effect some moments after they are written."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.call("GET", f"/apis/kudurru.io/v1alpha1/{plural}", user=user)[0] == 200:
            return
        time.sleep(0.1)
    raise RuntimeError(f"{plural} are not served")
