"""The web page in a real browser, over a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.program import Serving, command, serving
from tests.browsers import Browser, Tab, driving


def token_of(data: Path, role: str) -> str:
    made = command("token", "create", role, "--role", role, "--data", data, "-o", "json")
    return str(made.json()["token"])


def signed_in(browser: Browser, server: Serving, token: str, view: str = "") -> Tab:
    tab = browser.open(f"http://{server.addresses['http']}/ui/#/{view}")
    tab.write("Token", token)
    tab.click("Sign in")
    tab.wait("document.querySelector('nav')")
    return tab


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, dict[str, str]]]:
    """A server, and tokens by role."""
    data = tmp_path_factory.mktemp("server") / "data"
    tokens = {role: token_of(data, role) for role in ("admin", "viewer")}
    with serving(data, "--demo") as server:
        yield server, tokens


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with driving(tmp_path_factory.mktemp("browser")) as found:
        yield found


def test_somebody_signs_in_with_a_token_and_out_again(
    served: tuple[Serving, dict[str, str]], browser: Browser
) -> None:
    server, tokens = served
    assert server.addresses["page"] == f"http://{server.addresses['http']}/ui/"
    tab = browser.open(f"http://{server.addresses['http']}/")
    tab.sees("kudurru token create")
    tab.write("Token", "kudurru_wrong")
    tab.click("Sign in")
    tab.sees("Unauthorized")
    tab.write("Token", tokens["viewer"])
    tab.click("Sign in")
    tab.wait("document.querySelector('nav')")
    assert tab.run("localStorage.length") == 0
    assert tokens["viewer"] not in tab.run("location.href")
    tab.click("Zones")
    tab.sees("demo.example")
    tab.click("Sign out")
    tab.sees("kudurru token create")
    assert tab.run("sessionStorage.length") == 0
