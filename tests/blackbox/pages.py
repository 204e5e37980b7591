"""A server whose web page is looked at, and who looks."""

from pathlib import Path
from typing import Any, NamedTuple

from tests.blackbox.program import Serving, command
from tests.blackbox.test_api import Asking
from tests.browsers import Browser, Tab


class Served(NamedTuple):
    server: Serving
    tokens: dict[str, str]

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return Asking(self.server, self.tokens["admin"])(method, path, body)

    @property
    def page(self) -> str:
        return self.server.addresses["page"]


def token_of(data: Path, role: str) -> str:
    made = command("token", "create", role, "--role", role, "--data", data, "-o", "json")
    return str(made.json()["token"])


def signed_in(browser: Browser, served: Served, role: str = "admin", view: str = "") -> Tab:
    tab = browser.open(f"{served.page}#/{view}")
    tab.write("Token", served.tokens[role])
    tab.click("Sign in")
    tab.wait("document.querySelector('nav')")
    return tab
