"""`kudurru crds` on a real API server that has none of our definitions."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.kubernetes.crd_install import COLLECTION
from kudurru.adapters.kubernetes.crds import crds
from tests.absent import absent
from tests.blackbox.program import Done, command
from tests.kube.assets import NoAssets, build
from tests.kube.server import ApiServer, api_server
from tests.kube.serving import kubeconfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAMES = [one["metadata"]["name"] for one in crds()]
ZONES = NAMES[0]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    try:
        binary = build()
    except NoAssets as error:
        absent(str(error))
    with api_server(binary, tmp_path_factory.mktemp("bare"), ("nobody",)) as found:
        yield found


def crds_command(server: ApiServer, folder: Path, *args: str, user: str = "admin") -> Done:
    return command("crds", *args, "--kubeconfig", kubeconfig(server, folder, user))


def test_definitions_are_shown_installed_and_brought_up_to_date(
    bare: ApiServer, tmp_path: Path
) -> None:
    done = crds_command(bare, tmp_path, "diff")
    assert done.code == 1
    assert done.out.splitlines() == [
        f"customresourcedefinition/{name} would be created" for name in NAMES
    ]
    assert bare.call("GET", f"{COLLECTION}/{ZONES}")[0] == 404

    refused = crds_command(bare, tmp_path, "install", user="nobody")
    assert refused.code == 1
    assert "definitions want the rights of an administrator of the cluster" in refused.err
    assert bare.call("GET", f"{COLLECTION}/{ZONES}")[0] == 404

    done = crds_command(bare, tmp_path, "install")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [f"customresourcedefinition/{name} created" for name in NAMES]
    assert bare.call("GET", "/apis/kudurru.io/v1alpha1/dnszones")[0] == 200
    done = crds_command(bare, tmp_path, "diff")
    assert (done.code, done.out, done.err) == (0, "", "")

    code, zone = bare.call("POST", "/apis/kudurru.io/v1alpha1/dnszones", ZONE)
    assert code == 201, zone
    patch, form = {"spec": {"names": {"shortNames": ["older"]}}}, "application/merge-patch+json"
    code, said = bare.call("PATCH", f"{COLLECTION}/{ZONES}", patch, form=form)
    assert code == 200, said
    done = crds_command(bare, tmp_path, "diff", "-o", "json")
    (found,) = json.loads(done.out)
    assert done.code == 1
    assert found["object"] == f"customresourcedefinition/{ZONES}"
    assert found["verb"] == "would change"
    assert found["changes"] == [
        {"field": "spec.names.shortNames[0]", "from": "older", "to": "zone"}
    ]
    done = crds_command(bare, tmp_path, "install")
    assert done.code == 0, done.err
    verbs = {line.split("/")[1] for line in done.out.splitlines()}
    assert verbs == {f"{ZONES} changed", *(f"{name} unchanged" for name in NAMES[1:])}
    assert bare.call("GET", "/apis/kudurru.io/v1alpha1/dnszones/home")[0] == 200  # objects stay


ZONE: dict[str, Any] = {
    "apiVersion": "kudurru.io/v1alpha1",
    "kind": "DNSZone",
    "metadata": {"name": "home"},
    "spec": {"zoneName": "home.example"},
}


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("")
    with socket.socket() as deaf:  # it does not listen
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        nowhere = ApiServer(url, tmp_path / "ca", "", {"admin": "a"})
        done = crds_command(nowhere, tmp_path, "diff")
    assert done.code == 1
    assert f"{url}: no answer" in done.err
    assert "--kubeconfig and --context choose another" in done.err


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = command("crds", "install", "--kubeconfig", tmp_path / "none")
    assert done.code == 1
    assert str(tmp_path / "none") in done.err
