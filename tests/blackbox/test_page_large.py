"""The page, and a zone of a hundred thousand records."""

import time
from pathlib import Path

import pytest

from tests.blackbox.pages import Served, signed_in, token_of
from tests.blackbox.program import command, serving
from tests.browsers import driving

pytestmark = pytest.mark.slow

NAMES = 100_000
ZONE_FILE = """\
$ORIGIN large.example.
$TTL 60
@ IN SOA ns1 hostmaster 1 7200 900 1209600 300
@ IN NS ns1
$GENERATE 1-50000 h$ A 192.0.2.1
$GENERATE 50001-99999 h$ A 192.0.2.2
"""
SHOWN_S = 10.0
"""Until a page of it is shown, on a machine that does other things too."""


def test_a_large_zone_is_shown_searched_and_changed_page_by_page(tmp_path: Path) -> None:
    file, data = tmp_path / "large.zone", tmp_path / "data"
    file.write_text(ZONE_FILE)
    tokens = {"admin": token_of(data, "admin")}
    done = command("zone", "import", file, "--data", data)
    assert done.code == 0, done.err
    folder = tmp_path / "browser"
    folder.mkdir()
    with serving(data) as server, driving(folder) as browser:
        served = Served(server, tokens)
        tab = signed_in(browser, served, view="zones")
        tab.sees("large.example")
        begun = time.monotonic()
        tab.click("large.example")
        tab.sees(f"{NAMES:,} names in all")
        assert time.monotonic() - begun < SHOWN_S
        rows = tab.run("document.querySelectorAll('tbody tr').length")
        assert 100 <= rows <= 110
        tab.click("More records")
        tab.wait(f"document.querySelectorAll('tbody tr').length === {rows + 100}")
        begun = time.monotonic()
        tab.run("document.querySelector('[type=search]').value = 'h77777'")
        tab.click("Search")
        tab.wait("document.querySelectorAll('tbody tr').length === 1")
        tab.click("Edit", "tbody")
        tab.write("Data", "192.0.2.77")
        tab.click("Save", "dialog")
        tab.sees("it is in the next answer")
        assert time.monotonic() - begun < 2 * SHOWN_S
        assert server.texts("h77777.large.example") == ["192.0.2.77"]
