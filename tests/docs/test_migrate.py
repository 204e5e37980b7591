"""The objects of the page about moving here are applied, and do what the page says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.program import ROOT, Serving, command, serving

PAGE = (ROOT / "docs/migrate.md").read_text()
ANYBODY, UNFILTERED = "192.168.7.20", "192.168.7.9"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("migrate") / "data"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Serving]:
    (objects,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (data.parent / "home.yaml").write_text(objects)
    with serving(data) as found:
        assert command("apply", "--data", data, "-f", data.parent / "home.yaml").code == 0
        yield found


@pytest.mark.parametrize(
    ("name", "client", "told"),
    [
        ("banner.ads.example", ANYBODY, "blocked: a list denies it"),
        ("tracker.example", ANYBODY, "blocked: a list denies it"),
        ("x.telemetry7.example", ANYBODY, "blocked: "),
        ("tv.example", ANYBODY, "rewritten"),
        ("good.ads.example", ANYBODY, "a policy allows it"),
        ("banner.ads.example", UNFILTERED, "bypass"),
    ],
)
def test_what_a_client_gets_is_what_it_got_before(
    server: Serving, data: Path, name: str, client: str, told: str
) -> None:
    assert told in command("explain", "--data", data, name, "--client", client).out


def test_local_names_are_served(server: Serving) -> None:
    assert server.texts("nas.home.arpa") == ["192.168.7.5"]
    assert server.texts("files.home.arpa") == ["192.168.7.5", "nas.home.arpa."]
