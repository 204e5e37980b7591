"""The README is run: its tour, in order, in a folder of its own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blackbox.program import PATIENCE_S, ROOT, environment, serving

README = (ROOT / "README.md").read_text()
ZONE = """\
$ORIGIN example.org.
$TTL 3600
@ IN SOA ns1 hostmaster 2026112901 7200 900 1209600 300
@ IN NS ns1
ns1 IN A 192.0.2.1
"""


TOLD = (
    "dnsrecordset/default/nas created",
    "192.0.2.10",
    "policy/default/quiet created",
    "blocked: a list denies it",
    "mark:before-the-move is position",
    "dnsrecordset/default/nas configured",
    "the NAS moves",
    "names for the home",
    '+ spec.endpoints[0].targets[0]: "192.0.2.10"',
    "192.0.2.10",
    "dnsrecordset/default/nas deleted",
    "create dnsrecordset/default/nas",
    "192.0.2.10",
    "192.0.2.10",
    "ok: ",
)
"""What the tour shows, in this order."""


def blocks(of: str) -> list[str]:
    """Shell blocks of a section."""
    section = re.search(rf"^## {of}\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    assert section, f"the README has no section {of!r}"
    return re.findall(r"```sh\n(.*?)```", section[1], re.DOTALL)


def test_the_tour_does_what_it_says(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    shim = bin_ / "kudurru"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m kudurru "$@"\n')
    shim.chmod(0o755)
    if shutil.which("dig") is None:
        (bin_ / "dig").write_text("#!/bin/sh\necho 192.0.2.10\n")
        (bin_ / "dig").chmod(0o755)
    (tmp_path / "example.org.zone").write_text(ZONE)
    env = environment(PATH=f"{bin_}{os.pathsep}{os.environ['PATH']}")
    with serving(tmp_path / "kudurru-data", "--demo") as server:
        script = "\n".join(blocks("Five minutes"))
        script = script.replace("-p 5300", f"-p {server.port}")
        # The tour is walked in minutes; a test has no minute to wait for the past to be past.
        script = script.replace('"1 minute ago"', "mark:before-the-move")
        done = subprocess.run(
            ["bash", "-eux", "-c", script],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    for shown in TOLD:
        _, found, said = said.partition(shown)
        assert found, f"{shown!r} is not said, or not there:\n{done.stdout}"


@pytest.mark.parametrize("marker", ["run", "test"])
def test_the_two_commands_are_one_line_each(marker: str) -> None:
    found = re.search(rf"<!-- {marker} -->\n```sh\n(.*?)```\n<!-- end -->", README, re.DOTALL)
    assert found, f"the README has no block {marker!r}"
    assert found[1].count("\n") == 1


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_a_guide_is_linked_and_its_links_lead_somewhere(page: Path) -> None:
    assert f"docs/{page.name}" in README, f"the README does not link {page.name}"
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links {target}"


def test_the_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), f"the README links {target}"
