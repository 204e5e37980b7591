"""The objects of the page about moving here are applied, and do what the page says."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.program import ROOT, Serving, command, environment, serving

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


def test_a_hosts_file_becomes_a_zone_and_names_of_its_addresses(tmp_path: Path) -> None:
    (tmp_path / "custom.list").write_text(
        "# of Pi-hole\n192.168.7.5 nas.lan files.lan\n10.0.0.9 far.lan\nfd00::5 nas.lan\n"
    )
    blocks = [block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "awk" in block]
    assert len(blocks) == 2
    shim = f'kudurru() {{ {sys.executable} -m kudurru "$@"; }}\n'
    script = shim + "\n".join(blocks)
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with serving(tmp_path / "kudurru-data") as server:
        assert server.texts("nas.lan") == ["192.168.7.5"]
        assert server.texts("nas.lan", "AAAA") == ["fd00::5"]
        assert server.texts("files.lan") == ["192.168.7.5"]
        assert server.texts("5.7.168.192.in-addr.arpa", "PTR") == ["nas.lan."]
