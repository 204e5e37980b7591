"""DNSEndpoints of a real API server, read with the rights of the manifests and no others."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.program import kudurru, wait_until, zone
from tests.kube.dns_endpoints import (
    endpoint,
    install_endpoints,
    path_of,
    put,
    uninstall_endpoints,
)
from tests.kube.server import ApiServer
from tests.kube.serving import OWN, apply, clear, free_lease, ready, serving_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ON = {"KUDURRU__KUBERNETES__DNSENDPOINTS": "true"}
WWW: dict[str, Any] = {
    "dnsName": "www.lab.example",
    "recordType": "A",
    "recordTTL": 180,
    "targets": ["192.0.2.1"],
    "providerSpecific": [{"name": "example.com/proxied", "value": "true"}],
}


@pytest.fixture
def empty(installed: ApiServer) -> Iterator[ApiServer]:
    install_endpoints(installed)
    clear(installed)
    free_lease(installed)
    apply(installed, zone("lab.example"))
    yield installed
    uninstall_endpoints(installed)
    clear(installed)


def observed(server: ApiServer, name: str) -> Any:
    return server.call("GET", path_of(name))[1].get("status", {}).get("observedGeneration")


def rows(folder: Path) -> list[dict[str, Any]]:
    """The history of record sets, the oldest first."""
    history = kudurru("history", "--data", folder / "data", "--limit", "200", "-o", "json").json()
    types = ("obj.applied.v1", "obj.deleted.v1")
    found = [row for row in reversed(history) if row["type"] in types]
    return [row for row in found if row["object"].startswith("dnsrecordset/")]


def test_a_dnsendpoint_is_served_observed_changed_and_taken_away(
    empty: ApiServer, tmp_path: Path
) -> None:
    wild = {"dnsName": "*.lab.example", "recordType": "CNAME", "targets": ["www.lab.example"]}
    put(empty, endpoint("web", WWW, wild), "gitops")
    with serving_cluster(empty, tmp_path, **ON) as node:
        wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.1"])
        assert node.texts("any.lab.example", "CNAME") == ["www.lab.example."]
        wait_until(lambda: observed(empty, "web") == 1)
        (record_set,) = empty.call("GET", f"{OWN}/dnsrecordsets")[1]["items"]
        annotations = record_set["metadata"]["annotations"]
        assert annotations["kudurru.io/managed-by"] == "dnsendpoint:default/web"
        put(empty, endpoint("web", {**WWW, "targets": ["192.0.2.2"]}), "gitops")
        wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.2"])
        wait_until(lambda: observed(empty, "web") == 2)
    written = rows(tmp_path)
    assert [(row["actor"], row["verb"], row["reason"]) for row in written] == [
        ("kubernetes:gitops", "created", "DNSEndpoint default/web"),
        ("kubernetes:gitops", "changed", "DNSEndpoint default/web"),
    ]
    with serving_cluster(empty, tmp_path, **ON) as node:
        put(empty, endpoint("last", {**WWW, "dnsName": "last.lab.example"}))
        wait_until(lambda: node.texts("last.lab.example") == ["192.0.2.1"])
        assert len(rows(tmp_path)) == 3, "what was there is written once"
        assert empty.call("DELETE", path_of("web"))[0] == 200
        wait_until(lambda: node.texts("www.lab.example") == ["NXDOMAIN"])
        assert node.texts("last.lab.example") == ["192.0.2.1"]
        (gone,) = rows(tmp_path)[3:]
        assert (gone["verb"], gone["reason"]) == ("deleted", "DNSEndpoints are gone: default/web")
        assert kudurru("audit", "verify", "--data", tmp_path / "data").code == 0


def test_a_fault_is_an_event_beside_the_object_and_a_warning_and_stops_no_other(
    empty: ApiServer, tmp_path: Path
) -> None:
    bad = [{**WWW, "targets": ["nonsense"]}, {**WWW, "recordType": "WHAT"}]
    put(empty, endpoint("bad", *bad))
    with serving_cluster(empty, tmp_path, **ON) as node:
        put(empty, endpoint("good", WWW))
        wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.1"])

        def events() -> list[Any]:
            found = empty.call("GET", "/api/v1/namespaces/default/events")[1]["items"]
            return [one for one in found if one["involvedObject"]["kind"] == "DNSEndpoint"]

        (event, *_) = wait_until(events)
        assert (event["reason"], event["involvedObject"]["name"]) == ("RecordError", "bad")
        for place in ("spec.endpoints[0].targets[0]", "spec.endpoints[1].recordType"):
            assert place in event["message"]
            wait_until(lambda place=place: place in json.dumps(ready(node)[1]))
        assert observed(empty, "bad") is None
