"""Lists against cases made from public bug reports (tests/conformance/data/bugs)."""

import pytest

from kudurru.domain.dns import names
from kudurru.domain.dns.record_types import type_from_text
from kudurru.domain.lists.memory import MemoryMatcher
from kudurru.domain.lists.rules import Context
from kudurru.domain.lists.verdicts import Verdicts, verdicts
from kudurru.domain.objects import Key
from tests.conformance.cases import DATA, Row, rows

CASES = list(rows(DATA / "bugs" / "filter_cases.jsonl"))
LIST = Key("BlockList/default/cases")


def lines_of(row: Row) -> list[str]:
    if "raw_hex" in row:
        return bytes.fromhex(row["raw_hex"]).decode("utf-8").split("\n")
    return row["block"]


@pytest.mark.parametrize("row", CASES, ids=[row["id"] for row in CASES])
def test_a_list_says_of_a_name_what_the_case_expects(row: Row) -> None:
    matcher = MemoryMatcher()
    matcher.put(LIST, [("inline", lines_of(row))], Context(format=row["format"]))
    asked = [row["q"]["name"]]
    asked += [record.split()[-1] for record in row.get("upstream", ()) if " CNAME " in record]
    qtype = type_from_text(row["q"]["type"])
    found = "none"
    for text in asked:  # a policy asks for each name of a chain, until one has a verdict
        name = names.key(names.from_text(text))
        found = word_of(verdicts(name, matcher.lookup(name), [LIST], qtype))
        if found != "none":
            break
    assert found == row["expect"], row["note"]


def word_of(said: Verdicts) -> str:
    if said.important_allow or (said.allow and not said.important_deny):
        return "allow"
    return "block" if said.important_deny or said.deny else "none"
