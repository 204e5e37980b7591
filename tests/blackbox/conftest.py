"""What tests of the web page share: a server of its own and a browser for each module."""

from collections.abc import Iterator

import pytest

from tests.blackbox.pages import Served, token_of
from tests.blackbox.program import serving
from tests.browsers import Browser, driving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("server") / "data"
    tokens = {role: token_of(data, role) for role in ("admin", "operator", "viewer")}
    with serving(data, "--demo") as server:
        yield Served(server, tokens)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with driving(tmp_path_factory.mktemp("browser")) as found:
        yield found
