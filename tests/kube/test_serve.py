"""`kudurru serve --kubernetes cluster` and a real API server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.program import kudurru, records, wait_until, zone
from tests.kube.server import ApiServer
from tests.kube.serving import apply, clear, delete, free_lease, serving_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ZONE = zone("lab.example")


def a_set(name: str, target: str) -> dict[str, object]:
    document = records(name, "lab.example", (f"{name}.lab.example", "A", target))
    document["metadata"]["namespace"] = "default"
    return document


@pytest.fixture
def empty(installed: ApiServer) -> Iterator[ApiServer]:
    clear(installed)
    free_lease(installed)
    yield installed
    clear(installed)


def test_what_kubectl_applies_is_answered_and_in_the_history(
    empty: ApiServer, tmp_path: Path
) -> None:
    apply(empty, ZONE, "kubectl-client-side-apply")
    with serving_cluster(empty, tmp_path) as node:
        wait_until(lambda: node.texts("lab.example", "SOA") != ["REFUSED"])
        apply(empty, a_set("www", "192.0.2.1"), "kubectl-edit")
        wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.1"])
        delete(empty, a_set("www", ""))
        wait_until(lambda: node.texts("www.lab.example") == ["NXDOMAIN"])
        data = str(tmp_path / "data")
        history = kudurru("history", "--data", data, "-o", "json").json()
        print(history)
        assert kudurru("audit", "verify", "--data", data).code == 0
