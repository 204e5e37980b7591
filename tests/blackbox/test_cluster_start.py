"""How a node of a cluster starts: DNS first, and only then what tells it where its cluster is."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kudurru.adapters.data_dir import open_data_dir
from kudurru.entrypoints.log_place import open_event_log
from tests.blackbox.program import (
    AT_ONCE,
    environment,
    kudurru,
    records,
    serve_arguments,
    serving,
    wait_until,
    write_json,
    zone,
)
from tests.clusters import Kube, Member, in_cluster, until
from tests.kube.serving import ready

ADDRESS = "192.0.2.1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with the log of a node that has followed a cluster."""
    path = tmp_path / "data"
    event_log = open_event_log(open_data_dir(path, create=True), store="sqlite", create=True)

    async def follow(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube, event_log)
        async with member.running():
            await kube.apply(zone("lab.example"))
            document = records("www", "lab.example", ("www.lab.example", "A", ADDRESS))
            document["metadata"]["namespace"] = "default"
            await kube.apply(document)
            await until(lambda: member.names("lab.example"))
            await until(lambda: member.serial("lab.example"))

    in_cluster(follow)
    event_log.close()
    return path


class Plugin:
    """A kubeconfig that asks a program for credentials, and a program that waits for `go_on`."""

    def __init__(self, folder: Path) -> None:
        self.asked = folder / "asked"
        self._gate = folder / "gate"
        os.mkfifo(self._gate)
        api_version = "client.authentication.k8s.io/v1"
        credential = {"apiVersion": api_version, "kind": "ExecCredential", "status": {"token": "t"}}
        answer = folder / "credential"
        answer.write_text(json.dumps(credential))
        script = f'touch "{self.asked}"; cat "{self._gate}" "{answer}"'
        user = {
            "apiVersion": api_version,
            "command": "sh",
            "args": ["-c", script],
            "interactiveMode": "Never",
        }
        self.config = folder / "kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            # Nobody listens on port 1.
            "clusters": [{"name": "test", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "test", "user": {"exec": user}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        self.config.write_text(json.dumps(content))

    def go_on(self) -> None:
        os.close(os.open(self._gate, os.O_RDWR))


@contextmanager
def waiting(folder: Path) -> Iterator[Plugin]:
    plugin = Plugin(folder)
    try:
        yield plugin
    finally:
        plugin.go_on()


def test_a_node_with_a_log_answers_before_it_reads_how_its_cluster_is_reached(
    data: Path, tmp_path: Path
) -> None:
    wait = {"KUDURRU__KUBERNETES__STARTUPTIMEOUT": "1s"}
    with waiting(tmp_path) as plugin:
        env = {"KUBECONFIG": str(plugin.config), **wait}
        with serving(data, "--kubernetes", "cluster", env=env) as node:
            assert node.texts("www.lab.example") == [ADDRESS]
            wait_until(plugin.asked.exists)
            assert node.texts("www.lab.example") == [ADDRESS]
            # What the cluster owns is not changed meanwhile.
            file = write_json(tmp_path / "other.json", zone("other.example"))
            refused = kudurru("apply", "-f", file, "--data", data)
            assert refused.code != 0
            assert "was not read yet: nothing was changed" in refused.err
            # It is ready after a while, as when the API server is away, and says why.
            wait_until(lambda: ready(node)[0] == 200)
            said = json.dumps(ready(node)[1])
            assert "ServingFromSnapshot" in said
            assert "the configuration of the client is being read" in said
            plugin.go_on()
            wait_until(lambda: "/namespaces/kube-system" in json.dumps(ready(node)[1]))
            assert node.texts("www.lab.example") == [ADDRESS]


def test_a_node_ends_without_waiting_for_a_program_that_its_kubeconfig_starts(
    data: Path, tmp_path: Path
) -> None:
    with waiting(tmp_path) as plugin:
        env = {"KUBECONFIG": str(plugin.config)}
        with serving(data, "--kubernetes", "cluster", env=env) as node:
            wait_until(plugin.asked.exists)
            assert "NotSynced" in json.dumps(ready(node)[1])
            assert node.stop() == 0


@pytest.mark.parametrize("owner", ["cluster", "log"])
def test_a_configuration_that_cannot_be_read_ends_the_server_with_its_place(
    owner: str, data: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "nowhere"
    where = data if owner == "cluster" else tmp_path / "new"
    arguments = serve_arguments(where, "--kubernetes", owner)
    done = kudurru(*arguments, env={"KUBECONFIG": str(missing), AT_ONCE: "0s"})
    assert done.code != 0
    assert "access to Kubernetes: kubeconfig" in done.err
    assert "name its file with KUBECONFIG or kubernetes.kubeconfig" in done.err


def test_the_log_of_another_cluster_is_refused_before_the_configuration_is_read(
    data: Path, tmp_path: Path
) -> None:
    with waiting(tmp_path) as plugin:
        other = {"KUDURRU__KUBERNETES__CLUSTERID": "d281ab9d-054c-4263-9c5a-1a0d4871c0f9"}
        env = {"KUBECONFIG": str(plugin.config), **other}
        done = kudurru(*serve_arguments(data, "--kubernetes", "cluster"), env=env)
        assert done.code != 0
        assert done.out == ""
        assert "this log is of the cluster" in done.err
        assert not plugin.asked.exists()


def test_nothing_of_the_client_is_imported_with_the_server() -> None:
    code = (
        "import sys, kudurru.entrypoints.server\n"
        "sys.exit(str([name for name in sys.modules if 'kubernetes' in name]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == "[]"
