"""The page about lists says of lines what the parser makes of them."""

import re
from pathlib import Path

import pytest

from kudurru.domain.lists.parser import parse_line
from kudurru.domain.lists.rules import BELOW, SELF, SUBTREE, Context

PAGE = (Path(__file__).parents[2] / "docs/lists.md").read_text()
ROWS = re.findall(r"^\| `(.+)` \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
COVERS = {
    "the name": SELF,
    "each name": SELF,
    "the address": SELF,
    "below": BELOW,
    "the name and below": SUBTREE,
    "a pattern": 0,
    "the address `192.0.2.1` in answers": SELF,
}


def test_the_table_of_lines_is_found() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize(("line", "covers", "means"), ROWS)
def test_a_line_is_read_as_the_page_says(line: str, covers: str, means: str) -> None:
    found = parse_line(line.replace("\\|", "|"), Context())
    assert found.rules
    assert not found.refused
    for rule in found.rules:
        assert (SELF if rule.is_node else rule.covers) == COVERS[covers]
        assert rule.is_allow is (means == "allow")
        assert (rule.reply is not None) is ("answer" in means or "with" in means)
