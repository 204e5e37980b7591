"""`kudurru serve --kubernetes cluster` and a real API server."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.program import kudurru, records, wait_until, write_json, zone
from tests.kube.server import ApiServer
from tests.kube.serving import (
    APPLY,
    apply,
    clear,
    delete,
    free_lease,
    kubeconfig,
    path_of,
    serving_cluster,
    status_writes,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ZONE = zone("lab.example")


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


def history(folder: Path, limit: int = 100) -> list[dict[str, Any]]:
    """Rows in the order in which they happened."""
    data = ("--data", folder / "data")
    rows = kudurru("history", *data, "--limit", str(limit), "-o", "json").json()
    return list(reversed(rows))


def test_what_kubectl_does_is_answered_and_in_the_history_with_its_field_manager(
    empty: ApiServer, tmp_path: Path
) -> None:
    apply(empty, ZONE, "kubectl-client-side-apply")
    with serving_cluster(empty, tmp_path) as node:
        wait_until(lambda: node.texts("lab.example", "SOA") != ["REFUSED"])
        apply(empty, a_set("www", "192.0.2.1"), "kubectl-edit")
        wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.1"])
        label = {"metadata": {"labels": {"team": "web"}}}
        path = f"{path_of(a_set('www', ''))}?fieldManager=kubectl-label"
        empty.call("PATCH", path, label, form="application/merge-patch+json")
        delete(empty, a_set("www", ""))
        wait_until(lambda: node.texts("www.lab.example") == ["NXDOMAIN"])
        rows = [row for row in history(tmp_path) if row["source"] == "kubernetes"]
        seen = [
            (row["actor"], row["verb"], row["object"])
            for row in rows
            if row["type"].startswith("obj.")
        ]
        zone_made, set_made, *_, gone = seen
        actor = "kubernetes:kubectl-client-side-apply"
        assert zone_made == (actor, "created", "dnszone/lab.example")
        assert set_made[0] in ("kubernetes:kubectl-edit", "kubernetes:kubectl-label")
        assert set_made[1:] == ("created", "dnsrecordset/default/www")
        assert gone == ("kubernetes", "deleted", "dnsrecordset/default/www")
        assert kudurru("audit", "verify", "--data", tmp_path / "data").code == 0


def test_a_change_of_the_command_line_is_in_the_cluster_and_its_status_comes_back(
    empty: ApiServer, tmp_path: Path
) -> None:
    file = write_json(tmp_path / "objects.json", ZONE, a_set("www", "192.0.2.1"))
    data = ("--data", tmp_path / "data")
    with serving_cluster(empty, tmp_path) as node:
        done = kudurru("apply", "-f", file, "--reason", "a new lab", *data)
        assert done.out.split() == ["dnszone/lab.example", "created",
                                    "dnsrecordset/default/www", "created"]  # fmt: skip
        assert node.texts("www.lab.example") == ["192.0.2.1"]
        there = empty.call("GET", path_of(ZONE))[1]
        assert there["metadata"]["annotations"]["kudurru.io/managed-by"] == "kudurru"
        assert kudurru("apply", "-f", file, *data).out.count("unchanged") == 2

        def serial() -> Any:
            return empty.call("GET", path_of(ZONE))[1].get("status", {}).get("serial")

        wait_until(lambda: str(serial()) == node.texts("lab.example", "SOA")[0].split()[2])
        rows = history(tmp_path)
        steps = [row for row in rows if row["reason"] == "a new lab"]
        assert [row["verb"] for row in steps] == ["intended", "created", "created", "written"]
        assert len({row["actor"] for row in steps}) == 1
        # Another manager's fields conflict by name, there and here.
        body = a_set("www", "192.0.2.2")
        path = f"{path_of(body)}?fieldManager=gitops"
        code, refusal = empty.call("PATCH", path, body, form=APPLY)
        assert (code, "kudurru" in str(refusal)) == (409, True)
        other = write_json(tmp_path / "other.json", body)
        refused = kudurru("apply", "-f", other, "--manager", "ops", *data)
        assert refused.code != 0
        assert "managed by 'kudurru'" in refused.err
        assert kudurru("delete", "rs", "www", *data).code == 0
        assert empty.call("GET", path_of(body))[0] == 404
        gone = next(row for row in history(tmp_path) if row["verb"] == "deleted")
        assert kudurru("undo", str(gone["seq"]), *data).code == 0
        assert empty.call("GET", path_of(body))[0] == 200
        assert node.texts("www.lab.example") == ["192.0.2.1"]
        assert kudurru("audit", "verify", *data).code == 0


def test_what_a_node_did_not_see_is_told_by_a_comparison_until_it_followed(
    empty: ApiServer, tmp_path: Path
) -> None:
    env = {"KUBECONFIG": str(kubeconfig(empty, tmp_path))}
    arguments = ("--kubernetes", "cluster", "--data", tmp_path / "data", "-o", "json")

    def compared() -> tuple[int, dict[str, Any]]:
        done = kudurru("audit", "compare", *arguments, env=env)
        return done.code, done.json()

    apply(empty, ZONE)
    apply(empty, a_set("www", "192.0.2.1"))
    apply(empty, a_set("old", "192.0.2.1"))
    with serving_cluster(empty, tmp_path) as node:
        wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.1"])
        wait_until(lambda: node.texts("old.lab.example") == ["192.0.2.1"])
        code, found = compared()  # beside the server, statuses and all
        assert (code, found["ok"], found["objects"], found["differences"]) == (0, True, 3, [])
    there = apply(empty, a_set("www", "192.0.2.2"), "kubectl-edit")["metadata"]
    delete(empty, a_set("old", ""))
    apply(empty, a_set("new", "192.0.2.3"))
    code, found = compared()
    assert (code, found["ok"], found["objects"]) == (1, False, 1)
    assert [(one["object"], one["difference"]) for one in found["differences"]] == [
        ("DNSRecordSet default/new", "surplus"),
        ("DNSRecordSet default/old", "missing"),
        ("DNSRecordSet default/www", "differing"),
    ]
    version = {"uid": there["uid"], "resourceVersion": there["resourceVersion"]}
    assert found["differences"][2]["cluster"] == version
    table = kudurru("audit", "compare", *arguments[:4], env=env)
    assert table.code == 1
    assert [line.split()[0] for line in table.out.splitlines()] == ["OBJECT", *["DNSRecordSet"] * 3]
    free_lease(empty)
    with serving_cluster(empty, tmp_path) as node:
        wait_until(lambda: node.texts("www.lab.example") == ["192.0.2.2"])
        wait_until(lambda: compared()[0] == 0)


def test_a_burst_of_changes_moves_the_serial_a_few_times_and_no_status_is_written_twice(
    empty: ApiServer, tmp_path: Path
) -> None:
    apply(empty, ZONE)
    with serving_cluster(empty, tmp_path) as node:
        wait_until(lambda: empty.call("GET", path_of(ZONE))[1].get("status", {}).get("serial"))
        begun = time.monotonic()
        for i in range(100):
            apply(empty, a_set(f"host-{i}", "192.0.2.1"))
        wait_until(lambda: node.texts("host-99.lab.example") == ["192.0.2.1"])

        def is_settled() -> bool:
            status = empty.call("GET", path_of(ZONE))[1]["status"]
            return bool(status["recordCount"] == 101)

        wait_until(is_settled)
        took_s = time.monotonic() - begun
        stamps = [row for row in history(tmp_path, 1000) if row["source"] == "stamp"]
        # One for each quarter of a second at most, and the zone's first.
        assert len(stamps) <= took_s / 0.25 + 2
        version = empty.call("GET", path_of(ZONE))[1]["metadata"]["resourceVersion"]
        other = zone("other.example")
        apply(empty, other)
        wait_until(lambda: empty.call("GET", path_of(other))[1].get("status", {}).get("serial"))
        assert empty.call("GET", path_of(ZONE))[1]["metadata"]["resourceVersion"] == version
        assert empty.call("GET", path_of(ZONE))[1]["metadata"]["generation"] == 1


def test_changes_one_after_the_other_write_exactly_the_statuses_that_differ(
    empty: ApiServer, tmp_path: Path
) -> None:
    apply(empty, ZONE)
    begun = status_writes(empty)

    def serial() -> str:
        return str(empty.call("GET", path_of(ZONE))[1].get("status", {}).get("serial"))

    with serving_cluster(empty, tmp_path) as node:

        def served() -> str:
            found = node.texts("lab.example", "SOA")[0].split()
            return found[2] if len(found) > 2 else ""

        wait_until(lambda: served() == serial())
        # The API server counts a write some moments after it can be seen.
        wait_until(lambda: status_writes(empty) > begun)
        before = status_writes(empty)
        for i in range(20):
            last = served()
            apply(empty, a_set("www", f"192.0.2.{i}"))
            wait_until(lambda last=last: served() != last)
            wait_until(lambda: served() == serial())
            apply(empty, a_set("www", f"192.0.2.{i}"))  # changes nothing
        wait_until(lambda: status_writes(empty) - before >= 20)
        assert status_writes(empty) - before == 20
