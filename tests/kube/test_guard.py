"""What somebody with the rights of a node, and no more, can put into a cluster, and what it does to
the nodes that follow it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.program import records, wait_until, zone
from tests.kube.server import ApiServer
from tests.kube.serving import (
    APPLY,
    apply,
    clear,
    delete,
    free_lease,
    metric,
    path_of,
    ready,
    serving_cluster,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ZONE = zone("lab.example")
LEVELS = 3_000
"""Python reads a third of it, an API server three times as many."""


def a_set(name: str, target: str) -> dict[str, Any]:
    document = records(name, "lab.example", (f"{name}.lab.example", "A", target))
    document["metadata"]["namespace"] = "default"
    return document


@pytest.fixture
def empty(installed: ApiServer) -> Iterator[ApiServer]:
    clear(installed)
    free_lease(installed)
    yield installed
    clear(installed)


def nest(server: ApiServer, document: dict[str, Any]) -> None:
    """Give an object managedFields of very many levels."""
    fields = '{"f:a":' * LEVELS + "{}" + "}" * LEVELS
    entry = {
        "manager": "deep",
        "operation": "Update",
        "apiVersion": document["apiVersion"],
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": "@",
    }
    body = json.dumps({"metadata": {"managedFields": [entry]}}).replace('"@"', fields)
    form = "application/merge-patch+json"
    code, answer = server.call("PATCH", path_of(document), body.encode(), user="account", form=form)
    assert code == 200, answer
    assert '{"f:a":' * LEVELS in answer


@pytest.fixture
def nested(empty: ApiServer) -> Iterator[ApiServer]:
    """Objects that may be nested, and are gone before somebody lists them in Python."""
    documents = ZONE, a_set("before", "192.0.2.1"), a_set("www", "192.0.2.2")
    for document in documents:
        apply(empty, document)
    yield empty
    for document in documents:
        delete(empty, document)


def test_an_object_of_very_many_levels_stops_no_node(nested: ApiServer, tmp_path: Path) -> None:
    nest(nested, a_set("before", ""))
    for _ in range(2):  # as it is there, and again after a restart
        with serving_cluster(nested, tmp_path) as node:
            wait_until(lambda: node.texts("before.lab.example") == ["192.0.2.1"])
            apply(nested, a_set("www", "192.0.2.2"))
            wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.2"])
            nest(nested, a_set("www", ""))
            apply(nested, a_set("www", "192.0.2.3"))
            wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.3"])
            assert ready(node)[0] == 200


def test_an_object_that_asks_for_what_is_not_public_is_not_taken_and_says_so(
    empty: ApiServer, tmp_path: Path
) -> None:
    inside = zone("corp.example")
    inside["spec"] = {
        "zoneName": "corp.example.",
        "type": "Forward",
        "forward": {"upstreams": ["169.254.169.254"]},
    }
    file = {
        "apiVersion": "kudurru.io/v1alpha1",
        "kind": "BlockList",
        "metadata": {"name": "ads", "namespace": "default"},
        "spec": {"sources": [{"url": "file:/etc/passwd"}]},
    }
    lists = "/apis/kudurru.io/v1alpha1/namespaces/default/blocklists/ads"

    def put(path: str, document: dict[str, Any]) -> None:
        target = f"{path}?fieldManager=somebody"
        code, body = empty.call("PATCH", target, document, user="account", form=APPLY)
        assert code == 201, body

    def accepted(path: str) -> list[str]:
        status = empty.call("GET", path)[1].get("status", {})
        found = [c for c in status.get("conditions", []) if c["type"] == "Accepted"]
        return [f"{one['status']} {one['reason']}" for one in found]

    put(path_of(inside), inside)
    put(lists, file)
    try:
        with serving_cluster(empty, tmp_path) as node:
            for path in (path_of(inside), lists):
                wait_until(lambda path=path: accepted(path) == ["False NotAllowed"])  # type: ignore[misc]
            assert node.texts("www.corp.example") == ["REFUSED"]
            assert metric(node, "kudurru_cluster_objects_refused") == 2
            told = json.dumps(ready(node)[1])
            assert "BlockList default/ads is not taken" in told
            assert "169.254.169.254 is link-local" in told
    finally:
        empty.call("DELETE", lists)
