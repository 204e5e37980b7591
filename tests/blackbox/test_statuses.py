"""What is wrong with objects is said in their status, by servers and by commands."""

import re
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.blackbox.program import Serving, command, records, serving, wait_until, write_json, zone

FIRST = records("first", "home.arpa", ("www.home.arpa", "A", "192.0.2.1"))
SECOND = records("second", "home.arpa", ("www.home.arpa", "A", "192.0.2.2"))


def ready(kind: str, name: str, data: Path) -> tuple[str, str] | None:
    document = command("get", kind, name, "--data", data, "-o", "json").json()
    conditions = document.get("status", {}).get("conditions", [])
    found = next((c for c in conditions if c["type"] == "Ready"), None)
    return (found["status"], found["reason"]) if found is not None else None


def scraped(server: Serving) -> str:
    with urlopen(f"http://{server.addresses['metrics']}/metrics") as page:
        text: str = page.read().decode()
    return text


def policy(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kudurru.io/v1alpha1", "kind": "Policy",
        "metadata": {"name": "kids"}, "spec": spec,
    }  # fmt: skip


def test_a_server_says_what_is_wrong_and_that_it_is_mended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    file = write_json(tmp_path / "a.json", zone("home.arpa"), FIRST, SECOND)
    others = write_json(tmp_path / "b.json", policy(clientGroupRefs=["kids"]))
    with serving(data) as server:
        assert command("apply", "-f", file, "--data", data).code == 0
        assert command("apply", "-f", others, "--data", data).code == 0
        wait_until(lambda: ready("rs", "second", data) == ("False", "Duplicated"))
        wait_until(lambda: ready("policy", "kids", data) == ("False", "MissingReference"))
        wait_until(lambda: ready("zone", "home.arpa", data) == ("True", "AsExpected"))
        assert ready("rs", "first", data) is None  # nothing is to be said
        shown = command("describe", "rs", "second", "--data", data).out
        assert re.search(r"Ready: False, Duplicated: www\.home\.arpa\. A: ", shown)
        shown = command("describe", "rs", "first", "--data", data).out
        assert "Ready: True, AsExpected\n" in shown
        assert command("delete", "rs", "first", "--data", data).code == 0
        wait_until(lambda: ready("rs", "second", data) == ("True", "AsExpected"))
        for wanted in (
            r'kudurru_controller_status_writes_total{kind="DNSRecordSet"} 2\.0',
            r'kudurru_controller_status_writes_total{kind="Policy"} 1\.0',
            r'kudurru_controller_reconciles_total{kind="Policy",result="done"} \d',
            r'kudurru_controller_reconcile_duration_seconds_count{kind="Policy"} \d',
            r'kudurru_store_operations_total{op="update_status",result="ok"} \d',
            r'kudurru_role_active{role="controllers"} 1\.0',
        ):
            wait_until(lambda wanted=wanted: re.search(wanted, scraped(server)))


def test_the_history_has_statuses_where_they_are_asked_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    file = write_json(tmp_path / "a.json", zone("home.arpa"), FIRST, SECOND)
    assert command("apply", "-f", file, "--data", data).code == 0
    ask = ("history", "rs/second", "--data", data, "-o", "json")
    assert [event["verb"] for event in command(*ask).json()] == ["created"]
    assert [e["verb"] for e in command(*ask, "--status").json()] == ["status", "created"]
    by_name = command("history", "--name", "www.home.arpa", "--type", "A", "--data", data)
    assert re.findall(r"dnsrecordset/\S+", by_name.out) == [
        "dnsrecordset/default/second", "dnsrecordset/default/first"
    ]  # fmt: skip


def statuses(data: Path) -> list[dict[str, Any]]:
    """Events that are statuses."""
    events = command("history", "--status", "--data", data, "-o", "json", "--limit", "100").json()
    return [event for event in events if event["verb"] == "status"]


@pytest.mark.parametrize("change", ["apply", "delete"])
def test_a_start_writes_nothing_that_a_command_on_the_directory_has_written(
    change: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with serving(data):
        pass  # the first start makes the first token
    file = write_json(tmp_path / "a.json", zone("home.arpa"), FIRST, SECOND, policy(deny=["a.b"]))
    assert command("apply", "-f", file, "--data", data).code == 0
    assert ready("rs", "second", data) == ("False", "Duplicated")
    if change == "delete":
        assert command("delete", "rs", "first", "--data", data).code == 0
        assert ready("rs", "second", data) == ("True", "AsExpected")
    before = statuses(data)
    with serving(data) as server:
        metrics = ""

        def has_looked() -> bool:
            nonlocal metrics
            metrics = scraped(server)
            return 'reconciles_total{kind="Policy",result="done"} 1.0' in metrics

        wait_until(has_looked)
        assert "controller_status_writes_total{" not in metrics
        assert statuses(data) == before
