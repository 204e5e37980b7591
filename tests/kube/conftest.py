"""One API server for all Kubernetes tests of a session."""

from collections.abc import Iterator

import pytest

from tests.absent import absent
from tests.kube.assets import NoAssets, build
from tests.kube.installing import install
from tests.kube.server import ApiServer, Machines, api_server, machines


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    try:
        binary = build()
    except NoAssets as error:
        absent(str(error))
    users = ("nobody", "account", "limited")
    with api_server(binary, tmp_path_factory.mktemp("kube"), users) as found:
        yield found


@pytest.fixture(scope="module")
def power(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """A cluster of its own, with our definitions, that may be stopped and started."""
    try:
        binary = build()
    except NoAssets as error:
        absent(str(error))
    folder = tmp_path_factory.mktemp("power")
    with machines(binary, folder, ("nobody", "account")) as found:
        install(found.server)
        yield found


@pytest.fixture(scope="session")
def installed(server: ApiServer) -> ApiServer:
    """The server with our definitions, and `account` bound to what the manifests say."""
    install(server)
    return server
