"""What becomes of `kudurru serve` and its DNS when the API server is away, and when it is back."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.program import kudurru, records, serve_arguments, wait_until, zone
from tests.kube.server import Machines
from tests.kube.serving import (
    apply,
    compact,
    delete,
    free_lease,
    kubeconfig,
    metric,
    ready,
    serving_cluster,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ZONE = zone("lab.example")
WAIT = {"KUDURRU__KUBERNETES__STARTUPTIMEOUT": "1s"}


def a_set(name: str, target: str) -> dict[str, Any]:
    document = records(name, "lab.example", (f"{name}.lab.example", "A", target))
    document["metadata"]["namespace"] = "default"
    return document


def changes(folder: Path) -> list[tuple[str, str]]:
    """(verb, object) of what came from the cluster, in order."""
    history = kudurru("history", "--data", folder / "data", "--limit", "1000", "-o", "json").json()
    rows = [row for row in reversed(history) if row["source"] == "kubernetes"]
    return [(row["verb"], row["object"]) for row in rows if row["type"].startswith("obj.")]


def test_dns_goes_on_without_the_api_server_and_differences_arrive_once(
    power: Machines, tmp_path: Path
) -> None:
    server = power.server
    free_lease(server)
    for document in (ZONE, a_set("www", "192.0.2.1"), a_set("old", "192.0.2.2")):
        apply(server, document)
    with serving_cluster(server, tmp_path, **WAIT) as node:
        wait_until(lambda: node.texts("old.lab.example") == ["192.0.2.2"])
        wait_until(lambda: ready(node)[0] == 200)
        power.stop_api()
        assert node.texts("www.lab.example") == ["192.0.2.1"]
    # It starts without an answer, from its log.
    with serving_cluster(server, tmp_path, **WAIT) as node:
        assert node.texts("www.lab.example") == ["192.0.2.1"]
        wait_until(lambda: ready(node)[0] == 200)
        assert "ServingFromSnapshot" in json.dumps(ready(node)[1])
        assert metric(node, "kudurru_store_snapshot_serving") == 1
        known = changes(tmp_path)
        power.start_api()
        delete(server, a_set("old", ""))
        apply(server, a_set("new", "192.0.2.3"))
        compact(server)
        wait_until(lambda: node.texts("new.lab.example") == ["192.0.2.3"])
        wait_until(lambda: node.texts("old.lab.example") == ["NXDOMAIN"])
        wait_until(lambda: metric(node, "kudurru_store_snapshot_serving") == 0)
        assert sorted(changes(tmp_path)[len(known) :]) == [
            ("created", "dnsrecordset/default/new"),
            ("deleted", "dnsrecordset/default/old"),
        ]
        before = metric(node, "kudurru_cluster_requests_total")
        assert before < 100, "a storm of requests"
    assert kudurru("audit", "verify", "--data", tmp_path / "data").code == 0


def test_a_node_without_a_log_waits_and_one_with_the_log_of_another_cluster_ends(
    power: Machines, tmp_path: Path
) -> None:
    other = {"KUDURRU__KUBERNETES__CLUSTERID": "d281ab9d-054c-4263-9c5a-1a0d4871c0f9"}
    with serving_cluster(power.server, tmp_path) as node:
        wait_until(lambda: ready(node)[0] == 200)
    config = {"KUBECONFIG": str(kubeconfig(power.server, tmp_path))}
    arguments = serve_arguments(tmp_path / "data", "--kubernetes", "cluster")
    done = kudurru(*arguments, env=config | other)
    assert done.code != 0
    assert "this log is of the cluster" in done.err


def test_an_etcd_that_was_set_back_is_noticed(power: Machines, tmp_path: Path) -> None:
    server = power.server
    apply(server, ZONE)
    apply(server, a_set("www", "192.0.2.1"))
    free_lease(server)
    power.stop()
    power.back_up()
    power.start()
    with serving_cluster(server, tmp_path) as node:
        apply(server, a_set("www", "192.0.2.7"))
        for i in range(20):
            apply(server, a_set("extra", f"192.0.2.{i}"))
        wait_until(lambda: node.texts("extra.lab.example") == ["192.0.2.19"])
    power.stop()
    power.set_back()
    power.start()
    with serving_cluster(server, tmp_path) as node:
        wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.1"])
        wait_until(lambda: node.texts("extra.lab.example") == ["NXDOMAIN"])
        wait_until(lambda: "went back from version" in json.dumps(ready(node)[1]))


def test_an_etcd_that_is_set_back_under_a_node_is_noticed_when_it_is_back(
    power: Machines, tmp_path: Path
) -> None:
    server = power.server
    for document in (ZONE, a_set("www", "192.0.2.1"), a_set("extra", "192.0.2.0")):
        apply(server, document)
    free_lease(server)
    power.stop()
    power.back_up()
    power.start()
    with serving_cluster(server, tmp_path) as node:
        apply(server, a_set("www", "192.0.2.7"))
        # More than the API server itself writes until it is asked.
        for i in range(200):
            apply(server, a_set("extra", f"192.0.2.{i}"))
        wait_until(lambda: node.texts("extra.lab.example") == ["192.0.2.199"])
        power.stop()
        power.set_back()
        power.start()
        wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.1"])
        wait_until(lambda: node.texts("extra.lab.example") == ["192.0.2.0"])
        wait_until(lambda: "went back from version" in json.dumps(ready(node)[1]))
