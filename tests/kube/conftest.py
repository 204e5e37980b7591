"""One API server for all Kubernetes tests of a session."""

import time
from collections.abc import Iterator

import pytest

from kudurru.adapters.kubernetes.crds import crds
from kudurru.adapters.kubernetes.rbac import FEATURES, bound
from tests.absent import absent
from tests.kube.assets import NoAssets, build
from tests.kube.server import ApiServer, api_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    try:
        binary = build()
    except NoAssets as error:
        absent(str(error))
    users = ("nobody", "account", "limited")
    with api_server(binary, tmp_path_factory.mktemp("kube"), users) as found:
        yield found


@pytest.fixture(scope="session")
def installed(server: ApiServer) -> ApiServer:
    """The server with our definitions, and `account` bound to what the manifests say."""
    for definition in crds():
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        assert server.call("POST", path, definition)[0] == 201
    account = {"kind": "User", "name": "account", "apiGroup": "rbac.authorization.k8s.io"}
    for feature in FEATURES:
        for manifest in bound(feature, account, "default"):
            namespace = manifest["metadata"].get("namespace")
            within = f"/namespaces/{namespace}" if namespace else ""
            path = f"/apis/{manifest['apiVersion']}{within}/{manifest['kind'].lower()}s"
            assert server.call("POST", path, manifest)[0] == 201
    for definition in crds():
        _wait_until_served(server, definition["spec"]["names"]["plural"])
    return server


def _wait_until_served(server: ApiServer, plural: str) -> None:
    """Definitions and roles take effect some moments after they are written."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.call("GET", f"/apis/kudurru.io/v1alpha1/{plural}", user="account")[0] == 200:
            return
        time.sleep(0.1)
    raise RuntimeError(f"{plural} are not served")
