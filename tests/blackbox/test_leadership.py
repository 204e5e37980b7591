"""Several servers on one log: one of them does what one of them does."""

import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.blackbox.program import Serving, command, serving, wait_until
from tests.blackbox.test_api import Asking
from tests.postgres import server
from tests.saying import Say

GROUP = ("catalogs", "controllers", "lists: status", "notifies: status", "prune", "secondaries")


class Nodes:
    """Servers by name, each of which may die and come back."""

    def __init__(self, folder: Path, database: str) -> None:
        self._folder = folder
        self._database = database
        self._stacks: dict[str, ExitStack] = {}
        self.running: dict[str, Serving] = {}

    def start(self, name: str) -> None:
        stack = ExitStack()
        env = {"KUDURRU__NODE__NAME": name}
        node = serving(self._folder / name, "--store", self._database, env=env)
        self.running[name] = stack.enter_context(node)
        self._stacks[name] = stack

    def end(self, name: str, *, is_killed: bool = False) -> None:
        node = self.running.pop(name)
        if is_killed:
            node.process.kill()
            node.process.wait()
        self._stacks.pop(name).close()

    def close(self) -> None:
        for name in list(self.running):
            self.end(name)

    def gauge(self, name: str, line: str) -> bool:
        url = f"http://{self.running[name].addresses['metrics']}/metrics"
        with urllib.request.urlopen(url) as answer:
            return f"kudurru_{line} 1.0\n" in answer.read().decode()

    def leads(self, name: str) -> bool:
        return self.gauge(name, 'leader{role="controller"}')

    def leader(self) -> str | None:
        """Who leads; fails when two do: both said so while the other did."""
        leading = [name for name in self.running if self.leads(name)]
        for name in leading[:-1]:
            assert not (self.leads(name) and self.leads(leading[-1])), "two lead"
        return leading[-1] if leading else None


@pytest.fixture
def nodes(tmp_path: Path):
    found = Nodes(tmp_path, server().url(server().new_database()))
    try:
        yield found
    finally:
        found.close()


@pytest.mark.slow
def test_of_three_nodes_one_leads_and_another_when_it_is_killed_or_ends(
    nodes: Nodes, say: Say
) -> None:
    for name in "abc":
        nodes.start(name)
    took: dict[bool, list[float]] = {True: [], False: []}
    for is_killed in (True, False, True):
        leader = wait_until(nodes.leader)
        wait_until(lambda leader=leader: all(nodes.gauge(leader, active(r)) for r in GROUP))
        for name in nodes.running.keys() - {leader}:
            assert not any(nodes.gauge(name, active(role)) for role in GROUP)
        begun = time.monotonic()
        nodes.end(leader, is_killed=is_killed)
        assert wait_until(nodes.leader) != leader
        took[is_killed].append(time.monotonic() - begun)
        nodes.start(leader)
        assert not nodes.leads(leader)
    for is_killed, how in ((True, "kill -9"), (False, "SIGTERM")):
        seconds = ", ".join(f"{one:.1f}" for one in took[is_killed])
        say(f"suite leadership: after {how} another leads in {seconds} s")


def test_a_node_that_does_not_lead_refreshes_no_list_and_names_the_one_that_does(
    nodes: Nodes, tmp_path: Path
) -> None:
    for name in "ab":
        nodes.start(name)
    leader = wait_until(nodes.leader)
    (other,) = set("ab") - {leader}
    done = command("list", "refresh", "--data", tmp_path / leader)
    assert done.code == 0, done.err
    refused = command("list", "refresh", "--data", tmp_path / other)
    assert (refused.code, f"ask {leader}" in refused.err) == (1, True), refused.err
    made = command(
        "token", "create", "root", "--role", "admin", "--data", tmp_path / other, "-o", "json"
    )
    asked = Asking(nodes.running[other], made.json()["token"])("POST", "/lists:refresh")
    assert (asked[0], asked[1]["reason"]) == (409, "Conflict")
    assert f"ask {leader}" in asked[1]["message"]


def active(role: str) -> str:
    return f'role_active{{role="{role}"}}'


def test_a_node_on_a_log_of_its_own_leads_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as node:
        url = f"http://{node.addresses['metrics']}/metrics"

        def shown() -> str:
            with urllib.request.urlopen(url) as answer:
                return answer.read().decode()

        lines = ['kudurru_leader{role="controller"} 1.0']
        lines += [f"kudurru_{active(role)} 1.0" for role in GROUP]
        wait_until(lambda: all(line in shown() for line in lines))
        assert f"kudurru_{active('writer')} 1.0" in shown()
