"""deploy/compose: two nodes on one PostgreSQL behind dnsdist, and one of them goes away."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.program import PATIENCE_S, records, wait_until, zone
from tests.interop.composing import CLIENT, FOLDER, Composed, Node, composed, read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ZONE = "home.example"
NAMES = [f"h{i}.{ZONE}" for i in range(100)]
PER_SECOND = 300


def test_compose_reads_the_file_and_every_file_it_mounts_is_there() -> None:
    services = read(FOLDER / "compose.yaml")["services"]
    mounts = [one for service in services.values() for one in service.get("volumes", [])]
    files = [Path(one["source"]) for one in mounts if one["type"] == "bind"]
    assert files
    assert [file for file in files if not file.is_file()] == []


def test_nodes_are_as_narrow_as_the_chart_has_them() -> None:
    services = read(FOLDER / "compose.yaml")["services"]
    for name in ("node-a", "node-b"):
        node = services[name]
        assert node["read_only"] is True
        assert node["cap_drop"] == ["ALL"]
        assert node["security_opt"] == ["no-new-privileges:true"]
        assert node["stop_grace_period"] == "70s"  # health.lameduck and a minute


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    with composed(tmp_path_factory.mktemp("compose") / "compose") as found:
        yield found


def test_secrets_are_made_once_and_never_over_those_that_are_there(project: Composed) -> None:
    password = (project.folder / "secrets/postgres-password").read_text()
    again = subprocess.run([project.folder / "secrets.sh"], capture_output=True, check=False)
    assert again.returncode == 1
    assert (project.folder / "secrets/postgres-password").read_text() == password
    assert (project.folder / "secrets").stat().st_mode & 0o777 == 0o700
    assert (project.folder / "secrets/pgpass").stat().st_mode & 0o777 == 0o600


def test_a_node_that_is_drained_loses_no_query_and_one_that_is_gone_few(project: Composed) -> None:
    a, b = project.node("node-a"), project.node("node-b")
    begin(project, a, b)
    first = project.serial(project.address("dnsdist"), ZONE)

    load = project.load(NAMES, PER_SECOND)
    a.kudurru("lameduck", "0s")
    project.wait_for("down", "node-a")
    a.process.send_signal(signal.SIGTERM)
    assert a.process.wait(PATIENCE_S) == 0
    add_host(b, "while-a-is-away")
    a = project.node("node-a")
    project.wait_for("up", "node-a", times=2)
    sent, lost = load.result()
    print(f"drained and started again: {lost} of {sent} queries without an answer")
    assert (sent > 0, lost) == (True, 0)
    # dnsdist told the node who asked.
    wait_until(lambda: a.kudurru("queries", "--client", CLIENT, "--output", "jsonl"))

    for times, (what, gone) in enumerate(GONE.items(), 1):
        b = without(project, b, what, gone, times)
        add_host(a, f"while-b-was-{what}")
    wait_until(lambda: common_serial(project) not in (None, first))


GONE = {"killed": signal.SIGKILL, "silent": signal.SIGSTOP}
"""A process whose host says that nobody listens, and one that is as a machine without power."""


def begin(project: Composed, a: Node, b: Node) -> None:
    """The zone is on both nodes, and dnsdist asks them."""
    hosts = records("hosts", ZONE, *((name, "A", "192.0.2.1") for name in NAMES))
    a.kudurru("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, [zone(ZONE), hosts])))
    wait_until(lambda: project.asked(b.address, NAMES[0], "A") == "192.0.2.1")
    wait_until(lambda: common_serial(project))
    project.dnsdist()


def common_serial(project: Composed) -> int | None:
    """What both nodes have; None while they differ. A serial moves some time after a change."""
    first, second = (project.serial(project.address(name), ZONE) for name in ("node-a", "node-b"))
    return first if first == second else None


def add_host(node: Node, name: str) -> None:
    manifest = records(name, ZONE, (f"{name}.{ZONE}", "A", "192.0.2.9"))
    node.kudurru("apply", "-f", "-", stdin=json.dumps(manifest))


def without(project: Composed, b: Node, what: str, gone: signal.Signals, times: int) -> Node:
    """Node b goes away and comes back. Queries are lost until dnsdist knows, and none after."""
    load = project.load(NAMES, PER_SECOND)
    b.process.send_signal(gone)
    project.wait_for("down", "node-b", times=times)
    sent, lost = load.result()
    print(f"{what}: {lost} of {sent} queries without an answer, until dnsdist took it out")
    load = project.load(NAMES, PER_SECOND)
    b.process.kill()
    b.process.wait(PATIENCE_S)
    b = project.node("node-b")
    project.wait_for("up", "node-b", times=times + 1)
    sent, lost = load.result()
    assert (sent > 0, lost) == (True, 0), what
    return b
