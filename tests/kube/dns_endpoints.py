"""The definition of external-dns' DNSEndpoint, as its documentation describes the kind, and objects
of it."""

import time
from typing import Any

from tests.kube.server import ApiServer

API = "/apis/externaldns.k8s.io/v1alpha1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
APPLY = "application/apply-patch+yaml"

Object = dict[str, Any]


def _object(**properties: Object) -> Object:
    return {"type": "object", "properties": properties}


def _list(items: Object) -> Object:
    return {"type": "array", "items": items}


_TEXT: Object = {"type": "string"}
_NUMBER: Object = {"type": "integer", "format": "int64"}
_ENDPOINT = _object(
    dnsName=_TEXT,
    recordType=_TEXT,
    recordTTL=_NUMBER,
    setIdentifier=_TEXT,
    targets=_list(_TEXT),
    labels={"type": "object", "additionalProperties": _TEXT},
    providerSpecific=_list(_object(name=_TEXT, value=_TEXT)),
)
DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "dnsendpoints.externaldns.k8s.io",
        # The API server wants a word for groups below k8s.io.
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "externaldns.k8s.io",
        "scope": "Namespaced",
        "names": {
            "kind": "DNSEndpoint",
            "listKind": "DNSEndpointList",
            "plural": "dnsendpoints",
            "singular": "dnsendpoint",
        },
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": _object(
                        spec=_object(endpoints=_list(_ENDPOINT)),
                        status=_object(observedGeneration=_NUMBER),
                    )
                },
            }
        ],
    },
}


def install_endpoints(server: ApiServer) -> None:
    """Served when it returns."""
    code, answer = server.call("POST", DEFINITIONS, DEFINITION)
    assert code in (201, 409), answer
    deadline = time.monotonic() + 60
    while server.call("GET", f"{API}/dnsendpoints")[0] != 200:
        assert time.monotonic() < deadline, "dnsendpoints are not served"
        time.sleep(0.1)


def uninstall_endpoints(server: ApiServer) -> None:
    server.call("DELETE", f"{DEFINITIONS}/dnsendpoints.externaldns.k8s.io")
    deadline = time.monotonic() + 60
    while server.call("GET", f"{API}/dnsendpoints")[0] != 404:
        assert time.monotonic() < deadline, "dnsendpoints are still served"
        time.sleep(0.1)


def endpoint(name: str, *endpoints: Object) -> Object:
    return {
        "apiVersion": "externaldns.k8s.io/v1alpha1",
        "kind": "DNSEndpoint",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"endpoints": list(endpoints)},
    }


def path_of(name: str) -> str:
    return f"{API}/namespaces/default/dnsendpoints/{name}"


def put(server: ApiServer, document: Object, manager: str = "kubectl") -> None:
    path = f"{path_of(document['metadata']['name'])}?fieldManager={manager}&force=true"
    code, answer = server.call("PATCH", path, document, form=APPLY)
    assert code in (200, 201), answer
