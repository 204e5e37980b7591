"""One API server for all Kubernetes tests of a session."""

from collections.abc import Iterator

import pytest

from tests.absent import absent
from tests.kube.assets import NoAssets, build
from tests.kube.server import ApiServer, api_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    try:
        binary = build()
    except NoAssets as error:
        absent(str(error))
    with api_server(binary, tmp_path_factory.mktemp("kube"), ("nobody",)) as found:
        yield found
